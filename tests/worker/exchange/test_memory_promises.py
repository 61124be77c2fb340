"""Memory in stages 2 and 3 of ZeRO: `prepare`, `recall` and `wait` promise it to one group at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from support.cluster import Cluster, initial_parameters, layout_of, make_job
from support.daemons import wait_for
from support.exchanges import exchange_steps, run_workers
from support.frames import header_of
from support.worker import Values, Worker

from taihu.core.wire.frames.format import message_of
from taihu.core.wire.frames.headers import BYTES_PER_VALUE
from taihu.core.wire.frames.identity import identity_to_metadata
from taihu.worker.exchange.base.route import Arrived
from taihu.worker.exchange.executor import Executor

kinds = pytest.mark.parametrize("kind", ["server", "ring"])


@kinds
def test_stage_2_gives_gradients_back_and_holds_no_more_than_its_room(kind: str) -> None:
    def work(worker: Worker) -> None:
        exchange, held = worker.exchange, worker.arenas.gradients
        exchange.begin(1)
        for group, (start, stop) in enumerate(worker.bounds):
            exchange.prepare(group)
            held[start:stop] = 1.0
            assert sum(held[first:last].any() for first, last in worker.bounds) <= 4
            exchange.push(group)
        worker.complete()
        assert not held.any()

    exchange = {"kind": kind, "plan": "per-layer", "zero": 2, "bucket_bytes": 32768}
    run_workers(make_job(1, 2, exchange=exchange), layout_of(*[8192] * 12), work)


@kinds
@pytest.mark.parametrize("live_groups", [0, 3, 5, 8])
def test_stage_3_holds_the_group_in_use_and_as_many_of_the_next_ones_as_it_may(kind: str, live_groups: int) -> None:
    layout = layout_of(*[4096] * 8)
    initial = initial_parameters(layout)
    room = max(2, live_groups)

    def work(worker: Worker) -> None:
        exchange, parameters, bounds = worker.exchange, worker.arenas.parameters, worker.bounds

        def held() -> set[int]:
            return {other for other, (first, last) in enumerate(bounds) if parameters[first:last].any()}

        parameters[:] = 0
        for group in reversed(range(8)):
            start, stop = bounds[group]
            exchange.wait(group)
            assert parameters[start:stop].tobytes() == initial[start:stop].tobytes()
            # What comes next in forward, then in backward.
            assert held() <= set([*reversed(range(group + 1)), *range(group + 1, 8)][:room])
        assert held() == set(range(room))
        exchange.begin(1)
        for group, (start, stop) in enumerate(bounds):
            exchange.prepare(group)
            assert parameters[start:stop].tobytes() == initial[start:stop].tobytes()
            # What comes next in backward, then in the next forward.
            assert held() <= set([*range(group, 8), *reversed(range(group))][:room])
            exchange.push(group)
            assert not parameters[start:stop].any()
        # A worker that left with frames under way would leave the other one waiting for them.
        worker.complete()
        # What the next forward begins with has come already; the last group's turn to be asked for is then.
        assert held() == set([7, *reversed(range(7))][1:room])

    exchange = {"kind": kind, "plan": "per-layer", "zero": 3, "live_bytes": live_groups * 4096 * BYTES_PER_VALUE}
    run_workers(make_job(2, 2, exchange=exchange), layout, work)


@kinds
@pytest.mark.parametrize("zero", [2, 3])
def test_mixed_precision_holds_what_is_computed_with_and_no_more(kind: str, zero: int) -> None:
    def work(worker: Worker) -> None:
        exchange, arenas, bounds = worker.exchange, worker.arenas, worker.bounds
        arenas.parameters[:] = 0
        for _ in range(2):
            for group in reversed(range(8)):
                exchange.wait(group)
                present = [index for index, (start, stop) in enumerate(bounds) if arenas.parameters[start:stop].any()]
                assert group in present
                # Behind group 0 comes the backward of group 1, if any.
                assert set(present) <= {group, group - 1 if group else 1}
        exchange.begin(1)
        for group, (start, stop) in enumerate(bounds):
            exchange.prepare(group)
            arenas.gradients[start:stop] = 1.0
            exchange.push(group)
            assert not arenas.parameters[start:stop].any()
            assert not arenas.gradients[start:stop].any()
        worker.complete()
        assert not arenas.sent.any()
        assert arenas.received.any() == (zero == 2)

    exchange = {"kind": kind, "plan": "per-layer", "zero": zero, "bucket_bytes": 20000}
    run_workers(make_job(2, 2, exchange=exchange, train={"precision": "bf16"}), layout_of(*[4096] * 8), work)


def test_room_for_gradients_is_there_when_nothing_older_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters that come behind the push would be read in the next step, for which they are too old."""
    arrived, waits = Executor.arrived, threading.Event()

    def late(steps: Executor, part: Arrived) -> None:
        def tell() -> None:
            assert waits.wait(120)
            arrived(steps, part)

        if part.group == 1 and steps.protocol.at.step:
            threading.Thread(target=tell).start()
        else:
            arrived(steps, part)

    def work(worker: Worker) -> bool:
        exchange, parameters = worker.exchange, worker.exchange._protocol.parameters
        block = exchange._threads._block
        exchange.begin(1)
        exchange.recall(0)
        assert not parameters.is_quiet(1)

        def waiting(is_there: Callable[[], bool], group: int) -> None:
            waits.set()
            block(is_there, group)

        monkeypatch.setattr(exchange._threads, "_block", waiting)
        exchange.carry_out(exchange.steps.make_room(1))
        is_quiet = parameters.is_quiet(1)
        for group in (1, 0):
            exchange.carry_out(exchange.steps.make_room(group))
            exchange.push(group)
        worker.complete()
        return is_quiet

    monkeypatch.setattr(Executor, "arrived", late)
    exchange = {"plan": "per-layer", "zero": 3, "transport": "tcp"}
    assert run_workers(make_job(1, 1, exchange=exchange), layout_of(64, 64), work) == [True]


@pytest.mark.parametrize(("kind", "transport"), [("server", "tcp"), ("server", "grpc"), ("ring", "tcp")])
def test_parameters_come_while_gradients_wait_for_the_other_worker(kind: str, transport: str) -> None:
    """In a ring both must want them, so that there is nothing to wait for but that."""
    fetched = threading.Event()

    def work(worker: Worker) -> None:
        worker.read()
        if worker.rank == 1 and kind == "server":
            assert fetched.wait(120)
        worker.exchange.begin(1)
        for group in range(3):
            # Of group 0 three frames do not fit into the window; group 2 was dropped in forward.
            worker.exchange.prepare(group)
            if group == 2:
                fetched.set()
            worker.exchange.push(group)
        worker.complete()

    exchange = {"kind": kind, "plan": "per-layer", "zero": 3, "frame_bytes": 4096, "window_frames": 1}
    job = make_job(1, 2, exchange={**exchange, "transport": transport})
    run_workers(job, layout_of(*[4096] * 3), work)


def test_what_is_wanted_before_it_is_summed_is_gathered_after() -> None:
    layout = layout_of(1, 700, 3, 4096, 2500, 2, 9000)
    wanted = threading.Event()

    def gradients(rank: int, step: int) -> Values:
        return np.random.default_rng([rank, step]).standard_normal(layout.elements, dtype=np.float32)

    def work(worker: Worker) -> bytes:
        worker.read()
        worker.exchange.begin(1)
        for group, (start, stop) in enumerate(worker.bounds):
            if worker.rank == 1 and group == 0:
                assert wanted.wait(120)
            worker.exchange.prepare(group)
            if worker.rank == 0 and group == 1:
                # There is room for group 0 again, whose sum waits for the other worker, who waits for this.
                wanted.set()
            worker.arenas.gradients[start:stop] = gradients(worker.rank, 1)[start:stop]
            worker.exchange.push(group)
        for group, (start, stop) in enumerate(worker.bounds[:-1]):
            worker.exchange.complete(group)
            assert worker.arenas.parameters[start:stop].any()
        worker.exchange.complete(len(worker.bounds) - 1)
        return worker.read().tobytes()

    def ring(zero: int) -> dict[str, object]:
        return {
            "kind": "ring",
            "plan": "per-layer",
            "zero": zero,
            "bucket_bytes": 40000,
            "live_bytes": 100000 * (zero // 3),
        }

    plain = exchange_steps(make_job(1, 2, exchange=ring(0)), layout, gradients, steps=1)
    assert set(run_workers(make_job(1, 2, exchange=ring(3)), layout, work)) == plain.ends


def test_frames_come_one_by_one_as_they_are_updated() -> None:
    """The second worker is played by hand: it sends the first of four frames, and waits before the others."""
    layout = layout_of(4096)
    initial = initial_parameters(layout)
    exchange = {"plan": "per-layer", "zero": 3, "frame_bytes": 4096}
    optimizer = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.0}
    first_came = threading.Event()
    with (
        Cluster(make_job(1, 2, exchange=exchange, optimizer=optimizer)) as cluster,
        cluster.member(0, layout) as member,
        cluster.member(1, layout) as second,
        grpc.insecure_channel(member.addresses[0]) as channel,
        ThreadPoolExecutor(1) as pool,
    ):
        member.exchange.start()
        identity, ones = second.identity, np.ones(1024, dtype=np.float32)
        headers = [header_of(identity.incarnation, 1, 1, 0, offset, 1024, 1) for offset in range(0, 4096, 1024)]

        def frames() -> Iterator[bytes]:
            yield message_of(headers[0], [ones])
            assert first_came.wait(120)
            yield from (message_of(header, [ones], number) for number, header in enumerate(headers[1:], 1))
            assert answered.wait(120)

        answered = threading.Event()
        exchange_with: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            "/taihu.v1.ParameterServerService/Exchange"
        )
        answers = exchange_with(frames(), metadata=identity_to_metadata(identity))
        member.worker.read()
        member.worker.backward(1, np.ones(4096, dtype=np.float32))
        read = pool.submit(member.worker.read)
        # SGD: rate 0.1, mean gradient 1.
        updated = initial - np.float32(0.1)
        parameters = member.arenas.parameters
        wait_for(lambda: np.allclose(parameters[:1024], updated[:1024]), "the first frame did not come", 20)
        assert not parameters[1024:].any()
        first_came.set()
        np.testing.assert_allclose(read.result(timeout=120), updated, rtol=1e-6)
        answered.set()
        answers.cancel()
