"""Waiting for a counter in shared memory: a short spin, then sleep in the kernel until it is published (futex).

Counters only grow. The futex is the lower half of the 64-bit word, shared between processes; where Linux's futex is
not known by number the sleep is a short one that is repeated, with the same meaning.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
from numba import types
from numba.extending import intrinsic
from numba.np.numpy_support import carray
from numpy.typing import NDArray

from taihu.kernels.base.atomics import load_acquire, store_release
from taihu.kernels.base.external import external
from taihu.kernels.base.jit import kernel, kernel_part

Words = NDArray[np.int64]

# The longest that `wait_until` sleeps.
WAIT_LIMIT_S: Final = 0.05
_SYSCALLS = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
_FUTEX = _SYSCALLS.get(platform.machine(), 0) if sys.platform == "linux" else 0
_WAIT = 0
_WAKE = 1
_EVERYBODY = 2**31 - 1
# Seconds and nanoseconds: a C timespec on 64-bit machines.
_LIMIT = np.array([0, round(WAIT_LIMIT_S * 1e9)], dtype=np.int64)
# Longer than a wake takes, so that ranks in step do not pay for it.
_SPIN_NS = 30_000
_LONG_SPIN_NS = 500_000
_POLL_US = 100
_CLOCK_MONOTONIC = 1


_syscall = external(
    "syscall", types.int64(types.int64, types.intp, types.int64, types.int64, types.intp, types.int64, types.int64)
)
_clock_gettime = external("clock_gettime", types.int32(types.int32, types.voidptr))
_sched_yield = external("sched_yield", types.int32())
_usleep = external("usleep", types.int32(types.uint32))


def _stack(typing_context: Any) -> Any:
    """16 bytes of the calling kernel's frame."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # In the entry block, or every turn of a loop would take new ones.
        with builder.goto_entry_block():
            words = builder.alloca(context.get_value_type(types.int64), 2)
        return builder.bitcast(words, context.get_value_type(types.voidptr))

    return types.voidptr(), generate


_stack_words = cast(Callable[[], Any], intrinsic(_stack))


@kernel_part
def _monotonic_ns() -> int:
    pointer = _stack_words()
    _clock_gettime(_CLOCK_MONOTONIC, pointer)
    time = carray(pointer, (2,), np.int64)
    return int(time[0] * 1_000_000_000 + time[1])


@kernel
def publish(words: Words, index: int, value: int) -> int:
    """Set `words[index]` to `value`, after everything written so far, and wake all who wait for it.

    Args:
        words: int64, contiguous, in memory that is shared.
        index: a position in it; not checked.
        value: more than the word holds.

    Returns:
        How many were woken; 0 where there is no futex.
    """
    store_release(words, index, value)
    if not _FUTEX:
        return 0
    return _syscall(_FUTEX, words.ctypes.data + 8 * index, _WAKE, _EVERYBODY, 0, 0, 0)


@kernel
def wait_until(words: Words, index: int, value: int) -> bool:
    """Wait until `words[index]` is `value` or more, but not much longer than `WAIT_LIMIT_S`; the GIL is free.

    What was written before the `publish` of that value can be read then. A signal ends the wait.

    Args:
        words: int64, contiguous, in memory that is shared.
        index: a position in it; not checked.
        value: what to wait for.

    Returns:
        Whether the word is as large; if not, call again.
    """
    return _wait(words, index, value, _SPIN_NS)


@kernel
def wait_awake_until(words: Words, index: int, value: int) -> bool:
    """`wait_until` for threads that share work every few microseconds: it spins for half a millisecond."""
    return _wait(words, index, value, _LONG_SPIN_NS)


@kernel_part
def _wait(words: Words, index: int, value: int, spin_ns: int) -> bool:
    spin_end = _monotonic_ns() + spin_ns
    while load_acquire(words, index) < value and _monotonic_ns() < spin_end:
        # There may be more processes than cores: the one that is waited for may need this one.
        _sched_yield()
    seen = load_acquire(words, index)
    if seen < value:
        if _FUTEX:
            low = seen & 0xFFFFFFFF
            _syscall(_FUTEX, words.ctypes.data + 8 * index, _WAIT, low, _LIMIT.ctypes.data, 0, 0)
        else:
            _usleep(_POLL_US)
    return load_acquire(words, index) >= value
