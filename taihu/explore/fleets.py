"""Cases of machines that come and go: when agents come, and what goes wrong with them and their workers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from taihu.explore.cases import Machines, Marks, Shape
from taihu.explore.faults import Fault, Kind

# Who has come as the last one is waited for as long before the first step: see `Attendance`.
_BEGINS_AFTER_S: Final = 3.0
_MOST: Final = 4
# The share of machines behind the first one that are there from the beginning.
_THERE: Final = 0.4
# Machines join a run that takes some time: steps in place of each, and the seconds that each takes.
_LONGER: Final = (2, 3, 4)
_STEPS_S: Final = (0.05, 0.2, 0.5)


def lasting(shape: Shape) -> Shape:
    """The job with more steps, which take longer: some are left when others join."""
    chance = Random(f"lasting {shape}")  # noqa: S311
    return replace(shape, steps=shape.steps * chance.choice(_LONGER), step_s=chance.choice(_STEPS_S))


def machines_of(chance: Random, shape: Shape, lasted_s: float) -> Machines:
    """Draw when machines come to a run that lasts so long without them."""
    late = [chance.random() >= _THERE for _ in range(chance.randint(0, _MOST - 1))]
    until_s = _BEGINS_AFTER_S + lasted_s
    arrivals = (0.0, *(round(chance.random() * until_s, 6) if each else 0.0 for each in late))
    least = 2 if len(arrivals) > 1 and shape.workers > 1 and chance.random() < 0.2 else 1
    return Machines(tuple(sorted(arrivals)), least)


def faults_of_machines(
    chance: Random, shape: Shape, machines: Machines, marks: Marks, lasted_s: float
) -> tuple[Fault, ...]:
    """Draw faults of machines, of workers that they run, and of hosts of the run."""
    count = chance.choice((0, 1, 1, 2, 2, 3, 4))
    until_s = _BEGINS_AFTER_S + lasted_s
    return tuple(_fault(chance, shape, machines, marks, until_s) for _ in range(count))


def _fault(chance: Random, shape: Shape, machines: Machines, marks: Marks, until_s: float) -> Fault:
    kinds, members, labels = _whom(chance, shape, machines, marks)
    kind, member = chance.choice(kinds), chance.choice(members)
    seconds = chance.choice((0.05, 0.5, 2.0, 8.0, 20.0, 100.0)) if kind.lasts else 0.0
    own = labels.get(member, {})
    if own and chance.random() < 0.6:
        mark = chance.choice(sorted(own))
        return Fault(kind, member, mark, nth=chance.randint(1, own[mark]), seconds=seconds)
    return Fault(kind, member, after_s=round(chance.random() * until_s * 1.1, 6), seconds=seconds)


def _whom(
    chance: Random, shape: Shape, machines: Machines, marks: Marks
) -> tuple[Sequence[Kind], Sequence[str], dict[str, dict[str, int]]]:
    """Those that a fault may hit, its kinds, and how often each of them passes each label."""
    draw = chance.random()
    if draw < 0.5:
        agents = [f"agent {number}" for number in range(len(machines.arrivals))]
        return _OF_MACHINES, agents, {agent: dict(_POINTS) for agent in agents}
    labels: dict[str, Any] = {}
    for (member, label), times in marks.items():
        labels.setdefault(member, {})[label] = times
    hosts = [name for name in shape.members if name.startswith("server")] or shape.members[:1]
    others = [name for name in shape.members if name not in hosts]
    return (_OF_WORKERS, others, labels) if draw < 0.8 else (_OF_HOSTS, hosts, labels)


_OF_MACHINES: Final = (
    *(Kind.KILL, Kind.KILL, Kind.KILL, Kind.POWER_LOSS, Kind.POWER_LOSS),
    *(Kind.LEAVE, Kind.LEAVE, Kind.LEAVE, Kind.SUSPEND, Kind.SUSPEND, Kind.STOP),
    *(Kind.PARTITION, Kind.PARTITION, Kind.DEAF, Kind.MUTE, Kind.STALL, Kind.SLOW_LINK),
    *(Kind.DROP, Kind.DROP_ONE, Kind.HALF_OPEN, Kind.FULL_DISK, Kind.SLOW_DISK, Kind.READ_ONLY_DISK),
    *(Kind.CLOCK_JUMP, Kind.FAST_CLOCK),
)
_OF_WORKERS: Final = (
    *(Kind.KILL, Kind.KILL, Kind.KILL, Kind.KILL, Kind.LEAVE, Kind.STOP, Kind.STOP, Kind.DELAY),
    *(Kind.DROP, Kind.DROP_ONE, Kind.HALF_OPEN, Kind.STALL, Kind.SLOW_LINK),
    *(Kind.CORRUPT, Kind.DUPLICATE, Kind.TRUNCATE, Kind.FAST_CLOCK),
)
_OF_HOSTS: Final = (
    *(Kind.KILL, Kind.KILL, Kind.KILL, Kind.LEAVE, Kind.STOP, Kind.POWER_LOSS, Kind.TERMINATE),
    *(Kind.DROP, Kind.DROP_ONE, Kind.HALF_OPEN, Kind.STALL, Kind.PARTITION, Kind.DEAF, Kind.MUTE),
    *(Kind.CORRUPT, Kind.DUPLICATE, Kind.TRUNCATE, Kind.FULL_DISK, Kind.CLOCK_JUMP, Kind.FAST_CLOCK),
)
# Points of an agent, and how often it passes them, about.
_POINTS: Final = (("send Attend", 12), ("receive Attend", 12), ("end workers", 1))
