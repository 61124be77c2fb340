"""The certificates and the token of a process, from its settings and the environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from taihu.core.base.errors import ConfigError
from taihu.core.job.job import Job
from taihu.core.security.files import CertificateFiles
from taihu.core.security.identity import COORDINATOR, Identity, Role, dns_name, member_name, parse_identity
from taihu.core.security.security import Security
from taihu.core.security.token import find_token, kept_token
from taihu.core.settings import SecuritySettings

_ANY_NAME = "0"


@dataclass(frozen=True)
class Certified:
    """An identity that has a certificate, and the DNS names that others expect in it."""

    identity: Identity
    names: tuple[str, ...]


def certified(job: Job, domain: str = "taihu", also: Iterable[str] = ()) -> Iterator[Certified]:
    """The processes of `job`, an observer, an operator, and `also` others, as observer/grafana; each once.

    Raises:
        ConfigError: one of them can be no identity.
    """
    host = member_name("server" if job.servers else "worker", 0)
    counts = (("server", job.servers), ("worker", job.world.workers))
    wanted = [f"{role}/{rank}" for role, count in counts for rank in range(count)]
    for place in dict.fromkeys((*wanted, f"observer/{_ANY_NAME}", f"operator/{_ANY_NAME}", *also)):
        identity = parse_identity(f"spiffe://{domain}/taihu/{job.name}/{place}")
        names = [identity.member, *([COORDINATOR] if identity.member == host else [])]
        yield Certified(identity, tuple(dns_name(name, job.name) for name in names if identity.rank is not None))


def security_of(job: Job, role: Role, name: object) -> Security:
    """Of server or worker `name`, a rank, of `job`; or of an observer or operator.

    Raises:
        ConfigError: a token is none, or its file cannot be read or is everybody's.
    """
    settings = job.security
    return Security(
        job.name,
        _files_of(settings, member_name(role, name)),
        settings.clients == "certificate",
        find_token(os.environ, settings.token_file),
        settings.required,
    )


def security_of_onlooker(job: Job, role: Role, address: str) -> Security:
    """Of a command that looks at the run at `address`, or stops it.

    Its certificate says of which job it is. The token of a run that this user has started on this machine is known.

    Raises:
        ConfigError: see `security_of`; or the certificate has no identity.
    """
    own = security_of(job, role, _ANY_NAME)
    if own.files is not None and own.files.certificate is not None:
        from taihu.core.security.certificates import identity_in  # noqa: PLC0415 - most commands need no certificates

        identity = identity_in(own.files.certificate)
        own = Security(identity.job, own.files, own.asks_clients, own.token, own.required)
    return own if own.token is not None else own.with_token(kept_token(address))


def check_own_certificate(security: Security, role: Role, rank: int) -> None:
    """Accept a certificate that is this process's own and good for a while yet, or none.

    Raises:
        ConfigError: it is another one's, or not good now.
    """
    files = security.files
    if files is None or files.certificate is None:
        return
    from taihu.core.security.certificates import check_time, identity_in  # noqa: PLC0415 - see above

    files.check()
    identity = identity_in(files.certificate)
    if (identity.job, identity.role, identity.rank) != (security.job, role, rank):
        raise ConfigError(
            f"security.certificate {files.certificate} is that of {identity}: this is {role} {rank} of job "
            f"{security.job!r}; name its own, for example by {{member}} in the path"
        )
    check_time(files.certificate)


def _files_of(settings: SecuritySettings, member: str) -> CertificateFiles | None:
    if settings.ca is None:
        return None
    own = (settings.certificate, settings.key)
    certificate, key = (None if path is None else Path(str(path).replace("{member}", member)) for path in own)
    return CertificateFiles(settings.ca, certificate, key)
