"""The roles that may call each method, and whom a call may speak for: nobody may what is not said here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from taihu.core.security.identity import Role

Speaks = Literal["nobody", "member", "rank", "stream"]
"""The place where a call says who makes it: nowhere, its request's `member` or `rank` (of a worker), the metadata of
its stream."""


@dataclass(frozen=True)
class Rule:
    """`roles` may call a method, of a worker the one of rank `only`, if it is said; `open_to_all` asks nobody."""

    roles: frozenset[Role]
    speaks: Speaks = "nobody"
    only: int | None = None
    open_to_all: bool = False


_WORKER: Final = frozenset[Role](("worker",))
_MEMBERS: Final = frozenset[Role](("server", "worker"))
_ONLOOKERS: Final = frozenset[Role](("server", "worker", "observer", "operator"))
_OPERATOR: Final = frozenset[Role](("operator",))
_HEALTH: Final = Rule(frozenset(), open_to_all=True)
_REFLECTION: Final = Rule(_ONLOOKERS)


def _of(service: str, rules: Mapping[str, Rule]) -> Iterable[tuple[str, Rule]]:
    return ((f"/{service}/{method}", rule) for method, rule in rules.items())


RULES: Final[Mapping[str, Rule]] = dict(
    (
        *_of(
            "taihu.v1.CoordinatorService",
            {
                "Attend": Rule(_WORKER),
                "Seat": Rule(frozenset(("server",))),
                "Begin": Rule(_MEMBERS, "member"),
                "Join": Rule(_MEMBERS, "member"),
                "Vouch": Rule(_MEMBERS, "member"),
                "BringLayout": Rule(_WORKER, "member"),
                "Heartbeat": Rule(_MEMBERS, "member"),
                "GetPlan": Rule(_MEMBERS),
                "ReportSteps": Rule(_WORKER, "member"),
                "DecideCheckpoint": Rule(_WORKER, "member"),
                "Stored": Rule(_MEMBERS, "member"),
                "Copy": Rule(_WORKER, "member"),
                "Compare": Rule(_WORKER, "member"),
                "GetProfile": Rule(_ONLOOKERS),
                "GetStatus": Rule(_ONLOOKERS),
                "FixLastStep": Rule(_WORKER, "member", only=0),
                "Stop": Rule(_OPERATOR),
                "Finish": Rule(_MEMBERS, "member"),
            },
        ),
        *_of(
            "taihu.v1.ParameterServerService",
            {
                "Exchange": Rule(_WORKER, "stream"),
                "Initialize": Rule(_WORKER, only=0),
                "Share": Rule(_WORKER, "rank"),
                "OpenConnection": Rule(_WORKER, "rank"),
                "Keep": Rule(_WORKER, "rank", only=0),
                "Fetch": Rule(_WORKER, "rank"),
            },
        ),
        *_of(
            "taihu.v1.PeerService",
            {"Exchange": Rule(_WORKER, "stream"), "OpenConnection": Rule(_WORKER, "rank")},
        ),
        # Doctors take no certificates (docs/doctor.md): nobody finds one beside a run's services.
        *_of(
            "taihu.v1.DoctorService",
            dict.fromkeys(("GetFacts", "GetTime", "Exchange", "OpenConnection", "MeasureLink"), Rule(_ONLOOKERS)),
        ),
        *_of("grpc.health.v1.Health", {"Check": _HEALTH, "Watch": _HEALTH, "List": _HEALTH}),
        *_of("grpc.reflection.v1alpha.ServerReflection", {"ServerReflectionInfo": _REFLECTION}),
    )
)
"""The rule of each method, by its full name."""
