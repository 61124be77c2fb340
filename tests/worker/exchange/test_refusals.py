"""Refusals of a server, and the words for them: frames that are malformed or of another worker, plan or model."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any

import grpc
import numpy as np
import pytest
from support.cluster import Cluster, Values, initial_parameters, layout_of, make_job, momentum_sgd
from support.exchanges import run_workers
from support.frames import header_of, question

from taihu.core.base.errors import ModelError, RunError, StaleError, TaihuError
from taihu.core.coordination.client.client import CoordinatorClient
from taihu.core.coordination.membership.members import MemberId, Role
from taihu.core.wire.frames.format import message_of
from taihu.core.wire.frames.headers import FrameHeader, ValueType
from taihu.core.wire.frames.identity import Sender, WorkerIdentity, identity_to_metadata
from taihu.core.wire.frames.kinds import Encoding, Gradients, RingSegment, Summed
from taihu.core.wire.links.connection import PlainConnection
from taihu.core.wire.links.direct_connection import open_connection
from taihu.core.wire.links.inbox import Inbox, Origin, Sink
from taihu.core.wire.links.outbox import Outbox
from taihu.core.wire.links.pipe import PipeEvents
from taihu.core.wire.links.socket_pipe import SocketPipe


def gradients(rank: int, step: int, elements: int) -> Values:
    return np.random.default_rng([rank, step]).standard_normal(elements, dtype=np.float32)


def test_a_worker_with_another_model_is_refused_and_told_where_it_differs() -> None:
    with Cluster(make_job(1, 2)) as cluster, cluster.member(0, layout_of(3, 4)) as member:
        with pytest.raises(ModelError, match=r"layer1 \(weight 5\) here, layer1 \(weight 4\) there"):
            cluster.member(1, layout_of(3, 5))
        member.exchange.start()


def raw_exchange(channel: grpc.Channel) -> grpc.StreamStreamMultiCallable[bytes, bytes]:
    return channel.stream_stream("/taihu.v1.ParameterServerService/Exchange")


MALFORMED: dict[str, bytes | FrameHeader] = {
    "garbage": b"garbage",
    "empty": b"",
    "half a frame": b"half",
    "wrong count": header_of(1001, 1, 1, 0, 0, 5, 1),
    "wrong group": header_of(1001, 1, 1, 3, 0, 8, 1),
    "wrong offset": header_of(1001, 1, 1, 0, 1, 8, 1),
    "foreign plan": header_of(1001, 2, 1, 0, 0, 8, 1),
    "step ahead": header_of(1001, 1, 2, 0, 0, 8, 1),
    "not finite": header_of(1001, 1, 1, 0, 0, 8, 1),
    "a segment of a ring": header_of(1001, 1, 1, 0, 0, 8, 1, kind=RingSegment(0)),
    "an answer": header_of(1001, 1, 1, 0, 0, 8, 1, kind=Summed()),
    "nothing shared": header_of(1001, 1, 1, 0, 0, 8, 1, encoding=Encoding.SHARED),
}
STALE = ("foreign plan", "step ahead")
# A part of a frame is a connection that broke.
IN_MESSAGES_ONLY = ("empty", "half a frame")


def in_stream(kind: str, identity: WorkerIdentity, channel: grpc.Channel) -> Iterator[bytes]:
    """The answers to a stream that brings the malformed frame."""
    good = header_of(1001, 1, 1, 0, 0, 8, 1)
    bad = MALFORMED[kind]
    if isinstance(bad, FrameHeader):
        message = message_of(bad, payload_of(kind, bad))
    else:
        message = message_of(good, [np.ones(8, dtype=np.float32)])[:40] if kind == "half a frame" else bad
    return raw_exchange(channel)(iter([message]), metadata=identity_to_metadata(identity), timeout=120)


def on_connection(kind: str, identity: WorkerIdentity, channel: grpc.Channel, address: str) -> Iterator[bytes]:
    """The answers to a stream beside which a connection brings the malformed frame."""
    origin = Origin("server 0", Sender(0))
    connection = open_connection(channel, "taihu.v1.ParameterServerService", address, identity, origin)
    assert connection is not None
    raw = connection.alone()
    assert raw is not None
    frames = Outbox("server 0")
    answers = raw_exchange(channel)(frames.messages(), metadata=identity_to_metadata(identity), timeout=120)
    bad = MALFORMED[kind]
    if isinstance(bad, FrameHeader):
        nothing = Inbox(origin, Sink((), lambda _: None, lambda *_: None, lambda _: None))
        pipe = SocketPipe(PlainConnection(raw.dup()), Outbox("server 0"), nothing, PipeEvents(lambda error: None))
        pipe.out.send(bad, payload_of(kind, bad))
    else:
        raw.sendall(bad * 100)
        raw.shutdown(socket.SHUT_WR)
    try:
        yield from answers
    finally:
        frames.end()
        connection.close()


def payload_of(kind: str, header: FrameHeader) -> list[Values]:
    value = np.nan if kind == "not finite" else 1
    return [] if header.encoding is Encoding.SHARED else [np.full(header.address.elements, value, dtype=np.float32)]


@pytest.mark.parametrize(
    ("way", "kind"),
    [("stream", kind) for kind in MALFORMED]
    + [("connection", kind) for kind in MALFORMED if kind not in IN_MESSAGES_ONLY],
)
def test_a_malformed_frame_gets_a_status_and_changes_nothing(way: str, kind: str) -> None:
    layout = layout_of(8)
    with Cluster(make_job(1, 2)) as cluster, cluster.member(0, layout) as first, cluster.member(1, layout) as second:
        first.exchange.start()
        with grpc.insecure_channel(first.addresses[0]) as channel:
            if way == "stream":
                answers = in_stream(kind, second.identity, channel)
            else:
                answers = on_connection(kind, second.identity, channel, first.addresses[0])
            with pytest.raises(grpc.RpcError) as caught:
                list(answers)
        expected = grpc.StatusCode.FAILED_PRECONDITION if kind in STALE else grpc.StatusCode.INVALID_ARGUMENT
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() is expected
        assert "\n" not in str(caught.value.details())
        second.exchange.start()
        ends = []
        thread = threading.Thread(target=lambda: ends.append(first.step(1, gradients(0, 1, 8))))
        thread.start()
        ends.append(second.step(1, gradients(1, 1, 8)))
        thread.join(timeout=120)
        expected_end = momentum_sgd(
            initial_parameters(layout), [[gradients(0, 1, 8), gradients(1, 1, 8)]], rate=0.05, momentum=0.9
        )
        np.testing.assert_allclose(ends[0], expected_end, rtol=1e-5, atol=1e-6)
        assert ends[0].tobytes() == ends[1].tobytes()


def test_a_rank_has_one_exchange() -> None:
    layout = layout_of(8)
    with Cluster(make_job(1, 1)) as cluster, cluster.member(0, layout) as member:
        member.exchange.start()
        member.step(1, gradients(0, 1, 8))
        with grpc.insecure_channel(member.addresses[0]) as channel:
            exchange = raw_exchange(channel)
            with pytest.raises(grpc.RpcError, match="open exchange already"):
                list(exchange(iter([]), metadata=identity_to_metadata(member.identity), timeout=120))


def test_pushing_before_the_parameters_are_there_is_refused() -> None:
    with (
        Cluster(make_job(1, 1)) as cluster,
        cluster.member(0, layout_of(8)) as member,
        grpc.insecure_channel(member.addresses[0]) as channel,
    ):
        exchange = raw_exchange(channel)
        with pytest.raises(grpc.RpcError, match="no parameters yet"):
            list(exchange(iter([]), metadata=identity_to_metadata(member.identity), timeout=120))


def test_joining_twice_under_one_rank_is_refused() -> None:
    layout = layout_of(8)
    with Cluster(make_job(1, 2)) as cluster, cluster.member(0, layout):
        assert cluster.job.cluster.coordinator is not None
        with (
            CoordinatorClient.at(cluster.job.cluster.coordinator, cluster.job, MemberId(Role.WORKER, 0), 5) as client,
            pytest.raises(StaleError, match="worker 0 has already joined"),
        ):
            client.join(layout=layout)


@pytest.mark.parametrize(
    ("zero", "reason"), [(1, "asks for what zero 1 answers unasked"), (3, "after step 7: expected step 0")]
)
def test_a_worker_that_asks_for_what_is_not_there_is_refused(zero: int, reason: str) -> None:
    asked = question(1001, 1, 7, 0, 0, 8, 1)
    job = make_job(1, 2, exchange={"plan": "per-layer", "zero": zero})
    layout = layout_of(8)
    with Cluster(job) as cluster, cluster.member(0, layout) as first, cluster.member(1, layout) as second:
        first.exchange.start()
        with grpc.insecure_channel(first.addresses[0]) as channel:
            frames = Outbox("server 0")
            frames.send(asked, ())
            answers = raw_exchange(channel)(
                frames.messages(), metadata=identity_to_metadata(second.identity), timeout=120
            )
            with pytest.raises(grpc.RpcError, match=reason):
                list(answers)


def test_workers_with_different_loss_scales_are_told_so() -> None:
    job = make_job(1, 2, exchange={"plan": "per-layer"}, train={"precision": "fp16", "loss_scale": 256.0})
    layout = layout_of(8)
    with Cluster(job) as cluster, cluster.member(0, layout) as first, cluster.member(1, layout) as second:
        first.exchange.start()
        with grpc.insecure_channel(first.addresses[0]) as channel:
            header = header_of(1001, 1, 1, 0, 0, 8, 1, value_type=ValueType.FP16, kind=Gradients(512.0))
            frames = Outbox("server 0")
            frames.send(header, [np.zeros(8, dtype=np.uint16)])
            answers = raw_exchange(channel)(
                frames.messages(), metadata=identity_to_metadata(second.identity), timeout=120
            )
            first.worker.backward(1, np.zeros(8, dtype=np.float32))
            with ThreadPoolExecutor(2) as pool:
                ends: list[Future[Any]] = [pool.submit(list, answers), pool.submit(first.worker.complete)]
                # Whoever's frame comes last is told.
                told = str(next(iter(wait(ends, 120, FIRST_EXCEPTION).done)).exception())
                first.exchange.fail(RunError("the test is over"))
                answers.cancel()
            assert "workers scaled their losses by [256.0, 512.0]; expected one scale" in told


def test_gradients_that_are_not_finite_name_the_worker_and_the_layers() -> None:
    job = make_job(1, 1, exchange={"plan": "per-layer", "zero": 2}, train={"precision": "bf16"})
    bad = np.zeros(11, dtype=np.float32)
    bad[4] = np.inf
    told = "worker 0 pushed 1 gradients that are not finite in layers layer1"
    with pytest.raises(TaihuError, match=told):
        run_workers(job, layout_of(3, 5, 3), lambda worker: worker.step(1, bad))


def test_a_frame_of_an_older_attempt_is_dropped() -> None:
    """Its sender has not heard yet that the attempt was given up; what counts is what it sent of the present one."""
    layout = layout_of(8)
    with Cluster(make_job(1, 2)) as cluster, cluster.member(0, layout) as first, cluster.member(1, layout) as second:
        first.exchange.start()
        frames = Outbox("server 0")
        for attempt, value in ((1, 5.0), (2, 1.0), (1, 7.0)):
            header = header_of(1001, 1, 1, 0, 0, 8, 1, attempt=attempt)
            frames.send(header, [np.full(8, value, dtype=np.float32)])
        with grpc.insecure_channel(first.addresses[0]) as channel:
            answers = raw_exchange(channel)(
                frames.messages(), metadata=identity_to_metadata(second.identity), timeout=120
            )
            first.worker.backward(1, np.ones(8, dtype=np.float32), attempt=2)
            seen = first.worker.read()
            answers.cancel()
        ones = np.ones(8, dtype=np.float32)
        expected = momentum_sgd(initial_parameters(layout), [[ones, ones]], rate=0.05, momentum=0.9)
        np.testing.assert_allclose(seen, expected, rtol=1e-5, atol=1e-6)
