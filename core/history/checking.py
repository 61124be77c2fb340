"""The check of a whole history against a model of training. Pure.

The model: in every step that counts each rank pushes each group once; each frame of it is summed once, of these
pushes in rank order; each element is updated once by its sum, by whoever owns it, and every worker that reads it then
reads that. Steps follow each other. What one step leaves of parameters and residuals the next one finds, also the
first one of a generation behind the checkpoint from which it began. What was sent and what was held back are what was
owed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from taihu.core.history.chains import chains_of, check_life, check_links
from taihu.core.history.findings import Finding
from taihu.core.history.generations import Generation, Life, begins, generations_of, lives_of
from taihu.core.history.records import Begin, End, Push, Record
from taihu.core.history.steps import Step, check_reads, check_step, steps_of


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check.

    Attributes:
        findings: what is wrong, first what came first.
        processes: whose histories were checked.
        generations: that were begun.
        first: the first step that counts, and was checked.
        last: the last one.
        records: that were read.
        has_ended: whether every process has told the end of the run.
        made_again: steps that worker 0 had completed, and a later generation has made again.
    """

    findings: tuple[Finding, ...]
    processes: int
    generations: int
    first: int
    last: int
    records: int
    has_ended: bool
    made_again: int


def check_histories(histories: Sequence[Sequence[Record]]) -> Verdict:
    """Check the histories of all processes of a run."""
    findings: list[Finding] = []
    lives: list[list[Life]] = []
    for history in histories:
        own, wrong = lives_of(history)
        lives.append(own)
        findings += wrong
    generations, wrong = generations_of(lives)
    findings += wrong
    if generations and not findings:
        findings += _check(generations)
    findings.sort(key=lambda finding: (finding.generation, finding.step, finding.group, finding.member))
    return Verdict(
        tuple(findings),
        processes=len(histories),
        generations=len(generations),
        first=min((each.after for each in generations), default=0) + 1,
        last=max((each.upto for each in generations), default=0),
        records=sum(map(len, histories)),
        has_ended=bool(generations) and generations[-1].has_ended,
        made_again=_made_again(generations),
    )


def _made_again(generations: Sequence[Generation]) -> int:
    """Completed steps that were begun again: who pushes gradients of a step has read what the one before led to."""
    again = completed = 0
    for generation in generations:
        first = generation.lives.get("worker 0")
        pushed = (each.step for each in first.records if isinstance(each, Push)) if first is not None else ()
        last = max(pushed, default=0)
        again += max(0, min(completed, last) - generation.after)
        completed = max(completed, last - 1)
    return again


def _check(generations: Sequence[Generation]) -> Iterator[Finding]:
    yield from _check_members(generations)
    elements = 0
    for generation in generations:
        for finding in _check_generation(generation):
            yield replace(finding, generation=generation.place)
        for step in _counted(generation):
            if elements and step.elements != elements and not step.skips:
                text = f"{step.elements} elements were pushed; other steps have {elements}"
                yield Finding(step.number, "", text, generation=generation.place)
            elements = elements or step.elements
    yield from _check_seams(generations)


def _check_members(generations: Sequence[Generation]) -> Iterator[Finding]:
    """Every member of the world has a history, and nobody else; those of generations that count are whole."""
    known = {member for generation in generations for member in generation.lives}
    unknown = _world(generations[-1].begin) - known
    for member in sorted(unknown):
        yield Finding(0, member, "it has no history; put the files of all processes into one folder")
    strangers: dict[str, Begin] = {}
    for generation in generations:
        strangers |= dict.fromkeys(generation.lives.keys() - _world(generation.begin), generation.begin)
    for member, begin in sorted(strangers.items()):
        yield Finding(0, member, f"outside the world of {begin.servers} servers and {begin.workers} workers")
    for generation in generations:
        world = _world(generation.begin) if generation.upto > generation.after else set()
        for member in sorted(world - generation.lives.keys()) if not unknown else []:
            text = "it has no history of a generation whose steps count"
            yield Finding(generation.after + 1, member, text, generation=generation.place)


def _world(begin: Begin) -> set[str]:
    """All members of a generation, which may have more or fewer servers than another one."""
    return {f"server {index}" for index in range(begin.servers)} | {f"worker {r}" for r in range(begin.workers)}


def _check_generation(generation: Generation) -> Iterator[Finding]:
    for life in generation.lives.values():
        yield from check_life(life)
    for step in _counted(generation):
        yield from check_step(step)
    for rank, life in generation.workers() if generation.has_ended else ():
        last = max((record.step for record in life.records if begins(record)), default=generation.upto)
        if life.end is not None and max(last, life.end.step) > min(life.end.step, generation.upto):
            text = f"it did step {last} and ended behind step {life.end.step}, the run behind step {generation.upto}"
            yield Finding(max(last, life.end.step), f"worker {rank}", text)


def _counted(generation: Generation) -> Iterator[Step]:
    steps = steps_of(generation)
    for number in range(generation.after + 1, generation.upto + 1):
        step = steps.get(number) or Step(number, generation.begin)
        if number == generation.upto and not generation.has_ended:
            step.cut_off = _cut_off(generation)
        yield step


def _cut_off(generation: Generation) -> frozenset[int]:
    """Ranks that did nothing behind the last step that counts; that of worker 0 is whole, which has kept it."""
    last = {rank: max((_step_of(each) for each in life.records), default=0) for rank, life in generation.workers()}
    return frozenset(rank for rank, step in last.items() if rank and step <= generation.upto)


def _step_of(record: Record) -> int:
    return 0 if isinstance(record, Begin | End) else record.step


def _check_seams(generations: Sequence[Generation]) -> Iterator[Finding]:
    """A generation begins with what the checkpoint's step left, in the generation where that step counts."""
    for generation in generations:
        after, earlier = generation.after, generations[: generation.place - 1]
        owner = next((each for each in reversed(earlier) if each.after < after <= each.upto), None)
        if owner is None:
            continue
        left_step = steps_of(owner).get(after)
        if left_step is not None and after in (steps := steps_of(generation)):
            for finding in check_reads(left_step, steps[after].reads):
                yield replace(finding, generation=generation.place)
        is_divided_anew = owner.begin.servers != generation.begin.servers
        for member, life in generation.lives.items():
            if is_divided_anew and member.startswith("server"):
                continue  # it has another part of the parameters
            former = chains_of(owner.lives[member]) if member in owner.lives else {}
            for name, chain in chains_of(life).items():
                left, found = former.get(name, {}).get(after), chain.get(after + 1)
                if left and found:
                    broken = Finding(after + 1, member, name, generation=generation.place)
                    yield from check_links(broken, left, found)
