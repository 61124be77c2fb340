"""One step of all processes: each update is made of exactly one push of every rank, and nothing else. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from taihu.core.history.digest import Digest
from taihu.core.history.findings import Finding
from taihu.core.history.generations import Generation
from taihu.core.history.records import ALL, Begin, End, Push, Read, Record, Returned, Skip, Sum, Update
from taihu.core.traits.stages import stage_of

_WORD: Final = 1 << 64
# Half the distance from 1 to the next value.
_ROUNDING: Final = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
_SMALLEST: Final = {"fp32": 0.0, "fp16": 2.0**-24, "bf16": 0.0}


@dataclass
class Step:
    """The records of one step, by rank of the worker or index of the server.

    `cut_off` are ranks that may have been lost in it: what they lack of it they read from the checkpoint behind it.
    """

    number: int
    begin: Begin
    pushes: dict[int, dict[int, Push]] = field(default_factory=lambda: defaultdict(dict))
    returned: list[Returned] = field(default_factory=list)
    sums: list[tuple[int, Sum]] = field(default_factory=list)
    updates: list[tuple[str, Update]] = field(default_factory=list)
    reads: list[tuple[int, Read]] = field(default_factory=list)
    skips: set[int] = field(default_factory=set)
    cut_off: frozenset[int] = frozenset()

    def add(self, role: str, index: int, record: Record) -> None:
        """Take in a record of worker or server `index`."""
        match record:
            case Push():
                known = self.pushes[index].get(record.group)
                if known is None or known.attempt < record.attempt:
                    self.pushes[index][record.group] = record
            case Returned():
                self.returned.append(record)
            case Sum():
                self.sums.append((index, record))
            case Update():
                self.updates.append((f"{role} {index}", record))
            case Read():
                self.reads.append((index, record))
            case Skip():
                self.skips.add(index)

    @property
    def elements(self) -> int:
        """Elements that are exchanged, as the first worker says."""
        return sum(push.elements for push in self.pushes.get(0, {}).values())

    def of_group(self, group: int) -> list[tuple[str, Update]]:
        """The updates of a group; all of those of a step whose groups were updated together."""
        return [(member, update) for member, update in self.updates if update.group == group]


def steps_of(generation: Generation) -> dict[int, Step]:
    """The steps of a generation by their numbers; of a step that was replayed, the last attempt at it."""
    steps: dict[int, Step] = {}
    for role, members in (("worker", generation.workers()), ("server", generation.servers())):
        for index, life in members:
            for record in life.records:
                if not isinstance(record, Begin | End):
                    steps.setdefault(record.step, Step(record.step, generation.begin)).add(role, index, record)
    return steps


def check_step(step: Step) -> Iterator[Finding]:
    """Everything that processes must agree on in a step that counts."""
    if step.skips:
        yield from _check_skip(step)
        return
    missing = list(_check_pushes(step))
    yield from missing
    if missing or not step.pushes:
        if not step.pushes:
            yield Finding(step.number, "", "no worker pushed anything")
        return
    if step.begin.servers:
        yield from _check_sums(step)
    yield from _check_updates(step)
    yield from check_reads(step, step.reads)


def _check_skip(step: Step) -> Iterator[Finding]:
    for rank in range(step.begin.workers):
        if rank not in step.skips:
            yield Finding(step.number, f"worker {rank}", "it skipped no step, as others did")
        if step.pushes.get(rank):
            yield Finding(step.number, f"worker {rank}", "it pushed in a step that is skipped")
    for member, update in step.updates:
        yield Finding(step.number, member, "it updated in a step that is skipped", update.group)


def _check_pushes(step: Step) -> Iterator[Finding]:
    """Every rank pushes the same groups."""
    groups = sorted({group for pushes in step.pushes.values() for group in pushes})
    for group in groups:
        ranges = [
            (push.start, push.elements) for pushes in step.pushes.values() if (push := pushes.get(group)) is not None
        ]
        usual = max(set(ranges), key=ranges.count)
        for rank in range(step.begin.workers):
            push = step.pushes.get(rank, {}).get(group)
            if push is None:
                yield Finding(step.number, f"worker {rank}", "no push", group)
            elif (push.start, push.elements) != usual:
                yield Finding(step.number, f"worker {rank}", f"pushed {push.elements} other elements", group)


def _check_sums(step: Step) -> Iterator[Finding]:
    """Every frame of a group is summed once, of what its workers pushed, in rank order."""
    workers = range(step.begin.workers)
    for group, first in step.pushes[0].items():
        sums = [(index, each) for index, each in step.sums if each.group == group]
        parts = [0] * len(workers)
        for index, each in sums:
            if len(each.parts) != len(workers):
                text = f"a sum of {len(each.parts)} pushes; expected one of each of {len(workers)} workers"
                yield Finding(step.number, f"server {index}", text, group)
                return
            for rank, part in enumerate(each.parts):
                parts[rank] = (parts[rank] + part.bits) % _WORD
            if each.total is not None and not _adds_up(each.total, each.parts, "fp32", each.elements):
                text = "the sum is not what its pushes add up to"
                yield Finding(step.number, f"server {index}", text, group)
        summed = sum(each.elements for _, each in sums)
        if summed != first.elements:
            yield Finding(step.number, "", f"{summed} elements were summed; expected {first.elements}", group)
            continue
        for rank in workers:
            if parts[rank] != step.pushes[rank][group].values.bits:
                text = f"what was summed in the place of rank {rank} is not what it pushed"
                yield Finding(step.number, f"worker {rank}", text, group)


def _check_updates(step: Step) -> Iterator[Finding]:
    """Every element is updated once, by whoever owns it, by the sum of its pushes."""
    begin = step.begin
    together = [ALL] if step.of_group(ALL) else sorted(step.pushes[0])
    for group in together:
        updates = step.of_group(group)
        if not stage_of(begin.zero).divides_optimizer:
            yield from _check_replicas(step, group, updates)
        elif begin.servers:
            yield from _check_servers(step, group, updates)
        else:
            yield from _check_whole(step, group, "", updates)


def _check_servers(step: Step, group: int, updates: Sequence[tuple[str, Update]]) -> Iterator[Finding]:
    known = {(member, update.start): update for member, update in updates}
    for index, each in step.sums:
        if each.group != group:
            continue
        member = f"server {index}"
        update = known.pop((member, each.start), None)
        total = each.total if each.squeezed is None else each.squeezed
        if update is None:
            yield Finding(step.number, member, "a sum was not applied", group)
        elif _bits(update.gradient) != _bits(total) or update.elements != each.elements:
            yield Finding(step.number, member, "what was applied is not what was summed", group)
        elif update.gradient is None and update.before != update.after:
            yield Finding(step.number, member, "a step that is skipped changed parameters", group)
    for member, _ in known:
        yield Finding(step.number, member, "an update of what was not summed", group)


def _check_replicas(step: Step, group: int, updates: Sequence[tuple[str, Update]]) -> Iterator[Finding]:
    """Every worker updates all elements, and alike; one that was cut off, some of them."""
    made: dict[str, dict[int, tuple[int, int | None, int]]] = {}
    for rank in range(step.begin.workers):
        member = f"worker {rank}"
        own = [(name, update) for name, update in updates if name == member]
        if rank not in step.cut_off:
            yield from _check_whole(step, group, member, own)
        made[member] = {each.start: (each.elements, _bits(each.gradient), each.after) for _, each in own}
    for rank, (member, own_updates) in enumerate(made.items()):
        is_part = rank in step.cut_off and own_updates.items() <= made["worker 0"].items()
        if not is_part and own_updates != made["worker 0"]:
            yield Finding(step.number, member, "its update differs from that of worker 0", group)


def _check_whole(step: Step, group: int, member: str, updates: Sequence[tuple[str, Update]]) -> Iterator[Finding]:
    """Updates cover a group, and their sums are what its pushes, less what came back, add up to."""
    groups = sorted(step.pushes[0]) if group == ALL else [group]
    expected = sum(step.pushes[0][each].elements for each in groups)
    seen = sum(update.elements for _, update in updates)
    if seen != expected:
        yield Finding(step.number, member, f"{seen} elements were updated; expected {expected}", group)
        return
    gradients = [update.gradient for _, update in updates if update.gradient is not None]
    if step.begin.servers:
        sums = sum(each.total.bits for _, each in step.sums if each.group in groups and each.total is not None)
        if (sum(each.bits for each in gradients) - sums) % _WORD:
            yield Finding(step.number, member, "what was applied is not what servers summed", group)
        return
    pushed = [step.pushes[rank][each].values for rank in range(step.begin.workers) for each in groups]
    back = [each.values for each in step.returned if each.group in groups]
    total = _together(gradients + back)
    if total is not None and not _adds_up(total, pushed, step.begin.precision, expected):
        yield Finding(step.number, member, "what was applied is not what all ranks pushed", group)


def check_reads(step: Step, reads: Sequence[tuple[int, Read]]) -> Iterator[Finding]:
    """Whoever reads a group after the step, by rank, has its parameters as they were updated."""
    seen = _seen(step) if step.pushes and not step.skips else {}
    for rank, read in reads:
        expected = seen.get((read.start, read.elements))
        if expected is not None and expected != read.seen:
            text = "the parameters that it read are not those that were updated"
            yield Finding(step.number, f"worker {rank}", text, read.group)


def _seen(step: Step) -> dict[tuple[int, int], int]:
    """Bits of the parameters after a step as they are read, by the ranges of groups, and of all."""
    divides = stage_of(step.begin.zero).divides_optimizer
    updates = [update for member, update in step.updates if divides or member == "worker 0"]
    seen = {}
    for group, push in step.pushes[0].items():
        own = [update for update in updates if update.group == group]
        if sum(update.elements for update in own) == push.elements:
            seen[push.start, push.elements] = sum(update.seen for update in own) % _WORD
    if sum(update.elements for update in updates) == step.elements:
        seen[0, step.elements] = sum(update.seen for update in updates) % _WORD
    return seen


def _adds_up(total: Digest, parts: Sequence[Digest], precision: str, elements: int) -> bool:
    """Whether a sum is that of its parts, as far as additions round; true where something is not finite."""
    whole = _together(parts)
    if whole is None or whole.total is None or whole.size is None or total.total is None:
        return True
    # Weights are at most 2; each addition rounds to half a unit of a sum that is no larger than all magnitudes.
    bound = 2.0 * len(parts) * (_ROUNDING[precision] * whole.size + _SMALLEST[precision] * elements)
    return abs(whole.total - total.total) <= bound + 1e-9 * whole.size


def _together(digests: Iterable[Digest]) -> Digest | None:
    """The digest of all; None where one is not finite."""
    bits, total, size = 0, 0.0, 0.0
    for each in digests:
        if each.total is None or each.size is None:
            return None
        bits, total, size = (bits + each.bits) % _WORD, total + each.total, size + each.size
    return Digest(bits, total, size)


def _bits(digest: Digest | None) -> int | None:
    return None if digest is None else digest.bits
