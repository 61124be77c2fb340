"""Histories of runs that never were: a plain model of training writes what its processes would have recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.core.history.digest import bits_of, digest_of
from taihu.core.history.records import Balance, Begin, End, Push, Read, Record, Sum, Update

__all__ = ["Shape", "histories_of", "shapes"]

Values = NDArray[np.float32]
RATE = np.float32(0.1)


@dataclass(frozen=True)
class Shape:
    """A run: `lives` are the step that each generation begins behind, and the last one of which it did something."""

    servers: int
    workers: int
    zero: int
    sizes: tuple[int, ...]
    compressed: bool
    lives: tuple[tuple[int, int], ...]
    seed: int = 0

    @property
    def groups(self) -> list[tuple[int, int]]:
        stops = np.cumsum(self.sizes).tolist()
        return list(zip([0, *stops[:-1]], stops, strict=True))


@st.composite
def shapes(draw: st.DrawFn, *, least: int = 1, servers: int = 0, workers: int = 1, packed: bool = False) -> Shape:
    """Any shape of a run, of at least so many lives, servers and workers; `packed` gradients are compressed."""
    servers = draw(st.integers(max(servers, int(packed)), 2))
    zero = draw(st.integers(int(packed), 3))
    made, after = [], 0
    for _ in range(draw(st.integers(least - 1, 2))):
        done = after + draw(st.integers(0, 3))
        made.append((after, done))
        after = draw(st.integers(after, done))
    made.append((after, after + draw(st.integers(2, 3))))
    sizes = tuple(draw(st.lists(st.integers(4, 60), min_size=1, max_size=3)))
    compressed = packed or (zero > 0 and servers > 0 and draw(st.booleans()))
    return Shape(
        servers, draw(st.integers(workers, 3)), zero, sizes, compressed, tuple(made), draw(st.integers(0, 99))
    )


@dataclass
class _State:
    """All that outlasts a step."""

    parameters: Values
    residuals: list[Values]

    def copy(self) -> _State:
        return _State(self.parameters.copy(), [values.copy() for values in self.residuals])


@dataclass
class _Book:
    """Records by member."""

    records: dict[str, list[Record]] = field(default_factory=dict)

    def add(self, member: str, record: Record) -> None:
        self.records.setdefault(member, []).append(record)


def histories_of(shape: Shape) -> dict[str, list[Record]]:
    """The history of every process of the run, by member."""
    rng = np.random.default_rng(shape.seed)
    elements = sum(shape.sizes)
    first = _State(rng.standard_normal(elements, dtype=np.float32), [np.zeros(elements, dtype=np.float32)] * 3)
    kept, book = {0: first}, _Book()
    members = [f"server {index}" for index in range(shape.servers)]
    members += [f"worker {rank}" for rank in range(shape.workers)]
    for number, (after, done) in enumerate(shape.lives, 1):
        state = kept[after].copy()
        for member in members:
            begin = Begin(member, number * 77 % 50 + 1, after, shape.servers, shape.workers, shape.zero)
            book.add(member, begin)
        for step in range(after + 1, done + 1):
            _step(shape, state, step, rng, book)
            kept[step] = state.copy()
    for member in members:
        book.add(member, End(shape.lives[-1][1] if member.startswith("worker") else 0))
    return book.records


def _step(shape: Shape, state: _State, step: int, rng: np.random.Generator, book: _Book) -> None:
    for group, (start, stop) in enumerate(shape.groups):
        whole, parts = [(start, stop)], []
        for rank in range(shape.workers):
            gradient = rng.standard_normal(stop - start, dtype=np.float32)
            sent, balance = gradient, None
            if shape.compressed:
                sent, balance = _select(state.residuals[rank][start:stop], gradient, whole)
            parts.append(sent)
            push = Push(step, 0, group, start, stop - start, digest_of(sent, whole), balance)
            book.add(f"worker {rank}", push)
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        _update(shape, state, (step, group, start), (parts, total), book)
        seen = bits_of(state.parameters[start:stop], whole)
        for rank in range(shape.workers):
            book.add(f"worker {rank}", Read(step, group, start, stop - start, seen))


def _select(residual: Values, gradient: Values, bounds: list[tuple[int, int]]) -> tuple[Values, Balance]:
    """Half of what is owed is sent."""
    before = bits_of(residual, bounds)
    residual += gradient
    owed, sent = bits_of(residual, bounds), residual.copy()
    sent[1::2] = 0
    residual[::2] = 0
    return sent, Balance(before, owed, bits_of(residual, bounds), bits_of(residual + sent, bounds))


def _update(
    shape: Shape, state: _State, at: tuple[int, int, int], summed: tuple[Sequence[Values], Values], book: _Book
) -> None:
    (step, group, first), (parts, total) = at, summed
    stop = first + len(total)
    owners = [f"server {index}" for index in range(shape.servers)] or [f"worker {r}" for r in range(shape.workers)]
    new = state.parameters.copy()
    new[first:stop] -= RATE * total
    for owner, (start, end) in zip(owners, _cuts(first, stop, len(owners)), strict=True):
        of_frame, bounds = slice(start - first, end - first), [(start, end)]
        if shape.servers:
            digests = tuple(digest_of(part[of_frame], bounds) for part in parts)
            summed_here = digest_of(total[of_frame], bounds)
            book.add(owner, Sum(step, 0, group, start, end - start, digests, summed_here))
        if shape.zero:
            book.add(owner, _updated((step, group, start), state.parameters, new, total[of_frame]))
    for rank in range(0 if shape.zero else shape.workers):
        book.add(f"worker {rank}", _updated(at, state.parameters, new, total))
    state.parameters = new


def _updated(at: tuple[int, int, int], old: Values, new: Values, gradient: Values) -> Update:
    step, group, start = at
    stop = start + len(gradient)
    bounds = [(start, stop)]
    before, after = (bits_of(values[start:stop], bounds) for values in (old, new))
    return Update(step, group, start, len(gradient), digest_of(gradient, bounds), before, after, after)


def _cuts(start: int, stop: int, parts: int) -> Iterator[tuple[int, int]]:
    for part in range(parts):
        yield start + (stop - start) * part // parts, start + (stop - start) * (part + 1) // parts
