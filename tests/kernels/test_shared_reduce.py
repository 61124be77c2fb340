from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.value_kinds import random_values, same_bits, summed

from taihu.kernels import shared_reduce
from taihu.kernels.shared_reduce import reduce_to_all, warm_up
from taihu.kernels.sums import REDUCE_KINDS, ReduceKind, dtype_of

# A block has 1024 to 4096 elements.
lengths = st.one_of(
    st.sampled_from([0, 1, 2, 15, 17, 1023, 1024, 1025, 2048, 2049, 4096, 4097]), st.integers(0, 10_000)
)


def addresses_of(buffers: list[np.ndarray]) -> np.ndarray:
    return np.array([buffer.ctypes.data for buffer in buffers], dtype=np.int64)


@settings(deadline=None, max_examples=120)
@given(
    st.sampled_from(REDUCE_KINDS),
    st.integers(1, 9),
    lengths,
    st.integers(0, 40),
    st.integers(0, 40),
    st.booleans(),
    st.integers(0, 99),
)
def test_every_buffer_holds_the_sum_in_the_given_order(  # noqa: PLR0917 - Hypothesis gives them by position
    kind: ReduceKind, size: int, elements: int, before: int, after: int, mean: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    buffers = [random_values(rng, before + elements + after, kind) for _ in range(size)]
    expected = [buffer.copy() for buffer in buffers]
    own = slice(before, before + elements)
    total = summed([buffer[own] for buffer in buffers], kind, mean=mean)
    reduce_to_all(addresses_of(buffers), own.start, own.stop, kind, 1 / size if mean else 1.0)
    for buffer, wanted in zip(buffers, expected, strict=True):
        wanted[own] = total
        assert same_bits(buffer, wanted)


def test_order_matters() -> None:
    columns = [np.full(40, value, dtype=np.float32) for value in (1e8, 1.0, -1e8)]
    reduce_to_all(addresses_of(columns), 0, 40, "fp32")
    assert [column[7] for column in columns] == [0.0] * 3


# The sum lies beyond the largest value of the kind, but not of fp32, in which it is formed.
@pytest.mark.parametrize(("kind", "largest", "added"), [("fp16", 0x7BFF, 0x7BFF), ("bf16", 0x7F7F, 0x7B40)])
def test_sums_of_codes_saturate(kind: ReduceKind, largest: int, added: int) -> None:
    buffers = [np.full(3, code, dtype=np.uint16) for code in (largest, added)]
    reduce_to_all(addresses_of(buffers), 0, 3, kind)
    assert [buffer.tolist() for buffer in buffers] == [[largest] * 3] * 2


@pytest.mark.parametrize("kind", REDUCE_KINDS)
def test_after_warming_up_nothing_is_compiled(kind: ReduceKind) -> None:
    warm_up(kind)
    compiled = len(shared_reduce._reduce_to_all.signatures)  # type: ignore[attr-defined]
    buffers = [random_values(np.random.default_rng(1), 5, kind) for _ in range(2)]
    reduce_to_all(addresses_of(buffers), 1, 4, kind, 0.5)
    assert len(shared_reduce._reduce_to_all.signatures) == compiled  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", REDUCE_KINDS)
def test_values_are_stored_in_the_type_that_is_said(kind: ReduceKind) -> None:
    assert dtype_of(kind) == random_values(np.random.default_rng(0), 1, kind).dtype


def test_other_kinds_are_refused() -> None:
    values = np.ones(3, dtype=np.float32)
    with pytest.raises(ValueError, match="kind of values 'int8': expected one of fp32, fp64, fp16, bf16"):
        reduce_to_all(addresses_of([values, values]), 0, 3, "int8")  # type: ignore[arg-type]
    assert values.tolist() == [1.0] * 3
