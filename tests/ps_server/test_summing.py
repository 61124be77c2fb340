"""Contributions as they are decoded, and what is made of them."""

from __future__ import annotations

import numpy as np
import pytest
from support.frames import header_of
from support.shards import KINDS, LAYOUT, driven, shard_job

from taihu.core.planner.partition import FrameSpec, Piece
from taihu.core.wire.frames.headers import Frame
from taihu.core.wire.frames.kinds import Encoding, Summed
from taihu.kernels.base.half import HalfKind, to_half
from taihu.kernels.packing import packed_bound
from taihu.ps_server.squeezing import make_summing
from taihu.ps_server.summing import (
    Contribution,
    DenseSum,
    HalfContribution,
    Scratch,
    SparseContribution,
    SparseSum,
    count_non_finite,
)
from taihu.ps_server.updating import make_answering

SPEC = FrameSpec(0, 0, 4, (Piece(0, 3), Piece(5, 6)))


def of_each_kind() -> dict[str, Contribution]:
    codes = np.empty(4, np.uint16)
    to_half(np.arange(4, dtype=np.float32), "bf16", codes)
    return {
        "ndarray": np.arange(4, dtype=np.float32),
        "HalfContribution": HalfContribution(codes, "bf16", 1.0, skipped=False),
        "SparseContribution": SparseContribution(np.arange(1, 4, dtype=np.int32), np.arange(1, 4, dtype=np.float32)),
    }


@pytest.mark.parametrize(
    ("kind", "summed"),
    [
        ("sgd", "ndarray"),
        ("bf16", "HalfContribution"),
        ("sparse push", "SparseContribution"),
        ("sparse pull", "SparseContribution"),
        ("squeezed", "SparseContribution"),
    ],
)
def test_a_sum_leaves_its_scratch_as_it_was(kind: str, summed: str) -> None:
    summing = make_summing(shard_job(KINDS[kind]), np.zeros(4, np.float32))
    summing.adopt([SPEC])
    scratch = Scratch(4, 2)
    total = summing.sum(SPEC, 3, [of_each_kind()[summed]] * 3, scratch)
    if isinstance(total, SparseSum):
        places = dict(zip(total.indices.tolist(), total.values.tolist(), strict=True))
        assert places == ({2: 6.0, 3: 9.0} if kind == "squeezed" else {1: 3.0, 2: 6.0, 3: 9.0})
    else:
        assert isinstance(total, DenseSum)
        assert total.values.tolist() == [0.0, 3.0, 6.0, 9.0]
    assert not scratch.total.any() or kind in ("sgd", "bf16")


def test_scratch_is_used_again_and_has_room_for_the_largest_frame() -> None:
    run = driven("sgd")
    updates = run.shard._updates
    largest, most = max(spec.count for spec in run.frames), max(len(spec.pieces) for spec in run.frames)
    first, second = updates.borrow(), updates.borrow()
    assert first is not second
    for scratch in (first, second):
        arrays = (scratch.total, scratch.indices, scratch.values, scratch.chosen, scratch.packed)
        assert [len(array) for array in arrays] == [largest] * 5
        assert len(scratch.sections) == packed_bound(largest, most)
    updates.give_back(second)
    assert updates.borrow() is second
    assert updates.borrow() not in (first, second)


def test_of_a_plan_without_frames_scratch_has_no_room() -> None:
    assert len(Scratch(0, 0).total) == 0


def test_gradients_that_lie_together_are_not_copied() -> None:
    run = driven("sgd")
    arena = np.arange(LAYOUT.elements, dtype=np.float32)
    for spec in (run.frames[0], SPEC):
        frame = Frame(
            header_of(70, 1, 1, 0, spec.offset, spec.count, 0, encoding=Encoding.SHARED),
            arena[:0],
            np.zeros(0, np.uint8),
        )
        decoded = make_summing(run.job, arena).decode(frame, spec, arena)
        assert isinstance(decoded, np.ndarray)
        assert decoded.tolist() == [value for piece in spec.pieces for value in range(piece.start, piece.stop)]
        assert np.shares_memory(decoded, arena) is (spec is not SPEC)


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_what_is_not_finite_is_counted(kind: HalfKind) -> None:
    infinity = 0x7C00 if kind == "fp16" else 0x7F80
    for bad in (5, 0, 3, 7, 1):
        codes = np.zeros(7, np.uint16)
        codes[:bad] = [infinity, infinity + 1, 0x8000 + infinity, infinity, infinity, infinity + 9, infinity][:bad]
        assert count_non_finite(HalfContribution(codes, kind, 1.0, skipped=False)) == bad
        assert count_non_finite(HalfContribution(codes, kind, 1.0, skipped=True)) == 0
        values = np.ones(7, np.float32)
        values[7 - bad :] = np.resize([np.nan, np.inf, -np.inf], bad)
        assert count_non_finite(values) == count_non_finite(SparseContribution(codes.astype(np.int32), values)) == bad


def test_answers_with_changed_parameters_need_to_know_which_they_were() -> None:
    answering = make_answering(shard_job(KINDS["sparse pull"]), np.zeros(4, np.float32))
    header = header_of(7, 1, 1, 0, 0, 4, kind=Summed())
    with pytest.raises(TypeError, match="expected to know which they were"):
        answering.updated(SPEC, DenseSum(np.zeros(4, np.float32)), header, Scratch(4, 2))


@pytest.mark.parametrize(("method", "places", "ages"), [("dlgs", {2: 6.0, 3: 9.0}, [1, 1]), ("lags", {3: 9.0}, [0])])
def test_squeezed_sums_have_thresholds_of_layers_where_dlgs_has(
    method: str, places: dict[int, float], ages: list[int]
) -> None:
    """They are used again in the second step of three; those of LAGS, here of the frame, are made anew."""
    compression = {**KINDS["squeezed"]["compression"], "method": method}
    summing = make_summing(shard_job({"compression": compression}), np.zeros(4, np.float32))
    summing.adopt([SPEC])
    right = of_each_kind()["SparseContribution"]
    scratch = Scratch(4, 2)
    total = summing.sum(SPEC, 1, [right] * 3, scratch)
    assert isinstance(total, SparseSum)
    assert dict(zip(total.indices.tolist(), total.values.tolist(), strict=True)) == places
    summing.sum(SPEC, 2, [right] * 3, scratch)
    assert summing.state()["ages"].tolist() == ages
