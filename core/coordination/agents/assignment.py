"""The ranks that each agent runs: as evenly as their speeds allow, with as few moves as that takes. Pure.

Ranks of one agent share its machine, so that a step takes as long there as all of them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def filled(
    ranks: Iterable[int], held: Mapping[int, int], agents: Sequence[int], costs: Mapping[int, float]
) -> dict[int, int]:
    """The agent of each rank, where those in `held` stay and the other `ranks` go where the step stays shortest.

    Args:
        ranks: of all workers.
        held: the agent of each rank that has one.
        agents: that may get ranks, the longest there first.
        costs: seconds of one rank's work in a step by agent.
    """
    given = dict(held)
    counts = _counts(held, agents)
    for rank in sorted(set(ranks) - set(held)):
        agent = min(agents, key=lambda each: (counts[each] + 1) * costs[each])
        given[rank] = agent
        counts[agent] += 1
    return given


def balanced(
    ranks: Iterable[int], held: Mapping[int, int], agents: Sequence[int], costs: Mapping[int, float]
) -> dict[int, int]:
    """The agent of each rank for the shortest step; ranks stay where they are as far as that allows.

    Agents that are not named lose theirs. Of those that give some away, the lowest ranks stay. See `filled`.
    """
    ranks = sorted(ranks)
    had = _counts(held, agents)
    quotas = dict.fromkeys(agents, 0)
    for _ in ranks:
        # Where several would do, that one whose ranks need not move.
        agent = min(agents, key=lambda each: ((quotas[each] + 1) * costs[each], quotas[each] >= had[each]))
        quotas[agent] += 1
    given: dict[int, int] = {}
    for rank in ranks:
        holder = held.get(rank)
        if holder is not None and quotas.get(holder, 0):
            given[rank] = holder
            quotas[holder] -= 1
    places = [agent for agent in agents for _ in range(quotas[agent])]
    return given | dict(zip((rank for rank in ranks if rank not in given), places, strict=True))


def longest_s(held: Mapping[int, int], costs: Mapping[int, float]) -> float:
    """The work of the agent that has most of it in a step, in seconds: the others wait for it."""
    work = [count * costs[agent] for agent, count in _counts(held, set(held.values())).items()]
    return max(work, default=0.0)


def _counts(held: Mapping[int, int], agents: Iterable[int]) -> dict[int, int]:
    counts = dict.fromkeys(agents, 0)
    for agent in held.values():
        if agent in counts:
            counts[agent] += 1
    return counts
