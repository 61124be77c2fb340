from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shared_ranks import Call, PeerDiedError, expected_result, on_all_ranks, shared_buffers
from support.value_kinds import random_values, same_bits

from taihu.allreduce.same_host.allreduce import SharedAllreduce
from taihu.core.base.errors import ExchangeError, StaleError
from taihu.core.wire.links.shared_memory import SharedBuffer, open_shared
from taihu.kernels.sums import REDUCE_KINDS, ReduceKind, dtype_of

pytestmark = pytest.mark.usefixtures("all_cores")

# Workers are forks of a process that has imported what takes long.
WORKERS = multiprocessing.get_context("forkserver")
WORKERS.set_forkserver_preload(["taihu.allreduce.same_host.allreduce", "hypothesis", "pytest"])
ROUNDS = 40


@st.composite
def calls(draw: st.DrawFn, elements: int, kind: ReduceKind) -> Call:
    start, stop = sorted(draw(st.tuples(st.integers(0, elements), st.integers(0, elements))))
    return (*draw(st.sampled_from([(start, stop), (0, elements)])), kind, draw(st.booleans()))


@settings(deadline=None, max_examples=80)
@given(
    st.integers(1, 9),
    st.one_of(st.integers(0, 20), st.integers(0, 9000)),
    st.sampled_from(REDUCE_KINDS),
    st.integers(0, 99),
    st.data(),
)
def test_all_ranks_hold_the_sums_of_a_ring(
    size: int, elements: int, kind: ReduceKind, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    made = data.draw(st.lists(calls(elements, kind), min_size=1, max_size=3))
    contributions = [random_values(rng, elements, kind) for _ in range(size)]
    with shared_buffers(size, elements * dtype_of(kind).itemsize) as buffers:
        arrays = [buffer.array(dtype_of(kind), elements) for buffer in buffers]
        for array, values in zip(arrays, contributions, strict=True):
            array[:] = values

        def work(rank: int) -> None:
            reduction = SharedAllreduce(rank, buffers)
            for start, stop, _, mean in made:
                reduction.allreduce(start, stop, kind, mean=mean)

        assert on_all_ranks(size, work) == [None] * size
        for call in made:
            contributions = expected_result(contributions, call)
        assert all(same_bits(*pair) for pair in zip(arrays, contributions, strict=True))


@contextmanager
def mapped_buffers(rank: int, size: int, size_bytes: int, parent: Connection) -> Iterator[list[SharedBuffer]]:
    """In one process: all ranks' buffers, of which no name is left."""
    with SharedBuffer.create(size_bytes) as own:
        parent.send(own.descriptor)
        descriptors = parent.recv()
        buffers = [own if other == rank else open_shared(descriptors[other]) for other in range(size)]
        parent.send("mapped")
        parent.recv()
        own.unlink()
        yield buffers


def reduce_often(rank: int, size: int, parent: Connection, elements: int, kind: ReduceKind) -> None:
    """One process: reduce again and again what it computes anew, and send back all results."""
    dtype = dtype_of(kind)
    with mapped_buffers(rank, size, elements * dtype.itemsize, parent) as buffers:
        reduction = SharedAllreduce(rank, buffers)
        reduction.warm_up(kind)
        array = buffers[rank].array(dtype, elements)
        results = []
        for number in range(ROUNDS):
            array[:] = random_values(np.random.default_rng([rank, number]), elements, kind)
            reduction.allreduce(0, elements, kind, mean=number % 2 == 1)
            results.append(array.tobytes())
        parent.send(results)


def reduce_until_told(rank: int, size: int, parent: Connection, elements: int) -> None:
    """One process: reduce until the parent says that a peer died, and then say what was raised."""
    with mapped_buffers(rank, size, elements * 4, parent) as buffers:
        reduction = SharedAllreduce(rank, buffers)
        reduction.allreduce(0, elements, "fp32")
        parent.send("under way")
        try:
            while True:
                reduction.allreduce(0, elements, "fp32", is_failed=lambda: PeerDiedError() if parent.poll() else None)
        except PeerDiedError:
            parent.send("raised")


@contextmanager
def processes(size: int, target: Callable[..., None], *arguments: Any) -> Iterator[list[tuple[Any, Connection]]]:
    """Workers that have mapped each other's buffers and removed the names."""
    started = []
    try:
        for rank in range(size):
            here, there = WORKERS.Pipe()
            process = WORKERS.Process(target=target, args=(rank, size, there, *arguments))
            process.start()
            there.close()
            started.append((process, here))
        descriptors = [here.recv() for _, here in started]
        for _, here in started:
            here.send(descriptors)
        assert [here.recv() for _, here in started] == ["mapped"] * size
        for _, here in started:
            here.send("everybody mapped")
        yield started
        for process, here in started:
            process.join(600)
            here.close()
        assert not any(Path(descriptor.path).exists() for descriptor in descriptors)
    finally:
        for process, _ in started:
            process.kill()
            process.join()
            process.close()


@pytest.mark.parametrize(("size", "kind"), [(2, "fp32"), (3, "bf16")])
def test_processes_agree_bit_for_bit(size: int, kind: ReduceKind) -> None:
    elements = 10_007
    with processes(size, reduce_often, elements, kind) as started:
        results = [here.recv() for _, here in started]
    for number in range(ROUNDS):
        made = [random_values(np.random.default_rng([rank, number]), elements, kind) for rank in range(size)]
        expected = expected_result(made, (0, elements, kind, number % 2 == 1))
        assert [result[number] for result in results] == [values.tobytes() for values in expected]


def test_a_killed_process_leaves_no_rank_waiting_and_no_file() -> None:
    with processes(3, reduce_until_told, 100_000) as started:
        assert [here.recv() for _, here in started] == ["under way"] * 3
        os.kill(started[1][0].pid, signal.SIGKILL)
        started[1][0].join()
        survivors = [started[0], started[2]]
        for _, here in survivors:
            here.send("a peer died")
        assert [here.recv() for _, here in survivors] == ["raised"] * 2
        for process, _ in survivors:
            process.join(600)
            assert process.exitcode == 0


@pytest.mark.parametrize(
    ("odd", "described"),
    [
        ((0, 99, "fp32", False), r"the sum of fp32 \[0, 99\)"),
        ((1, 100, "fp32", False), r"the sum of fp32 \[1, 100\)"),
        ((0, 100, "fp16", False), r"the sum of fp16 \[0, 100\)"),
        ((0, 100, "fp32", True), r"the mean of fp32 \[0, 100\)"),
    ],
)
def test_different_calls_are_an_error_on_all_ranks(odd: Call, described: str) -> None:
    with shared_buffers(3, 400) as buffers:
        arrays = [buffer.array(np.float32, 100) for buffer in buffers]

        def work(rank: int) -> None:
            reduction = SharedAllreduce(rank, buffers)
            reduction.allreduce(0, 100, "fp32")
            arrays[rank][:] = rank
            start, stop, kind, mean = odd if rank == 1 else (0, 100, "fp32", False)
            try:
                reduction.allreduce(start, stop, kind, mean=mean)
            finally:
                with pytest.raises(ExchangeError, match="an earlier call failed; make new buffers"):
                    reduction.allreduce(0, 100, "fp32")

        errors = on_all_ranks(3, work)
        assert [type(error) for error in errors] == [ExchangeError] * 3
        for error in errors:
            with pytest.raises(
                ExchangeError,
                match=rf"allreduce 2: rank 1 calls for {described}, rank 0 for the sum of fp32 \[0, 100\)",
            ):
                raise error
        assert [set(array.tolist()) for array in arrays] == [{0.0}, {1.0}, {2.0}]


def test_a_wait_ends_with_the_error_of_the_failure_callback() -> None:
    with shared_buffers(2, 80) as buffers:
        failed, asked = threading.Event(), threading.Event()
        reduction = SharedAllreduce(0, buffers)

        def is_failed() -> BaseException | None:
            asked.set()
            return PeerDiedError("rank 1") if failed.is_set() else None

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(reduction.allreduce, 0, 20, "fp32", is_failed=is_failed)
            assert asked.wait(60)
            assert not future.done()
            failed.set()
            with pytest.raises(PeerDiedError, match="rank 1"):
                future.result(120)
        with pytest.raises(ExchangeError, match="an earlier call failed"):
            reduction.allreduce(0, 20, "fp32")


def test_nobody_returns_before_all_chunks_are_written() -> None:
    with shared_buffers(2, 80) as buffers:
        buffers[0].array(np.float32, 20)[:] = 1
        # The other rank as a puppet: its contribution is ready, its chunk is never written.
        buffers[1].control[:5] = (1, 0, 20, REDUCE_KINDS.index("fp32"), 0)
        with pytest.raises(PeerDiedError):
            SharedAllreduce(0, buffers).allreduce(0, 20, "fp32", is_failed=PeerDiedError)
        assert buffers[0].control[0] == 2
        assert [set(buffer.array(np.float32, 20)[:10].tolist()) for buffer in buffers] == [{1.0}, {1.0}]
        assert buffers[1].array(np.float32, 10, 40).tolist() == [0.0] * 10


@pytest.mark.parametrize("written", [True, False])
def test_what_a_rank_finished_before_it_went_back_is_finished_for_others_too(written: bool) -> None:
    """Rank 1 is a puppet. It contributes, and goes back before rank 0 looks again: its chunk written, or not."""
    with shared_buffers(2, 80) as buffers:
        control = buffers[1].control
        control[:5] = (1, 0, 20, REDUCE_KINDS.index("fp32"), 0)

        def goes_back() -> None:
            # The call's second number means that the chunk is written.
            control[5] = 2 if written else 1
            control[0] = 1 << 32

        reduction = SharedAllreduce(0, buffers)
        if written:
            reduction.allreduce(0, 20, "fp32", is_failed=goes_back)
        with pytest.raises(StaleError, match="another rank has given up"):
            reduction.allreduce(0, 20, "fp32", is_failed=goes_back)


def test_one_rank_keeps_its_values() -> None:
    with shared_buffers(1, 80) as buffers:
        values = random_values(np.random.default_rng(3), 10, "fp64")
        buffers[0].array(np.float64, 10)[:] = values
        SharedAllreduce(0, buffers).allreduce(0, 10, "fp64", mean=True)
        assert same_bits(buffers[0].array(np.float64, 10), values)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (0, 21)])
def test_a_range_outside_is_refused_before_anybody_sees_it(start: int, stop: int) -> None:
    with shared_buffers(2, 80) as buffers:
        reduction = SharedAllreduce(0, buffers)
        with pytest.raises(ValueError, match=r"expected a range of 20"):
            reduction.allreduce(start, stop, "fp32")
        assert not buffers[0].control.any()
        assert (
            on_all_ranks(2, lambda rank: _reduce_once([reduction, SharedAllreduce(1, buffers)][rank])) == [None] * 2
        )


def _reduce_once(reduction: SharedAllreduce) -> None:
    reduction.allreduce(0, 20, "fp32")


def test_an_unknown_type_is_refused() -> None:
    with shared_buffers(1, 80) as buffers, pytest.raises(ValueError, match="kind of values 'int8'"):
        SharedAllreduce(0, buffers).allreduce(0, 1, "int8")  # type: ignore[arg-type]


def test_unfit_buffers_are_refused() -> None:
    with shared_buffers(2, 80) as buffers, shared_buffers(1, 88) as larger:
        with pytest.raises(ValueError, match=r"rank 2 with 2 shared buffers of \[80\] bytes"):
            SharedAllreduce(2, buffers)
        with pytest.raises(ValueError, match=r"rank 0 with 3 shared buffers of \[80, 88\] bytes"):
            SharedAllreduce(0, buffers + larger)
        with pytest.raises(ValueError, match="rank 0 with 0 shared buffers"):
            SharedAllreduce(0, [])
        buffers[0].control[0] = 2
        with pytest.raises(ValueError, match="rank 0 was used by another allreduce"):
            SharedAllreduce(0, buffers)
