"""Frames of sparse allreduces: values of few bits travel as codes, and nothing else of a result depends on that."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.sparse_network import ALGORITHMS, make_exchange

from taihu.allreduce.order.operation import OperationKey
from taihu.allreduce.sparse.exchange import Slice
from taihu.allreduce.sparse.few_bits import FewBits, StepPieces
from taihu.allreduce.sparse.mesh import SparseFrames, SparseMesh, SparseOperation
from taihu.core.base.errors import FrameError
from taihu.core.wire.frames.headers import At, Frame, FrameHeader, ValueType, frame_of
from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.kernels.packing.few_bits import codes_bytes, largest_multiple, take_multiples

TYPES = (ValueType.INT8, ValueType.INT4, ValueType.INT2)
KEY = OperationKey(At(1, 0), 0)


def few_bits_of(rng: np.random.Generator, value_type: ValueType, bounds: NDArray[np.int64]) -> tuple[Slice, FewBits]:
    """Some of normal values of any magnitude: decoded, and in codes; some pieces may have none."""
    elements, bits = int(bounds[-1, 1]), value_type.few_bits
    values = (rng.standard_normal(elements) * 10.0 ** rng.integers(-6, 6)).astype(np.float32)
    chosen = np.flatnonzero(rng.random(elements) < rng.choice([0.0, 0.02, 0.5, 1.0])).astype(np.int32)
    codes, steps = np.empty(len(chosen), dtype=np.uint8), np.empty(len(bounds), dtype=np.float32)
    decoded = np.empty(len(chosen), dtype=np.float32)
    for number, (start, stop) in enumerate(bounds):
        inside = (chosen >= start) & (chosen < stop)
        of_piece = np.empty(int(inside.sum()), dtype=np.uint8)
        steps[number] = take_multiples(values, chosen[inside], of_piece, bits)
        codes[inside] = of_piece
        decoded[inside] = (of_piece.astype(np.float64) - largest_multiple(bits)) * np.float64(steps[number])
    return Slice(chosen, decoded), FewBits(StepPieces(value_type, bounds), steps, chosen, codes)


class Ranks:
    """Meshes of all ranks, and the frames under way between them."""

    def __init__(self, algorithm: str, brought: Sequence[tuple[Slice, FewBits | None]], elements: int) -> None:
        self.under_way: list[tuple[int, Frame]] = []
        size = len(brought)
        self.operations = [SparseOperation(KEY, few_bits=few_bits) for _, few_bits in brought]
        self.meshes = [
            SparseMesh(SparseFrames(WorkerIdentity("job", rank, 1), self._send), Counter()) for rank in range(size)
        ]
        self.exchanges = [
            make_exchange(algorithm, own, rank=rank, size=size, elements=elements, k=max(1, elements // 20))
            for rank, (own, _) in enumerate(brought)
        ]

    def run(self, seed: int) -> None:
        """Begin all and deliver all, in any order that keeps that of two ranks' frames."""
        pick = random.Random(seed)
        waiting = list(range(len(self.meshes)))
        while waiting or self.under_way:
            number = pick.randrange(len(waiting) + len(self.under_way))
            if number < len(waiting):
                rank = waiting.pop(number)
                self.meshes[rank].begin(self.operations[rank], self.exchanges[rank])
                continue
            to, frame = self.under_way[number - len(waiting)]
            pair = (to, frame.header.sender)
            first = next(n for n, (rank, each) in enumerate(self.under_way) if (rank, each.header.sender) == pair)
            self.meshes[to].take(self.under_way.pop(first)[1])

    def _send(self, to: int, header: FrameHeader, pieces: Sequence[NDArray[Any]]) -> None:
        payload = np.concatenate([piece.view(np.uint8) for piece in pieces])
        header.check(len(payload))
        self.under_way.append((to, frame_of(header, payload)))


def bits(part: Slice) -> tuple[bytes, bytes]:
    return part.indices.tobytes(), part.values.tobytes()


@st.composite
def pieces(draw: st.DrawFn) -> NDArray[np.int64]:
    elements = draw(st.integers(1, 2000))
    cuts = draw(st.sets(st.integers(1, max(1, elements - 1)), max_size=6)) - {elements}
    ends = [0, *sorted(cuts), elements]
    return np.array(list(pairwise(ends)), dtype=np.int64)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(deadline=None, max_examples=40)
@given(pieces(), st.integers(1, 5), st.sampled_from(TYPES), st.integers(0, 999))
def test_codes_change_no_bit_of_a_result(
    algorithm: str, bounds: NDArray[np.int64], size: int, value_type: ValueType, seed: int
) -> None:
    rng, elements = np.random.default_rng(seed), int(bounds[-1, 1])
    brought = [few_bits_of(rng, value_type, bounds) for _ in range(size)]
    coded = Ranks(algorithm, brought, elements)
    plain = Ranks(algorithm, [(own, None) for own, _ in brought], elements)
    for ranks in (coded, plain):
        ranks.run(seed)
    for one, other in zip(coded.exchanges, plain.exchanges, strict=True):
        assert bits(one.result()) == bits(other.result())
        assert bits(one.returned()) == bits(other.returned())
    if algorithm == "allgather":
        for (own, _), left, right in zip(brought, coded.operations, plain.operations, strict=True):
            values, count = codes_bytes(len(own.indices), value_type.few_bits), len(own.indices)
            saved = (size - 1) * (4 * count - values - 2 * len(bounds))
            assert right.sent_bytes - left.sent_bytes == saved


def test_a_step_that_is_no_number_reaches_all() -> None:
    rng, bounds = np.random.default_rng(0), np.array([[0, 50], [50, 100]], dtype=np.int64)
    brought = [few_bits_of(rng, ValueType.INT4, bounds) for _ in range(2)]
    indices = np.array([3, 60], dtype=np.int32)
    steps = np.array([np.nan, 1.0], dtype=np.float32)
    few_bits = FewBits(StepPieces(ValueType.INT4, bounds), steps, indices, np.array([7, 9], dtype=np.uint8))
    brought[1] = Slice(indices, np.array([np.nan, 2.0], dtype=np.float32)), few_bits
    ranks = Ranks("allgather", brought, 100)
    ranks.run(1)
    for exchange in ranks.exchanges:
        total = exchange.result()
        assert np.isnan(total.values[total.indices == 3]).all()
        assert np.isfinite(total.values[total.indices == 60]).all()


@pytest.mark.parametrize("is_coded", [True, False])
def test_a_slice_that_goes_to_all_is_packed_once(is_coded: bool) -> None:
    own, few_bits = few_bits_of(np.random.default_rng(3), ValueType.INT4, np.array([[0, 300]], dtype=np.int64))
    ranks = Ranks("allgather", [(own, few_bits if is_coded else None)] * 4, 300)
    sent: list[Sequence[NDArray[Any]]] = []
    frames = SparseFrames(WorkerIdentity("job", 0, 1), lambda to, header, pieces: sent.append(pieces))
    mesh = SparseMesh(frames, Counter())
    mesh.begin(ranks.operations[0], ranks.exchanges[0])
    assert len(sent) == 3
    assert all(one is other for pieces in sent for one, other in zip(pieces, sent[0], strict=True))


def with_sections(change: Callable[[NDArray[np.uint8]], NDArray[np.uint8]]) -> Callable[[Frame], Frame]:
    return lambda frame: Frame(frame.header, frame.values, change(frame.sections))


DEFECTS: dict[str, tuple[Callable[[Frame], Frame], str]] = {
    "another type of few bits": (
        lambda frame: Frame(replace(frame.header, value_type=ValueType.INT8), frame.values, frame.sections),
        "with int8 values: expected float32 or int4 ones",
    ),
    "halves": (
        lambda frame: Frame(replace(frame.header, value_type=ValueType.BF16), frame.values, frame.sections),
        "values: expected float32 or int4 ones",
    ),
    "steps are missing": (with_sections(lambda sections: sections[:3]), "expected 2 steps before places"),
    "places are missing": (with_sections(lambda sections: sections[:4]), "section"),
    "a code that means nothing": (
        lambda frame: Frame(frame.header, np.full_like(frame.values, 0xFF), frame.sections),
        "means no value",
    ),
    "a code too few": (lambda frame: Frame(frame.header, frame.values[:-1], frame.sections), "bytes"),
}


@pytest.mark.parametrize("defect", sorted(DEFECTS))
def test_bad_codes_are_refused_and_change_nothing(defect: str) -> None:
    rng, bounds = np.random.default_rng(5), np.array([[0, 500], [500, 1000]], dtype=np.int64)
    brought: list[tuple[Slice, FewBits | None]] = []
    while len(brought) < 2:
        own, few_bits = few_bits_of(rng, ValueType.INT4, bounds)
        if 10 < len(own.indices) < 1000:
            brought.append((own, few_bits))
    ranks = Ranks("allgather", brought, 1000)
    ranks.meshes[0].begin(ranks.operations[0], ranks.exchanges[0])
    ranks.meshes[1].begin(ranks.operations[1], ranks.exchanges[1])
    change, message = DEFECTS[defect]
    to, frame = ranks.under_way[0]
    with pytest.raises(FrameError, match=message):
        ranks.meshes[to].take(change(frame))
    while ranks.under_way:
        to, frame = ranks.under_way.pop(0)
        ranks.meshes[to].take(frame)
    assert bits(ranks.exchanges[0].result()) == bits(ranks.exchanges[1].result())


def test_codes_are_refused_where_nobody_sends_them() -> None:
    rng, bounds = np.random.default_rng(5), np.array([[0, 500]], dtype=np.int64)
    brought = [few_bits_of(rng, ValueType.INT4, bounds) for _ in range(2)]
    ranks = Ranks("allgather", [brought[0], (brought[1][0], None)], 500)
    for mesh, operation, exchange in zip(ranks.meshes, ranks.operations, ranks.exchanges, strict=True):
        mesh.begin(operation, exchange)
    frame = next(frame for to, frame in ranks.under_way if to == 1)
    with pytest.raises(FrameError, match="with int4 values: expected float32 ones"):
        ranks.meshes[1].take(frame)
