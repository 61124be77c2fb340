"""The identity of a process of a job, or of somebody who looks on: a URI in its certificate.

It has the form of SPIFFE: `spiffe://DOMAIN/taihu/JOB/ROLE/NAME`. Who is called shows a DNS name beside it, because
gRPC's clients check a name of that kind: `ROLE-NAME.JOB.taihu`, and `coordinator.JOB.taihu` for whoever hosts that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from taihu.core.base.errors import ConfigError

Role = Literal["server", "worker", "observer", "operator"]
"""A server or worker by its rank; an observer asks how a run is, an operator stops it."""
ROLES: Final[tuple[Role, ...]] = get_args(Role)
COORDINATOR: Final = "coordinator"
"""The name of the process that hosts the coordinator, for who does not know which that is."""

_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_URI: Final = re.compile(
    rf"spiffe://(?P<domain>[a-z0-9][a-z0-9._-]{{0,253}})/taihu/(?P<job>{_NAME})/"
    rf"(?:(?P<member>server|worker)/(?P<rank>0|[1-9][0-9]{{0,5}})|(?P<other>observer|operator)/(?P<name>{_NAME}))"
)


@dataclass(frozen=True)
class Identity:
    """A member of `job`, or somebody who looks after it: `name` is a rank of a server or worker, else any name."""

    job: str
    role: Role
    name: str
    domain: str = "taihu"

    @property
    def rank(self) -> int | None:
        """The rank of a server or worker; None of others."""
        return int(self.name) if self.role in ("server", "worker") else None

    @property
    def member(self) -> str:
        """The name of its files, and the first part of its DNS name: `worker-3`."""
        return member_name(self.role, self.name)

    @property
    def uri(self) -> str:
        """As a certificate holds it."""
        return f"spiffe://{self.domain}{self.path}"

    @property
    def path(self) -> str:
        """The URI without its domain, which is free."""
        return f"/taihu/{self.job}/{self.role}/{self.name}"

    def __str__(self) -> str:
        return f"{self.role} {self.name} of job {self.job!r}"


def parse_identity(uri: str) -> Identity:
    """The identity that a URI says; raises ConfigError for any other text."""
    match = _URI.fullmatch(uri)
    if match is None:
        raise ConfigError(
            f"identity {uri!r}: expected spiffe://DOMAIN/taihu/JOB/ROLE/NAME, with the role server or worker and a "
            "rank, or observer or operator and a name"
        )
    parts = match.groupdict()
    role = cast("Role", parts["member"] or parts["other"])
    return Identity(parts["job"], role, parts["rank"] or parts["name"], parts["domain"])


def identity_among(uris: Iterable[str]) -> Identity | None:
    """The only identity among the URIs of a certificate; None where there is none, or more than one."""
    found = [parse_identity(uri) for uri in uris if _URI.fullmatch(uri) is not None]
    return found[0] if len(found) == 1 else None


def member_name(role: str, name: object) -> str:
    """`server-0` of server 0."""
    return f"{role}-{name}"


def dns_name(member: str, job: str) -> str:
    """The name that a client expects in the certificate of `member` of `job`."""
    return f"{member}.{job}.taihu"
