from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import plain_kernels

from taihu.kernels import reduce
from taihu.kernels.reduce import all_finite, sum_in_rank_order, warm_up

Values = NDArray[np.float32]
quick = settings(deadline=None, max_examples=60)
lengths = st.one_of(st.sampled_from([0, 1, 2, 15, 16, 17, 31, 33, 63, 65, 127]), st.integers(0, 3000))


def received(values: Values, offset: int) -> Values:
    """The values as a read-only view that begins `offset` bytes into a message."""
    return np.frombuffer(b"x" * offset + values.tobytes(), dtype=np.float32, offset=offset)


def same_bits(left: Values, right: Values) -> bool:
    return left.shape == right.shape and left.tobytes() == right.tobytes()


def magnitudes(rng: np.random.Generator, elements: int) -> Values:
    """Values so different in size that every other order of summation gives other bits."""
    return np.asarray(rng.standard_normal(elements) * 10.0 ** rng.integers(-6, 6, elements), dtype=np.float32)


@quick
@given(
    lengths,
    st.lists(st.integers(0, 19), min_size=1, max_size=9),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 99),
)
def test_the_sum_is_the_oracles_bit_for_bit(
    elements: int, offsets: list[int], begin: int, writable: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    contributions = [magnitudes(rng, elements) for _ in offsets]
    frames = [received(values, offset) for values, offset in zip(contributions, offsets, strict=True)]
    if writable:
        frames[-1] = contributions[-1]
    buffer = np.full(elements + begin, np.nan, dtype=np.float32)
    sum_in_rank_order(frames, buffer[begin:])
    assert same_bits(buffer[begin:], plain_kernels.sum_in_rank_order(contributions))
    assert np.isnan(buffer[:begin]).all()
    assert all(same_bits(frame, values) for frame, values in zip(frames, contributions, strict=True))


def test_the_sum_is_taken_from_left_to_right() -> None:
    frames = [np.full(40, value, dtype=np.float32) for value in (1e8, -1e8, 1.0, 1e8, 1.0)]
    out = np.empty(40, dtype=np.float32)
    sum_in_rank_order(frames, out)
    assert (out == np.float32(1e8)).all()
    sum_in_rank_order([frames[i] for i in (2, 0, 1, 3, 4)], out)
    assert (out == np.float32(1e8)).all()
    sum_in_rank_order([frames[i] for i in (0, 1, 2)], out)
    assert (out == 1.0).all()
    sum_in_rank_order([frames[i] for i in (2, 0, 1)], out)
    assert (out == 0.0).all()


@quick
@given(st.permutations(range(5)), st.integers(0, 99))
def test_the_order_of_arrival_changes_no_bit(arrivals: list[int], seed: int) -> None:
    contributions = [magnitudes(np.random.default_rng((seed, rank)), 1001) for rank in range(5)]
    arrived = {rank: received(contributions[rank], offset) for offset, rank in enumerate(arrivals)}
    out = np.empty(1001, dtype=np.float32)
    sum_in_rank_order([arrived[rank] for rank in range(5)], out)
    assert same_bits(out, plain_kernels.sum_in_rank_order(contributions))


def test_threads_do_not_disturb_each_other() -> None:
    frames = [[magnitudes(np.random.default_rng((task, rank)), 20_011) for rank in range(4)] for task in range(6)]
    outs = [np.empty(20_011, dtype=np.float32) for _ in frames]
    threads = [
        threading.Thread(target=sum_in_rank_order, args=(mine, out)) for mine, out in zip(frames, outs, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for mine, out in zip(frames, outs, strict=True):
        assert same_bits(out, plain_kernels.sum_in_rank_order(mine))


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [np.ones(7, dtype=np.float32)],
        [np.ones(8, dtype=np.float32), np.ones(9, dtype=np.float32)],
        [np.ones(8, dtype=np.float32), np.ones(8, dtype=np.int32)],
        [np.ones(8, dtype=np.float32), np.ones(4, dtype=np.float64)],
        [np.ones((8, 1), dtype=np.float32)],
    ],
)
def test_unfit_frames_are_refused_and_nothing_is_written(frames: list[Values]) -> None:
    out = np.full(8, 5.0, dtype=np.float32)
    with pytest.raises(ValueError, match=r"expected at least one, each float32\[8\]"):
        sum_in_rank_order(frames, out)
    assert (out == 5.0).all()


@quick
@given(lengths, st.integers(0, 5), st.data())
def test_one_bad_value_is_found_wherever_it_lies(elements: int, offset: int, data: st.DataObject) -> None:
    values = magnitudes(np.random.default_rng(elements), elements)
    assert all_finite(received(values, offset))
    if elements:
        where = data.draw(st.integers(0, elements - 1))
        values[where] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
        assert not all_finite(received(values, offset))
    assert all_finite(values) == plain_kernels.all_finite(values)


def test_the_largest_and_smallest_finite_values_are_finite() -> None:
    limits = np.finfo(np.float32)
    assert all_finite(
        np.array([limits.max, limits.min, limits.tiny, limits.smallest_subnormal, -0.0], dtype=np.float32)
    )


def test_warm_up_leaves_nothing_to_compile_for_a_received_frame() -> None:
    warm_up()
    kernels: list[Any] = [reduce._add, reduce._accumulate, reduce._all_finite]
    compiled = [len(kernel.signatures) for kernel in kernels]
    frame = received(np.ones(5, dtype=np.float32), 3)
    sum_in_rank_order([frame, frame, frame], np.empty(5, dtype=np.float32))
    all_finite(frame)
    assert [len(kernel.signatures) for kernel in kernels] == compiled
