"""Chains: the order of what one process did, and values that each step finds as the step before left them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

from taihu.core.history.findings import Finding
from taihu.core.history.generations import Life
from taihu.core.history.records import Balance, Push, Returned, Skip, Sum, Update

_WORD: Final = 1 << 64
_PARAMETERS: Final = "the parameters are not those that the step before left"
_RESIDUAL: Final = "the residual is not what the step before left"

Kind = TypeVar("Kind", Push, Sum, Update, Skip, Returned)


class Link(NamedTuple):
    """Bits of a range as a step found them and as it left them."""

    group: int
    start: int
    elements: int
    before: int
    after: int


Chain = dict[int, list[Link]]
"""Links by step."""


def check_life(life: Life) -> Iterator[Finding]:
    """Everything that can be said of one process alone: nothing twice, steps in order, balances, and its chains."""
    member, after, skips = life.begin.member, life.begin.after, _of(life, Skip)
    pushes, sums, updates = _of(life, Push), _of(life, Sum), _of(life, Update)
    skipped = {record.step for record in skips}
    yield from _check_order(member, after, skipped, "pushed", [(p.step, p.attempt, p.start, p.group) for p in pushes])
    yield from _check_order(member, after, skipped, "summed", [(s.step, 0, s.start, s.group) for s in sums])
    yield from _check_order(member, after, skipped, "updated", [(u.step, 0, u.start, u.group) for u in updates])
    for push in pushes:
        if push.balance is not None:
            yield from _check_balance(member, push, push.balance, push.values.bits)
    for total in sums:
        if total.balance is not None and total.squeezed is not None:
            yield from _check_balance(member, total, total.balance, total.squeezed.bits)
    for update in updates:
        if life.begin.precision == "fp32" and update.seen != update.after:
            text = "workers are to read other parameters than it updated"
            yield Finding(update.step, member, text, update.group)
    chains = chains_of(life)
    for link in chains[_RESIDUAL].get(1, ()) if not after else ():
        if link.before:
            yield Finding(1, member, "the residual is not zero before the first step", link.group)
    for name, chain in chains.items():
        steps = sorted(chain)
        for step, following in pairwise(steps):
            yield from check_links(Finding(following, member, name), chain[step], chain[following])


def chains_of(life: Life) -> dict[str, Chain]:
    """The chains of a process, of parameters and of its residual where there is one, by what is said of a break."""
    parameters: Chain = {}
    for update in _of(life, Update):
        link = Link(update.group, update.start, update.elements, update.before, update.after)
        parameters.setdefault(update.step, []).append(link)
    residual: Chain = {}
    records: list[Push | Sum] = [*_of(life, Push), *_of(life, Sum)]
    for record in records:
        if record.balance is not None:
            balance = record.balance
            link = Link(record.group, record.start, record.elements, balance.before, balance.after)
            residual.setdefault(record.step, []).append(link)
    for back in _of(life, Returned):
        links = residual.get(back.step, [])
        links[:] = [_with_returned(link, back) for link in links]
    return {_PARAMETERS: parameters, _RESIDUAL: residual}


def check_links(broken: Finding, before: Sequence[Link], after: Sequence[Link]) -> Iterator[Finding]:
    """Compare what a step left, `before`, with what the following one found; `broken` where they differ.

    Range by range, where both have the same ones; by their sums, where a plan has cut others. Where a step is not
    whole, because the process ended in it, what it has is compared.
    """
    left = {(link.start, link.elements): link for link in before}
    known = [link for link in after if (link.start, link.elements) in left]
    for link in known:
        if left[link.start, link.elements].after != link.before:
            yield replace(broken, group=link.group)
    same_size = sum(link.elements for link in before) == sum(link.elements for link in after)
    if len(known) < len(after) and same_size:
        total = sum(link.after for link in before) - sum(link.before for link in after)
        if total % _WORD:
            yield broken


@dataclass
class _Version:
    """The step that a process has come to."""

    step: int
    attempt: int
    done: set[int]


def _check_order(
    member: str, after: int, skipped: set[int], verb: str, items: Iterable[tuple[int, int, int, int]]
) -> Iterator[Finding]:
    """Steps follow each other without gaps, and each has a range once; items are step, attempt, start, group."""
    place = _Version(after, 0, set())
    for step, attempt, start, group in items:
        while place.step + 1 in skipped and step > place.step + 1:
            place.step += 1
        if step == place.step and attempt == place.attempt:
            if start in place.done or step == after:
                yield Finding(step, member, f"{verb} twice" if start in place.done else "done before", group)
        elif step == place.step + 1 or (step == place.step and attempt > place.attempt):
            place.done = set()
        else:
            yield Finding(step, member, f"{verb} behind step {place.step}; expected step {place.step + 1}", group)
            place.done = set()
        place.step, place.attempt = step, attempt
        place.done.add(start)


def _check_balance(member: str, record: Push | Sum, balance: Balance, sent: int) -> Iterator[Finding]:
    """Sent and kept values are those that were owed, bit for bit."""
    exact = balance.rounded or (balance.after + sent - balance.owed) % _WORD == 0
    if balance.together != balance.owed or not exact:
        yield Finding(
            record.step, member, "residual + sent differs from residual before + gradient, in fp32", record.group
        )


def _with_returned(link: Link, back: Returned) -> Link:
    inside = link.start <= back.start < link.start + link.elements
    return link._replace(after=(link.after + back.after - back.before) % _WORD) if inside else link


def _of(life: Life, kind: type[Kind]) -> list[Kind]:
    return [record for record in life.records if isinstance(record, kind)]
