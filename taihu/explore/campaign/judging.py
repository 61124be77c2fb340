"""Judges of a run: its bits, its end, its history, and what it has left. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from taihu.explore.campaign.attended import allowed_again, moves_of, outlasts_patience, problems_of_agents
from taihu.explore.cases import Case
from taihu.explore.faults import Kind
from taihu.explore.outcomes import Outcome

_OF_DISKS: Final = frozenset({Kind.FULL_DISK, Kind.SLOW_DISK, Kind.READ_ONLY_DISK})
# Nobody is lost by them.
_BEARABLE: Final = _OF_DISKS | {Kind.DELAY, Kind.DUPLICATE, Kind.CLOCK_JUMP}
# The memory of the host outlives them, and disks take what it held.
_OF_PROCESSES: Final = (_BEARABLE - _OF_DISKS) | {Kind.KILL, Kind.DROP, Kind.DROP_ONE}
# Everybody hears of them at once.
_HEARD_OF: Final = frozenset(
    {Kind.KILL, Kind.DROP, Kind.DROP_ONE, Kind.DELAY, Kind.CORRUPT, Kind.DUPLICATE, Kind.CLOCK_JUMP}
)
_ENDED_FROM_OUTSIDE: Final = ("takes no part any more; it is ended", "does not end; it is ended")
_INTERRUPTED: Final = 130
_GONE_ON_WITHIN_S: Final = 30.0
"""Virtual seconds in which a run has got over a fault that everybody hears of at once: a supervisor may take them."""
_PATIENCE_S: Final = 60.0
"""Virtual seconds for which a process that has come in vain looks for a coordinator."""


def problems_of(case: Case, calm: Outcome, outcome: Outcome) -> list[str]:
    """Problems of the outcome of a case, whose job ended as `calm` without faults; empty where there are none."""
    return list(_problems(case, calm, outcome))


def _problems(case: Case, calm: Outcome, outcome: Outcome) -> Iterator[str]:
    if outcome.standstill:
        yield f"it does not end: {outcome.standstill}"
    yield from _problems_of_processes(case, outcome)
    yield from _problems_of_stuck(case, outcome)
    if outcome.standstill:
        return
    yield from _problems_of_time(case, calm, outcome)
    told = outcome.parameters
    if outcome.all_ended_well:
        if told != calm.parameters:
            yield f"other bits: {sorted(told)}, without faults {sorted(calm.parameters)}"
        yield from _problems_of_success(case, outcome)
        yield from problems_of_agents(case, outcome)
    elif len(told) > 1:
        yield f"workers that ended well have other bits: {sorted(told)}"
    elif not (may_fail(case) or _end_was_lost(case, outcome)):
        yield f"it failed: {_ends_in_words(outcome)}"
    else:
        yield from _problems_of_failure(case, outcome)
    yield from _problems_of_resumed(calm, outcome)


def _problems_of_resumed(calm: Outcome, outcome: Outcome) -> Iterator[str]:
    """A run that did not end well goes on from what its disks hold, and ends with the same bits."""
    for end in outcome.resumed:
        if end.code != 0:
            yield f"resumed, {end.name} ended with exit code {end.code}: {end.words}\n{end.traceback}"
    told = {end.parameters for end in outcome.resumed if end.code == 0 and end.parameters}
    if told and told != calm.parameters:
        yield f"other bits, resumed: {sorted(told)}, without faults {sorted(calm.parameters)}"


def _problems_of_processes(case: Case, outcome: Outcome) -> Iterator[str]:
    """Whatever is wrong, however the run ended: tracebacks, the history, what is left behind, and checkpoints."""
    for end in (*outcome.ends.values(), *outcome.former):
        if end.traceback:
            yield f"{end.name} (life {end.life}) ended by a traceback: {end.words}\n{end.traceback}"
    for failure in outcome.failures:
        yield f"a thread, or a handler of a call, ended by an error:\n{failure}"
    for finding in outcome.findings if outcome.all_ended_well else ():
        yield f"history: {finding}"
    # Where nothing passes, nobody hears that a connection is no longer needed.
    is_heard = {fault.kind for fault in case.faults} <= _HEARD_OF | _BEARABLE
    connected = outcome.connected if is_heard else ()
    for left in (*outcome.left, *connected):
        yield f"left behind: {left}"
    for damaged in outcome.damaged:
        yield f"a checkpoint that counts is not whole: {damaged}"


def _problems_of_stuck(case: Case, outcome: Outcome) -> Iterator[str]:
    """Nothing is stuck in this world but what stands still, or writes slowly; else it waits for what never comes."""
    held = {fault.member for fault in case.faults if fault.kind in (Kind.STOP, Kind.SLOW_DISK)}
    for end in (*outcome.ends.values(), *outcome.former):
        if end.was_stuck and end.name not in held:
            yield f"{end.name} (life {end.life}) was stuck, and had to end itself"
    if {fault.kind for fault in case.faults} <= _HEARD_OF:
        for line in outcome.said:
            if line.endswith(_ENDED_FROM_OUTSIDE):
                yield f"it had to be ended from outside: {line}"


def _problems_of_time(case: Case, calm: Outcome, outcome: Outcome) -> Iterator[str]:
    """Whoever hears of a fault goes on at once: a run that stood still until somebody noticed was not told of it."""
    if case.supervisor == "never" or not {fault.kind for fault in case.faults} <= _HEARD_OF:
        return
    own_s = sum(_GONE_ON_WITHIN_S + fault.seconds for fault in case.faults)
    if case.machines is not None:
        own_s += case.machines.arrivals[-1] + _GONE_ON_WITHIN_S * len(case.machines.arrivals)
    bound_s = calm.virtual_s + _PATIENCE_S + own_s
    if outcome.virtual_s > bound_s:
        yield f"it stood still: it took {outcome.virtual_s:.0f} virtual seconds, expected at most {bound_s:.0f}"


def _problems_of_success(case: Case, outcome: Outcome) -> Iterator[str]:
    """A run that ended well began again because of a fault alone, and has kept its last step."""
    kinds = {fault.kind for fault in case.faults}
    if outcome.generations > 1 + moves_of(case) and kinds <= _BEARABLE:
        yield f"it began again {outcome.generations - 1} times, and nobody was lost"
    if case.machines is not None:
        allowed = allowed_again(case)
        if allowed is not None and outcome.made_again > allowed:
            yield f"{outcome.made_again} completed steps were made again, expected at most {allowed}"
    elif outcome.made_again and case.shape.holds_steps and kinds <= _OF_PROCESSES:
        yield f"{outcome.made_again} completed steps were made again, although members held them"
    if outcome.told_from > 1:
        yield f"history: it tells nothing of what was before step {outcome.told_from}"
    if case.shape.steps not in outcome.checkpoints and not kinds & (_OF_DISKS | {Kind.POWER_LOSS}):
        yield f"its last step, {case.shape.steps}, was not kept: {list(outcome.checkpoints)}"


def may_fail(case: Case) -> bool:
    """Whether the run of a case may end otherwise than well."""
    kinds = {fault.kind for fault in case.faults}
    is_alone = case.supervisor == "never" and bool(case.faults)
    return bool(kinds & {Kind.INTERRUPT, Kind.TERMINATE}) or is_alone or outlasts_patience(case)


def _end_was_lost(case: Case, outcome: Outcome) -> bool:
    """Whether nobody can know any more that the run has finished, and nobody starts its coordinator again.

    It died while its disk did not take the end, which one had heard of: launchers take the run for one that is over.
    """
    host = {fault.kind for fault in case.faults if fault.member == case.shape.members[0]}
    takes_nothing = bool(host & {Kind.FULL_DISK, Kind.READ_ONLY_DISK})
    has_died = bool(host & {Kind.KILL, Kind.POWER_LOSS})
    return takes_nothing and has_died and any(end.code == 0 for end in outcome.ends.values())


def _problems_of_failure(case: Case, outcome: Outcome) -> Iterator[str]:
    """A run that may fail says why: everybody has ended, with words."""
    for end in outcome.ends.values():
        if end.code is None:
            yield f"{end.name} has not ended"
        elif end.code not in (0, -9, _INTERRUPTED) and not end.words:
            yield f"{end.name} ended with exit code {end.code} and without words"
    failed = [end for end in outcome.ends.values() if end.code not in (0, -9, _INTERRUPTED)]
    guilty = {fault.member for fault in case.faults if fault.kind is not Kind.INTERRUPT}
    if len(guilty) < len({fault.member for fault in case.faults}):
        guilty |= set(case.shape.members)  # all of them get the signal
    if failed and not any(member in end.words for end in failed for member in guilty | {"SIGTERM", "SIGINT"}):
        yield f"nobody names {' or '.join(sorted(guilty))}: {_ends_in_words(outcome)}"


def _ends_in_words(outcome: Outcome) -> str:
    told = [
        f"{end.name} {end.code}{': ' + end.words if end.words else ''}"
        for end in outcome.ends.values()
        if end.code != 0
    ]
    return "; ".join([*([outcome.supervision] if outcome.supervision else []), *told])
