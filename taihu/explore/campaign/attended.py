"""Judges of runs whose workers agents run: their ends, and the steps that such a run may make again. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from taihu.explore.cases import Case, Shape
from taihu.explore.faults import Fault, Kind, fault_from
from taihu.explore.outcomes import Outcome

_PATIENCE_S: Final = 60.0
_KILLED: Final = -9
_INTERRUPTED: Final = 130
_FOUND_NOBODY: Final = 2
# A process is lost by each of them, and what it has sent of a step may not be held yet.
_LOSSES: Final = frozenset({Kind.KILL, Kind.POWER_LOSS})
_UNHEARD_BY: Final = frozenset({Kind.DROP, Kind.DROP_ONE})
# Nothing else than a process, its memory, or a connection for a moment is gone: all others hold what they have made.
_HELD_BY_OTHERS: Final = _LOSSES | {
    *(Kind.LEAVE, Kind.DROP, Kind.DROP_ONE, Kind.DELAY, Kind.DUPLICATE, Kind.CLOCK_JUMP),
}


def moves_of(case: Case) -> int:
    """The times that a run may begin again at most because its workers change machines, nobody being lost."""
    return 0 if case.machines is None else sum(after_s > 0 for after_s in case.machines.arrivals)


def allowed_again(case: Case) -> int | None:
    """The completed steps that a run may make again, as docs/recovery.md has it; None where there is no bound.

    A worker sends its part of a step before it holds that: worker 0 may have the step behind it when that one dies.
    """
    kinds = {fault.kind for fault in case.faults}
    lost = [fault for fault in case.faults if fault.kind in _LOSSES]
    if not (case.shape.holds_steps and kinds <= _HELD_BY_OTHERS):
        return None
    # An agent that is not heard is given up as one that is dead.
    unheard = [fault for fault in case.faults if fault.kind in _UNHEARD_BY and fault.member.startswith("agent")]
    lost += unheard
    moves_away = [fault for fault in lost if fault.member.startswith("agent") or fault.kind is Kind.POWER_LOSS]
    of_hosts = [fault for fault in moves_away if not fault.member.startswith("agent")]
    if of_hosts or (moves_away and not _is_held_elsewhere(case.shape)):
        return None
    return len(lost)


def _is_held_elsewhere(shape: Shape) -> bool:
    """Whether servers hold all that workers of a lost machine had made: dense gradients, and no local steps."""
    is_local = "local_steps" in shape.settings["exchange"]
    return shape.servers > 0 and "compression" not in shape.settings and not is_local


def _is_replaced(case: Case, fault: Fault) -> bool:
    """Whether a process that is stopped is one of an agent's, which ends it and starts another one."""
    is_worker = fault.member.startswith("worker") and (case.shape.servers > 0 or fault.member != "worker 0")
    return is_worker and fault.kind is Kind.STOP


def outlasts_patience(case: Case) -> bool:
    """Whether a fault lasts longer than who finds nobody goes on to ask: agents give up, and nobody starts others."""
    lasting = (fault for fault in case.faults if fault.seconds > _PATIENCE_S)
    return case.machines is not None and any(not _is_replaced(case, fault) for fault in lasting)


def _absent_at_the_end(outcome: Outcome) -> Iterator[str]:
    """Members that a fault held up as the run ended: they look for its coordinator in vain."""
    over_s = min((end.at_s for end in outcome.ends.values() if end.parameters), default=0.0)
    for begun_s, fault in map(_happened, outcome.done):
        if fault.seconds and begun_s <= over_s <= begun_s + fault.seconds:
            yield fault.member


def _happened(told: str) -> tuple[float, Fault]:
    begun_s, _, fault = told.partition(" ")
    return float(begun_s), fault_from(fault)


def problems_of_agents(case: Case, outcome: Outcome) -> Iterator[str]:
    """An agent ends with its run, or because it was to leave; nothing else but its own death ends it."""
    leave = {fault.member for fault in case.faults if fault.kind is Kind.LEAVE}
    if outlasts_patience(case):
        return
    die = {fault.member for fault in case.faults if fault.kind in _LOSSES}
    absent = set(_absent_at_the_end(outcome))
    for end in outcome.ends.values():
        expected = {0} | ({_INTERRUPTED} if end.name in leave else set()) | ({_KILLED} if end.name in die else set())
        expected |= {_FOUND_NOBODY} if end.name in absent else set()
        if end.is_of_agent and end.code not in expected:
            yield f"{end.name} ended with exit code {end.code}, expected {sorted(expected)}: {end.words}"
