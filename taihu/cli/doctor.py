"""`taihu doctor`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from taihu.core.base.errors import ConfigError
from taihu.core.job.environment import resolve_job
from taihu.core.process.options import BindOption, CoordinatorOption, JobArgument, JsonOption, SetOption, refuse
from taihu.core.system.threads import Event

if TYPE_CHECKING:
    from taihu.core.job import Job
    from taihu.core.planner.memory import MemoryJob
    from taihu.doctor.examination import Examination, Subject

_LISTEN_S: Final = 3600.0
DEFAULT_BIND: Final = "127.0.0.1:7070"
_QUIET_S: Final = 2.0
_MOST_PEERS: Final = 64


def doctor(
    job_file: JobArgument = None,
    *,
    peers: Annotated[
        list[str] | None,
        typer.Option(
            "--peers",
            metavar="HOST:PORT,...",
            help="Other machines, where doctors listen; commas between them, or the option again.",
        ),
    ] = None,
    listen: Annotated[
        bool, typer.Option("--listen", help="Wait to be examined, at --bind, for an hour or until Ctrl-C.")
    ] = False,
    bind: BindOption = "",
    coordinator: CoordinatorOption = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="The rate that links should have, where interfaces claim none: 1gbit."),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE.pem", help="Certificate of the authority; else security.ca.")
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.pem", help="Certificate of this process; else those of security.certificate that lie here."
        ),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE.pem", help="Key of the certificate; else security.key.")
    ] = None,
    certificate_name: Annotated[
        str | None, typer.Option("--certificate-name", metavar="NAME", help="A name that it must be for.")
    ] = None,
    assignments: SetOption = None,
    json_file: JsonOption = None,
) -> None:
    """Tell whether a run would work here and between machines; each finding with its remedy.

    Looked at are: descriptors, memory by what the job's processes take, /dev/shm, disk; data, model, packages;
    names and addresses; certificates. Of --peers, where `taihu doctor --listen` waits: ports, clocks, versions,
    processors, and every link between two machines, by frames as a run sends them.

    A finding fails, slows, or is a note. The exit code is 1 where a run would fail, 0 where none would.

    \b
    Examples:
      taihu doctor job.toml
      taihu doctor --listen --bind 10.0.0.2:7070                         (on 10.0.0.2, and likewise on 10.0.0.3)
      taihu doctor job.toml --peers 10.0.0.2:7070,10.0.0.3:7070 --rate 1gbit
      taihu doctor job.toml --certificate worker-0.pem --key worker-0-key.pem --ca ca.pem --json findings.json
    """  # noqa: D301
    from taihu.core.process.results import check_writable

    addresses = _addresses(peers or [])
    if listen:
        refuse(
            {"--peers": peers, "--rate": rate, "--ca": ca, "--certificate": certificate, "--json": json_file},
            "does not go with --listen: who examines this machine asks for it",
        )
        refuse(
            {"JOB.toml": job_file, "--set": assignments or None},
            "does not go with --listen: who examines has the job",
        )
        _listen(bind or DEFAULT_BIND)
        return
    if bind:
        raise ConfigError(f"--bind {bind}: is where to listen; give --listen as well, or leave it out")
    check_writable(json_file)
    from taihu.cli.planning.link_rate import parse_rate
    from taihu.doctor.certificates import NamedFiles, named_files
    from taihu.doctor.examination import Subject

    job = resolve_job(job_file, assignments or (), {"cluster": {"coordinator": coordinator}})
    with _progress() as tell:
        tell("memory of the job's processes")
        subject = Subject(
            job,
            _memory(job),
            addresses,
            None if rate is None else parse_rate(rate),
            named_files(
                job, NamedFiles(ca, certificate, key, () if certificate_name is None else (certificate_name,))
            ),
        )
        found = _examined(subject, tell)
    _show(found)
    if json_file is not None:
        from taihu.core.process.results import write_json

        write_json(json_file, found.to_json())
    from taihu.doctor.findings import would_fail

    if would_fail(found.findings):
        raise typer.Exit(1)


def _examined(subject: Subject, tell: Callable[[str], None]) -> Examination:
    from taihu.doctor.examination import examine

    return examine(subject, tell)


def _addresses(peers: list[str]) -> tuple[str, ...]:
    """The peers, each checked and once."""
    from taihu.core.wire.base.address import split_address

    addresses = tuple(dict.fromkeys(address for text in peers for address in text.split(",")))
    for address in addresses:
        host, port = split_address(address)
        if not host or not port:
            raise ConfigError(f"--peers {address}: expected HOST:PORT, where `taihu doctor --listen` waits")
    if len(addresses) > _MOST_PEERS:
        raise ConfigError(
            f"--peers: expected at most {_MOST_PEERS} machines, got {len(addresses)}; ask some of them at a time"
        )
    return addresses


def _memory(job: Job) -> MemoryJob | None:
    """The facts of the job's memory; None where its data or model are not there, which is a finding elsewhere."""
    from taihu.cli.planning.job_memory import JobMemory
    from taihu.worker.data.load import load_dataset
    from taihu.worker.preflight import check_inputs

    try:
        check_inputs(job)
        return JobMemory(job, load_dataset(job.data, job.model.name)).of_job(job)
    except ConfigError:
        return None


def _listen(bind: str) -> None:
    from taihu.core.process.entry import InterruptedRunError, raise_on_terminate
    from taihu.core.wire.base.address import join_address, split_address
    from taihu.doctor.service import ListeningDoctor

    raise_on_terminate()
    with suppress(InterruptedRunError), ListeningDoctor(bind) as listening:
        host, _ = split_address(bind)
        typer.echo(f"listening on {join_address(host or '0.0.0.0', listening.port)} for an hour")  # noqa: S104
        Event().wait(_LISTEN_S)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Yields what is told of each thing that is looked at: a line that changes, or plain ones after two seconds."""
    from rich.console import Console

    from taihu.core.wire.base.clock import SystemClock

    console, clock = Console(stderr=True), SystemClock()
    start = clock.now()
    if console.is_terminal:
        with console.status("looking") as status:
            yield lambda text: status.update(f"looking at {text}")
        return

    def tell(text: str) -> None:
        if clock.now() - start > _QUIET_S:
            print(f"looking at {text}", file=sys.stderr, flush=True)  # noqa: T201

    yield tell


def _show(found: Examination) -> None:
    from taihu.core.base.words import aligned, counted

    if found.links:
        for line in aligned([_COLUMNS, *_link_rows(found)], left=1):
            typer.echo(line)
        typer.echo("")
    for finding in found.findings:
        typer.echo(str(finding))
    machines = counted(len(found.machines), "machine")
    typer.echo(f"{counted(len(found.findings), 'finding') if found.findings else 'nothing found'} on {machines}")


_COLUMNS: Final = ("link", "one way", "there", "back", "beside gRPC")


def _link_rows(found: Examination) -> Iterator[tuple[str, ...]]:
    from taihu.doctor.network import rate_text

    for link in found.links:
        rates = (rate_text(rate) if rate else "-" for rate in (link.up, link.down, link.direct))
        yield (link.name, f"{1e3 * link.alpha_s:.2f} ms", *rates)
