"""The answer of a search for the best way to run a job: in lines, and as results."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from taihu.core.base.words import aligned, counted
from taihu.core.job import Job
from taihu.local.display.display import human_bytes
from taihu.search.job_file import where
from taihu.search.reasons import why_it_loses, why_it_was_passed
from taihu.search.search import Found, Passed
from taihu.search.ways import Allowed, Candidate, Way, why_no_higher_stage
from taihu.simulation.placement import Placement

_COLUMNS: Final = ("", "step s", "exchange", "sends", "plan", "fc", "zero", "precision", "recompute", "hosts")


@dataclass(frozen=True)
class Answer:
    """The best ways to run a job, and the others.

    Attributes:
        job: as it was given.
        allowed: what was tried.
        placement: the machines.
        compute: where times of compute are from.
        ranking: the best ways, the best one first.
        terms: of their steps' time; empty where nothing depends on them.
        as_it_is: the step of the job as it was given, if that is allowed, fits and can be simulated.
        found: how many were simulated.
        passed: that were not worth it.
        too_large: that do not fit into a host, with the bytes that they take there.
        refused: that cannot be simulated, with the reason.
        host_bytes: of the ranking, of the host that holds the most; None without a limit.
    """

    job: Job
    allowed: Allowed
    placement: Placement
    compute: str
    ranking: Sequence[Found]
    terms: Sequence[Mapping[str, float]]
    as_it_is: Found | None
    found: int
    passed: Sequence[Passed]
    too_large: Sequence[tuple[Candidate, int]]
    refused: Sequence[tuple[Candidate, str]]
    host_bytes: Sequence[int | None]

    @property
    def reasons(self) -> list[str]:
        """The reason why each of the ranking loses; of the first, nothing."""
        winner, own = self.ranking[0], self.terms[0]
        losers = zip(self.ranking[1:], self.terms[1:], strict=True)
        return ["", *(why_it_loses(loser, terms, winner, own) for loser, terms in losers)]


def described(answer: Answer) -> Iterator[str]:
    """The answer in lines."""
    job, network = answer.job, answer.placement.network
    members = counted(job.world.workers, "worker")
    yield f"{job.model.name}, {members}, batch {job.train.batch}; network {network.name}"
    yield f"allowed         {_allowed(answer)}"
    yield f"ways            {_counts(answer)}"
    memory = ["a host"] if answer.host_bytes[0] is not None else []
    rows = [[*_COLUMNS, *memory, "why it loses"]]
    for number, (each, used, reason) in enumerate(
        zip(answer.ranking, answer.host_bytes, answer.reasons, strict=True), 1
    ):
        cells = [] if used is None else [human_bytes(used)]
        rows.append([f"{number}", f"{each.step.seconds:.4g}", *_cells(each.candidate), *cells, reason])
    yield from aligned(rows)
    yield from _others(answer)
    own, best = answer.as_it_is, answer.ranking[0]
    if own is None:
        yield "as it is        not allowed, too large for a host, or not simulated"
    elif own is not best:
        faster = own.step.seconds / best.step.seconds
        yield f"as it is        {own.step.seconds:.4g} s; the first is {faster:.2f} times as fast"
    else:
        yield "as it is        the job is the first itself"


def notes(answer: Answer) -> list[str]:
    """The lines above the winner's job file."""
    best, network = answer.ranking[0], answer.placement.network.name
    own = answer.as_it_is
    told = [f"The best of {_total(answer):,} ways on {network}: {best.step.seconds:.4g} s a step, as predicted."]
    if own is not None and own is not best:
        told.append(f"As it was, the job took {own.step.seconds:.4g} s.")
    return told


def as_json(answer: Answer) -> dict[str, Any]:
    """The answer as results."""
    job, allowed, machines = answer.job, answer.allowed, answer.placement.machines
    rows = zip(answer.ranking, answer.terms, answer.reasons, answer.host_bytes, strict=True)
    winner = answer.ranking[0]
    own = answer.as_it_is
    return {
        "model": job.model.name,
        "workers": job.world.workers,
        "batch": job.train.batch,
        "network": answer.placement.network.name,
        "compute": answer.compute,
        "seed": answer.placement.seed,
        "hosts": allowed.hosts,
        "memory_bytes": machines.memory_bytes,
        "min_density": allowed.min_density,
        "precisions": list(allowed.precisions),
        "min_bits": allowed.min_bits,
        "ways": _total(answer),
        "simulated": answer.found,
        "as_it_is_seconds_per_step": None if own is None else own.step.seconds,
        "ranking": [_row(*row) for row in rows],
        "passed": [
            {
                **each.candidate.way.to_json(),
                "seconds_at_least": each.floor.seconds,
                "reason": why_it_was_passed(each, winner),
            }
            for each in answer.passed
        ],
        "too_large": [
            {
                **each.way.to_json(),
                "host_bytes": needed,
                "reason": _why_too_large(each, needed, machines.memory_bytes),
            }
            for each, needed in answer.too_large
        ],
        "refused": [{**each.way.to_json(), "reason": reason} for each, reason in answer.refused],
    }


def exchange_in_words(way: Way) -> str:
    """`ring`, `4 servers beside`, `1 server apart`."""
    if not way.servers:
        return "ring"
    return f"{counted(way.servers, 'server')} {'beside' if way.beside else 'apart'}"


def _row(each: Found, terms: Mapping[str, float], reason: str, host_bytes: int | None) -> dict[str, Any]:
    candidate = each.candidate
    return {
        **candidate.way.to_json(),
        "hosts": candidate.hosts,
        "where": where(candidate.way),
        **each.step.to_json(),
        "host_bytes": host_bytes,
        "seconds_of": dict(terms),
        "reason": reason or None,
    }


def _cells(candidate: Candidate) -> list[str]:
    way = candidate.way
    share = "" if way.method.sends_all else f" {way.density:g}"
    sends = f"{way.method}{share}" if way.method.selects else "everything"
    if way.value_type != "fp32":
        sends += f" {way.value_type}" + (f"/{way.downlink_value_type}" if way.downlink_value_type != "fp32" else "")
    how = (way.plan, way.fc, f"{way.zero}", way.precision, way.recompute)
    return [exchange_in_words(way), sends, *how, f"{candidate.hosts}"]


def _allowed(answer: Answer) -> str:
    allowed, memory = answer.allowed, answer.placement.machines.memory_bytes
    density = "everything is sent" if allowed.min_density >= 1 else f"density {allowed.min_density:g} and above"
    room = "" if answer.host_bytes[0] is None else f" with {human_bytes(memory)} each"
    if allowed.min_bits < 32:
        density += f"; values of {allowed.min_bits} bits and above"
    return f"{density}; {', '.join(allowed.precisions)}; {counted(allowed.hosts, 'host')}{room}"


def _counts(answer: Answer) -> str:
    parts = [f"{_total(answer):,}: {answer.found:,} simulated, {len(answer.passed):,} passed by"]
    if answer.too_large:
        parts.append(f"{len(answer.too_large):,} do not fit into a host")
    if answer.refused:
        parts.append(f"{len(answer.refused):,} cannot be simulated")
    return ", ".join(parts)


def _total(answer: Answer) -> int:
    return answer.found + len(answer.passed) + len(answer.too_large) + len(answer.refused)


def _why_too_large(candidate: Candidate, needed: int, free: float) -> str:
    """The bytes that are missing, and the reason why a higher stage of ZeRO, which needs fewer, is none."""
    refusal = why_no_higher_stage(candidate)
    return f"takes {human_bytes(needed)} of {human_bytes(free)}" + (f"; {refusal}" if refusal else "")


def _others(answer: Answer) -> Iterator[str]:
    """Lines on those that were not ranked: the term that takes too long, or the reason why it is not known."""
    least: defaultdict[str, list[float]] = defaultdict(list)
    for each in answer.passed:
        least[each.floor.largest].append(each.floor.seconds)
    for name, seconds in sorted(least.items()):
        yield f"passed by       {counted(len(seconds), 'way')} for {name}: at least {min(seconds):.3g} s a step"
    if answer.too_large:
        fewest = min(needed for _, needed in answer.too_large)
        free = human_bytes(answer.placement.machines.memory_bytes)
        yield f"too large       {counted(len(answer.too_large), 'way')}: at least {human_bytes(fewest)} of {free}"
    stuck = Counter(each.way.method for each, _ in answer.too_large if each.way.method.selects)
    for method, count in stuck.items():
        refusal = next(why_no_higher_stage(each) for each, _ in answer.too_large if each.way.method == method)
        yield f"too large       {counted(count, 'way')} with {method}, and no higher stage of ZeRO: {refusal}"
    for reason in dict.fromkeys(reason for _, reason in answer.refused):
        yield f"not simulated   {reason}"
