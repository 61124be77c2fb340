"""`taihu certs`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from taihu.core.base.errors import ConfigError
from taihu.core.base.whole_file import make_folder, writing
from taihu.core.job import Job
from taihu.core.job.environment import resolve_job
from taihu.core.job.security import Certified, certified
from taihu.core.process.options import JobArgument, ServersOption, SetOption, WorkersOption
from taihu.core.process.results import check_folder_writable
from taihu.core.security.certificates import (
    Authority,
    Validity,
    is_good,
    load_authority,
    write_certificate,
    write_pair,
)

_CA_DAYS = 3650.0


def certs(
    job_file: JobArgument = None,
    *,
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the files are, or shall be.")],
    servers: ServersOption = None,
    workers: WorkersOption = None,
    assignments: SetOption = None,
    own_folder: Annotated[
        Path | None,
        typer.Option("--authority", metavar="DIR", help="Where the authority and its key are kept, if not there."),
    ] = None,
    hosts: Annotated[
        str,
        typer.Option("--hosts", metavar="NAME,ADDRESS", help="Names and addresses for other tools, in every one."),
    ] = "",
    also: Annotated[
        list[str] | None,
        typer.Option("--also", metavar="ROLE/NAME", help="One more, as observer/grafana; may be repeated."),
    ] = None,
    days: Annotated[
        float, typer.Option("--days", metavar="DAYS", min=0.001, max=3650, help="How long certificates are good.")
    ] = 365.0,
    domain: Annotated[str, typer.Option("--domain", metavar="NAME", help="Domain of the identities.")] = "taihu",
    renew: Annotated[
        bool, typer.Option("--renew", help="Make all certificates anew, by the same authority; runs take them in.")
    ] = False,
) -> None:
    """Make an authority for development, and a certificate for each process of a job.

    There is one for every server and worker, for an observer (taihu status, top, plan) and an operator, who may stop
    the run. What is there and good stays: the authority always, a certificate until a third of its time is left.
    Give each host the files of its own processes and ca.pem; keep ca-key.pem to yourself: --authority keeps it apart.

    \b
    Examples:
      taihu certs job.toml --out certs
      taihu certs --servers 1 --workers 2 --out certs --also observer/grafana
      taihu certs job.toml --out certs --renew --days 30      # while a run goes on, too
      taihu certs job.toml --out certs --hosts node1,10.0.0.1
      taihu certs job.toml --out certs --authority ~/authority
    """  # noqa: D301
    job = resolve_job(job_file, assignments or (), {"cluster": {"servers": servers, "workers": workers}})
    names = tuple(filter(None, re.split(r"[,\s]+", hosts)))
    members = tuple(certified(job, domain, also or ()))
    check_folder_writable(folder)
    make_folder(folder, 0o700)
    with writing(folder):
        authority, is_new = _authority_in(own_folder, folder, job) if own_folder else _authority(folder, job)
        made = [each for each in members if _issue(authority, folder, each, names, days=days, renew=renew)]
    typer.echo(f"authority: {folder / 'ca.pem'} ({'made' if is_new else 'kept'})")
    for member in members:
        state = "made" if member in made else "kept"
        typer.echo(f"{member.identity.uri}: {folder / member.identity.member}.pem ({state})")
    typer.echo(
        f'\n[security]\nca = "{folder / "ca.pem"}"\ncertificate = "{folder / "{member}.pem"}"\n'
        f'key = "{folder / "{member}-key.pem"}"'
    )


def _authority(folder: Path, job: Job) -> tuple[Authority, bool]:
    """The one in the folder, or a new one."""
    certificate, key = folder / "ca.pem", folder / "ca-key.pem"
    if certificate.exists() or key.exists():
        return load_authority(certificate, key), False
    authority = Authority.make(f"taihu development authority of {job.name}"[:64], Validity.of_days(_CA_DAYS))
    write_pair(authority.issued, certificate, key)
    return authority, True


def _authority_in(own: Path, folder: Path, job: Job) -> tuple[Authority, bool]:
    """The one in a folder of its own, where one that is in `folder` goes; `folder` has its certificate alone."""
    make_folder(own, 0o700)
    key, own_key = folder / "ca-key.pem", own / "ca-key.pem"
    if key.exists() and not own.samefile(folder):
        if own_key.exists() and own_key.read_bytes() != key.read_bytes():
            raise ConfigError(f"{folder} and {own} have an authority each: remove {key}, or the other")
        write_pair(load_authority(folder / "ca.pem", key).issued, own / "ca.pem", own_key)
        key.unlink()
    authority, is_new = _authority(own, job)
    write_certificate(authority.issued, folder / "ca.pem")
    return authority, is_new


def _issue(
    authority: Authority, folder: Path, member: Certified, hosts: tuple[str, ...], *, days: float, renew: bool
) -> bool:
    """Make a certificate, unless there is a good one; whether it was made."""
    certificate, key = (folder / f"{member.identity.member}{end}" for end in (".pem", "-key.pem"))
    names = tuple(dict.fromkeys((*member.names, *hosts)))
    if not renew and key.exists() and is_good(certificate, authority, member.identity, names):
        return False
    write_pair(authority.issue(member.identity, names, Validity.of_days(days)), certificate, key)
    return True
