"""Ranks that share memory, each a thread of one process, and the results that they must have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

from numpy.typing import NDArray

from support.value_kinds import summed
from taihu.core.wire.links.shared_memory import SharedBuffer
from taihu.kernels.sums import ReduceKind

__all__ = ["Call", "PeerDiedError", "expected_result", "on_all_ranks", "shared_buffers"]

Call = tuple[int, int, ReduceKind, bool]


class PeerDiedError(Exception):
    """The error that a failure callback reports."""


@contextmanager
def shared_buffers(size: int, size_bytes: int) -> Iterator[list[SharedBuffer]]:
    """New shared buffers, one for each rank."""
    with ExitStack() as stack:
        yield [stack.enter_context(SharedBuffer.create(size_bytes)) for _ in range(size)]


def on_all_ranks(size: int, work: Callable[[int], Any]) -> list[Any]:
    """Results or errors of `work(rank)` for every rank, each in a thread of its own."""
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(work, rank) for rank in range(size)]
        return [future.exception() or future.result() for future in futures]


def expected_result(contributions: Sequence[NDArray[Any]], call: Call) -> list[NDArray[Any]]:
    """Every rank's buffer after one call, chunk by chunk in the cyclic order of ranks."""
    start, stop, kind, mean = call
    size, results = len(contributions), [values.copy() for values in contributions]
    for chunk in range(size):
        part = slice(start + (stop - start) * chunk // size, start + (stop - start) * (chunk + 1) // size)
        ordered = [contributions[(chunk + i) % size][part] for i in range(size)]
        for result in results:
            result[part] = summed(ordered, kind, mean=mean)
    return results
