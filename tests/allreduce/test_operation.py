"""Operations of one ring against NumPy, without a network: sums of every type, what is scaled, and what is told."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.allreduce.order.operation import Operation, OperationKey, Segment, reduce_kind
from taihu.allreduce.ring.schedule import (
    Broadcast,
    Phase,
    Ring,
    buffer_layout,
    cut_chunks,
    summation_order,
    summed_by,
)
from taihu.core.base.errors import FrameError
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.groups import Group
from taihu.core.planner.partition import FrameSpec, Shard, slice_bounds
from taihu.core.wire.frames.headers import At, FrameHeader, ValueType
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Parameters, RingSegment
from taihu.kernels.base.half import from_half, to_half

Values = NDArray[Any]
KEY = OperationKey(At(3, 7, 1), 2)
TYPES = (ValueType.FP32, ValueType.FP64, ValueType.FP16, ValueType.BF16)


def header_of(segment: Segment, kind: ValueType) -> FrameHeader:
    frame = segment.frame
    address = KEY.range(frame.offset, frame.count)
    return FrameHeader(Sender(1, 0), address, RingSegment(segment.hop), value_type=kind)


def encoded(values: NDArray[np.float32], kind: ValueType) -> Values:
    if kind.half_kind is None:
        return values.astype(kind.dtype)
    codes = np.empty(values.shape, dtype=np.uint16)
    to_half(values, kind.half_kind, codes)
    return codes


def decoded(values: Values, kind: ValueType) -> NDArray[np.float64]:
    if kind.half_kind is None:
        return values.astype(np.float64)
    wide = np.empty(values.shape, dtype=np.float32)
    from_half(values, kind.half_kind, wide)
    return wide.astype(np.float64)


def added(left: Values, right: Values, kind: ValueType) -> Values:
    """The sum in the type itself; of 16 bits, rounded from fp32."""
    if kind.half_kind is None:
        return left + right
    return encoded((decoded(left, kind) + decoded(right, kind)).astype(np.float32), kind)


def scaled(values: Values, factor: float, kind: ValueType) -> Values:
    if kind.half_kind is None:
        return np.multiply(values, factor, dtype=kind.dtype)
    return encoded((decoded(values, kind) * factor).astype(np.float32), kind)


@dataclass
class Told:
    """Parts that an operation told of, as ranges of the group."""

    completed: list[tuple[int, int]] = field(default_factory=list)
    final: list[tuple[int, int]] = field(default_factory=list)


def exchange(operations: Sequence[Operation], random: Random, *, in_place: bool) -> None:
    """Carry segments from each rank to the next until nothing is under way."""
    size = len(operations)
    links: list[deque[tuple[FrameHeader, Values]]] = [deque() for _ in range(size)]

    def send(rank: int, segment: Segment) -> None:
        values = np.concatenate(operations[rank].views(segment))
        links[rank].append((header_of(segment, operations[rank].value_type), values))

    for rank, operation in enumerate(operations):
        for segment in operation.schedule.first_segments():
            send(rank, segment)
    while any(links):
        sender = random.choice([rank for rank in range(size) if links[rank]])
        header, values = links[sender].popleft()
        receiver = operations[(sender + 1) % size]
        places = receiver.places(header) if in_place else None
        if places is not None:
            (place,) = places
            place[:] = values
        forward = receiver.take(header, values, in_place=places is not None)
        if forward is not None:
            send((sender + 1) % size, forward)


def pieces(operation: Operation, told: Told) -> None:
    """Note what is told."""
    operation.on_complete = lambda frame: told.completed.append((frame.offset, frame.count))
    operation.on_final = lambda frames: told.final.extend((frame.offset, frame.count) for frame in frames)


def chunks_of(sizes: Sequence[int], ranks: int, segment: int) -> list[tuple[FrameSpec, ...]]:
    layout = Layout(tuple(LayerSpec(f"l{i}", (TensorSpec("w", (size,)),)) for i, size in enumerate(sizes)))
    return [Shard(layout, ranks, rank).frames((Group(0, len(sizes) - 1),), segment) for rank in range(ranks)]


def expected_sum(arenas: Sequence[Values], sizes: Sequence[int], scale: float, kind: ValueType) -> Values:
    """Slice c of every layer, added in the order of ranks c, c + 1, ...: plain loops."""
    total, begin = np.zeros_like(arenas[0]), 0
    for elements in sizes:
        for chunk in range(len(arenas)):
            start, stop = (begin + bound for bound in slice_bounds(elements, len(arenas), chunk))
            first, *others = summation_order(chunk, len(arenas))
            part = arenas[first][start:stop].copy()
            for rank in others:
                part = added(arenas[rank][start:stop], part, kind)
            total[start:stop] = part if scale == 1.0 else scaled(part, scale, kind)
        begin += elements
    return total


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(TYPES),
    ranks=st.integers(2, 5),
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=3),
    segment=st.integers(1, 9),
    scale=st.sampled_from([1.0, 0.25, 2.0]),
    in_place=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_all_ranks_end_with_the_scaled_sum_bit_for_bit(
    *, kind: ValueType, ranks: int, sizes: list[int], segment: int, scale: float, in_place: bool, random: Random
) -> None:
    draw = np.random.default_rng(random.randrange(2**32))
    arenas = [encoded(draw.standard_normal(sum(sizes)).astype(np.float32), kind) for _ in range(ranks)]
    expected = expected_sum(arenas, sizes, scale, kind)
    chunks = chunks_of(sizes, ranks, segment)
    told = [Told() for _ in range(ranks)]
    operations = [Operation(KEY, arena, kind, Ring(rank, chunks), scale=scale) for rank, arena in enumerate(arenas)]
    for operation, said in zip(operations, told, strict=True):
        pieces(operation, said)
    exchange(operations, random, in_place=in_place)
    everything = sorted((frame.offset, frame.count) for chunk in chunks for frame in chunk)
    for rank, operation in enumerate(operations):
        assert operation.schedule.done
        assert operation.values.tobytes() == expected.tobytes()
        assert sorted(told[rank].final) == everything
        assert told[rank].completed == [(frame.offset, frame.count) for frame in chunks[(rank + 1) % ranks]]
        # All chunks but the own one, and all but the next one once more.
        lengths = [sum(frame.count for frame in chunk) for chunk in chunks]
        received = 2 * sum(lengths) - lengths[rank] - lengths[(rank + 1) % ranks]
        assert operation.received_bytes == received * kind.dtype.itemsize
        assert operation.sent_bytes == 0  # whoever sends counts


def test_results_may_lie_elsewhere() -> None:
    """As with ZeRO: gradients are summed in one arena, and what an owner makes of its part goes round in another."""
    ranks, sizes = 3, [7, 5]
    chunks = chunks_of(sizes, ranks, 2)
    gradients = [np.arange(12, dtype=np.float32) * (rank + 1) for rank in range(ranks)]
    results = [np.full(12, np.nan, dtype=np.float32) for _ in range(ranks)]
    total = expected_sum([gradient.copy() for gradient in gradients], sizes, 1.0, ValueType.FP32)
    operations = [
        Operation(KEY, gradients[rank], ValueType.FP32, Ring(rank, chunks), results=results[rank])
        for rank in range(ranks)
    ]

    def own_part(operation: Operation, place: Values) -> None:
        def update(frame: FrameSpec) -> None:
            for piece in frame.pieces:
                part = slice(piece.start, piece.stop)
                place[part] = 100.0 - operation.values[part]

        operation.on_complete = update

    for operation, place in zip(operations, results, strict=True):
        own_part(operation, place)
    exchange(operations, Random(3), in_place=True)
    for place in results:
        np.testing.assert_array_equal(place, 100.0 - total)


def test_the_two_phases_apart_do_what_both_do() -> None:
    ranks, sizes = 4, [9, 2]
    chunks = chunks_of(sizes, ranks, 2)
    arenas = [np.arange(11, dtype=np.float32) * 3**rank for rank in range(ranks)]
    total = expected_sum([arena.copy() for arena in arenas], sizes, 1.0, ValueType.FP32)
    phases: tuple[Phase, ...] = ("reduce-scatter", "allgather")
    for phase in phases:
        schedules = [Ring(rank, chunks, phase) for rank in range(ranks)]
        for rank, schedule in enumerate(schedules):
            sent = [sum(frame.count for frame in chunks[(rank - behind) % ranks]) for behind in range(ranks)]
            # The first three of its way round, and of the summed ones the own, then those that come from behind.
            expected = sent[:3] if phase == "reduce-scatter" else [sent[3], sent[0], sent[1]]
            assert schedule.sent_elements == sum(expected)
        operations = [
            Operation(KEY, arena, ValueType.FP32, schedule) for arena, schedule in zip(arenas, schedules, strict=True)
        ]
        exchange(operations, Random(5), in_place=False)
        for rank, arena in enumerate(arenas):
            held = range(ranks) if phase == "allgather" else [summed_by(rank, ranks)]
            for frame in (frame for chunk in held for frame in chunks[chunk]):
                for piece in frame.pieces:
                    assert arena[piece.start : piece.stop].tolist() == total[piece.start : piece.stop].tolist()


@pytest.mark.parametrize("kind", TYPES)
def test_a_single_rank_scales_its_own_values(kind: ValueType) -> None:
    values = encoded(np.arange(1, 8, dtype=np.float32), kind)
    for scale in (1.0, 0.5, 2.0):
        told = Told()
        operation = Operation(KEY, values.copy(), kind, Ring(0, chunks_of([3, 4], 1, 3)), scale=scale)
        pieces(operation, told)
        (frames,) = chunks_of([3, 4], 1, 3)
        operation.finish_alone(frames)
        np.testing.assert_array_equal(decoded(operation.values, kind), scale * np.arange(1, 8))
        assert told.completed == told.final == [(frame.offset, frame.count) for frame in frames]


def test_values_are_received_in_place_where_they_replace_one_range_of_the_same_type() -> None:
    (frame,) = chunks_of([4], 1, 9)[0]
    values = np.zeros(4, dtype=np.float32)
    receiver = Operation(KEY, values, ValueType.FP32, Broadcast(1, 2, [frame]))
    segment = Segment(0, frame)
    (place,) = receiver.places(header_of(segment, ValueType.FP32)) or ()
    assert np.shares_memory(place, values)
    assert place.size == 4
    assert receiver.places(header_of(segment, ValueType.BF16)) is None
    two = chunks_of([4, 4], 2, 9)[1]
    assert [len(part.pieces) for part in two] == [2]
    scattered = Operation(KEY, np.zeros(8, dtype=np.float32), ValueType.FP32, Broadcast(1, 2, two))
    assert scattered.places(header_of(Segment(0, two[0]), ValueType.FP32)) is None
    adding = Operation(KEY, np.zeros(4, dtype=np.float32), ValueType.FP32, Ring(1, chunks_of([4], 2, 9)))
    first = Segment(0, chunks_of([4], 2, 9)[0][0])
    assert adding.places(header_of(first, ValueType.FP32)) is None


def test_a_frame_of_another_type_changes_nothing() -> None:
    chunks = chunks_of([4], 2, 9)
    operation = Operation(KEY, np.ones(4, dtype=np.float32), ValueType.FP32, Ring(1, chunks))
    segment = Segment(0, chunks[0][0])
    with pytest.raises(FrameError, match="operation 2 of step 7: expected float32 values, got bfloat16 ones"):
        operation.take(header_of(segment, ValueType.BF16), np.ones(2, dtype=np.uint16))
    assert operation.received_bytes == 0
    assert operation.values.tolist() == [1.0] * 4
    operation.take(header_of(segment, ValueType.FP32), np.ones(2, dtype=np.float32))
    assert operation.values.tolist() == [2.0, 2.0, 1.0, 1.0]


def test_the_key_of_a_frame_is_that_of_its_operation() -> None:
    (frame,) = chunks_of([4], 1, 9)[0]
    assert OperationKey.of(header_of(Segment(0, frame), ValueType.FP32)) == KEY
    address = KEY.range(frame.offset, frame.count)
    assert OperationKey.of(FrameHeader(Sender(1, 0), address, Parameters())) == OperationKey(KEY.at, KEY.group, 0)


@pytest.mark.parametrize(
    ("elements", "itemsize", "segments"),
    [
        # Of half of them, a rank's chunk: no segment is smaller than 512 KiB,
        (1_048_576, 4, 4),
        (1_048_578, 4, 5),
        # none larger than 1 MiB,
        (64 << 20, 4, 128),
        ((64 << 20) + 2, 4, 129),
        (64 << 20, 8, 256),
        # and of a chunk of 6 MiB each is an eighth.
        (3_145_728, 4, 8),
    ],
)
def test_segments_are_an_eighth_of_a_chunk_within_bounds(elements: int, itemsize: int, segments: int) -> None:
    chunks = cut_chunks(buffer_layout(elements), Group(0, 0), 2, itemsize)
    assert [len(chunk) for chunk in chunks] == [segments] * 2
    for chunk in chunks:
        assert sum(frame.count for frame in chunk) == elements // 2
        assert max(frame.count for frame in chunk) - min(frame.count for frame in chunk) <= 1


def test_segments_follow_from_the_size_of_the_group() -> None:
    layout = Layout(
        tuple(LayerSpec(f"l{n}", (TensorSpec("w", (size,)),)) for n, size in enumerate((9 << 20, 3_145_728, 5)))
    )
    (own, _), (alone, _) = (
        cut_chunks(of, group, 2, 4) for of, group in ((layout, Group(1, 1)), (buffer_layout(3_145_728), Group(0, 0)))
    )
    assert [frame.count for frame in own] == [frame.count for frame in alone]


def test_types_have_names_in_shared_memory() -> None:
    assert [reduce_kind(kind) for kind in TYPES] == ["fp32", "fp64", "fp16", "bf16"]
