from __future__ import annotations

import resource
import threading
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.errors import TypingError
from numpy.typing import NDArray

from taihu.kernels.base.atomics import load_acquire, store_release
from taihu.kernels.base.jit import kernel
from taihu.kernels.futex import publish, wait_until

pytestmark = pytest.mark.usefixtures("all_cores")

Words = NDArray[np.int64]
ROUNDS = 2_000
WORDS = st.integers(-(2**63), 2**63 - 1)


def load(words: Any, index: Any) -> Any:
    return load_acquire(words, index)


def store(words: Any, index: Any, value: Any) -> None:
    store_release(words, index, value)


compiled_load = numba.njit(load)
compiled_store = numba.njit(store)


@kernel
def hand_over(payload: Words, words: Words, rounds: int) -> int:
    """Answer every number in `words[0]` in `words[8]`; how often the payload was not yet that number."""
    stale = 0
    for number in range(1, rounds + 1):
        while not wait_until(words, 0, number):
            pass
        stale += payload[0] != number
        publish(words, 8, number)
    return stale


@kernel
def send(payload: Words, words: Words, rounds: int) -> None:
    for number in range(1, rounds + 1):
        payload[0] = number
        publish(words, 0, number)
        while not wait_until(words, 8, number):
            pass


@settings(deadline=None, max_examples=50)
@given(st.lists(WORDS, min_size=1, max_size=9), WORDS, st.data())
def test_one_word_is_loaded_and_stored(values: list[int], value: int, data: st.DataObject) -> None:
    words = np.array(values, dtype=np.int64)
    index = data.draw(st.integers(0, len(values) - 1))
    assert compiled_load(words, index) == values[index]
    compiled_store(words, index, value)
    values[index] = value
    assert words.tolist() == values


def test_the_machine_code_is_ordered_on_every_processor() -> None:
    words = np.zeros(2, dtype=np.int64)
    compiled_load(words, 0)
    compiled_store(words, 0, 1)
    (loading,) = compiled_load.inspect_llvm().values()
    (storing,) = compiled_store.inspect_llvm().values()
    assert any("load atomic i64" in line and "acquire, align 8" in line for line in loading.splitlines())
    assert any("store atomic i64" in line and "release, align 8" in line for line in storing.splitlines())


@pytest.mark.parametrize(
    ("array", "index"),
    [
        (np.zeros(4), 0),
        (np.zeros(4, dtype=np.int32), 0),
        (np.zeros((2, 2), dtype=np.int64), 0),
        (np.zeros(8, dtype=np.int64)[::2], 0),
        (np.zeros(4, dtype=np.int64), 0.5),
    ],
)
def test_other_arrays_do_not_compile(array: Any, index: Any) -> None:
    with pytest.raises(TypingError, match="atomic access"):
        compiled_load(array, index)


def test_a_thread_sees_what_was_written_before_the_counter() -> None:
    payload, words = np.zeros(1, dtype=np.int64), np.zeros(16, dtype=np.int64)
    stale = []
    receiver = threading.Thread(target=lambda: stale.append(hand_over(payload, words, ROUNDS)))
    receiver.start()
    send(payload, words, ROUNDS)
    receiver.join()
    assert stale == [0]


@pytest.mark.parametrize(("held", "expected"), [(4, True), (5, True), (3, False), (-1, False)])
def test_a_wait_ends_with_the_value_or_without(held: int, expected: bool) -> None:
    words = np.array([9, held], dtype=np.int64)
    assert wait_until(words, 1, 4) is expected
    assert words.tolist() == [9, held]


def test_a_longer_wait_sleeps_in_the_kernel() -> None:
    words = np.array([0, 2**32 + 7], dtype=np.int64)
    wait_until(words, 0, 1)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    assert not wait_until(words, 1, 2**32 + 8)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw > before


def test_publishing_wakes_who_sleeps() -> None:
    words, last = np.zeros(2, dtype=np.int64), 2**62

    def wait() -> None:
        while not wait_until(words, 1, last):
            pass

    sleeper = threading.Thread(target=wait)
    sleeper.start()
    number, woken = 0, 0
    while not woken:
        number += 1
        woken = publish(words, 1, number)
    publish(words, 1, last)
    sleeper.join()
    assert woken == 1


def test_counters_wait_in_their_lower_half_and_compare_as_a_whole() -> None:
    words = np.array([2**32], dtype=np.int64)
    assert wait_until(words, 0, 5)
    assert not wait_until(words, 0, 2**32 + 1)
    publish(words, 0, 2**33)
    assert wait_until(words, 0, 2**32 + 1)
