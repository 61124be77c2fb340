"""The service around a shard, called over a free port of this machine: who is let in, and what others are told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import count
from queue import SimpleQueue
from typing import Any, Self

import grpc
import numpy as np
import pytest
from support.frames import changed, header_of, initial_header, read
from support.shards import LAYOUT, make_plan, shard_job

from taihu.core.base.errors import FrameError, MemberLostError, ModelError, RunError, StaleError, TaihuError
from taihu.core.job import Job
from taihu.core.planner.partition import Shard
from taihu.core.trace import Tracer
from taihu.core.wire.base.status import error_from_rpc
from taihu.core.wire.frames.format import message_of
from taihu.core.wire.frames.headers import Frame, FrameHeader
from taihu.core.wire.frames.identity import Sender, WorkerIdentity, identity_to_metadata
from taihu.core.wire.frames.kinds import Encoding, Question, RingSegment, Summed
from taihu.core.wire.frames.layouts import layout_to_message
from taihu.core.wire.links.direct_connection import DirectListener, open_connection
from taihu.core.wire.links.frame_link import FrameLink, LinkEnd
from taihu.core.wire.links.inbox import Origin, Sink
from taihu.core.wire.links.pipe import PipeEvents
from taihu.core.wire.links.shared_memory import SharedBuffer, SharedDescriptor, buffer_to_message, open_shared
from taihu.core.wire.serving.metrics import ServerMetrics
from taihu.core.wire.serving.server import RpcServer
from taihu.protos import parameter_server_pb2 as pb
from taihu.ps_server.exchanges import WorkerExchange
from taihu.ps_server.servicer import PARAMETER_SERVER_SERVICE, ParameterServerServicer
from taihu.ps_server.shard_holder import ShardHolder
from taihu.worker.exchange.servers.calls import ServerCalls

TIMEOUT_S = 120.0


class Served:
    """A server's service and a channel to it; a context manager."""

    def __init__(self, job: Job | None = None) -> None:
        self.job = job or shard_job({"exchange": {"transport": "grpc"}})
        self.lost: SimpleQueue[tuple[int, str]] = SimpleQueue()
        self.strangers: set[WorkerIdentity] = set()
        self.metrics = ServerMetrics(0)
        self._holder = ShardHolder(self.job, 0, 7, make_plan)
        self.servicer = ParameterServerServicer(
            self.job,
            self._holder,
            self.metrics,
            on_lost=lambda rank, how: self.lost.put((rank, how)),
            tracer=Tracer.off(),
            listener=DirectListener("127.0.0.1"),
            vouch=self._vouch,
        )
        self.frames = Shard(LAYOUT, 1, 0).frames(make_plan().groups, 40)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        rpc = RpcServer.create(threads=12)
        self.address = f"127.0.0.1:{rpc.listen('127.0.0.1:0')}"
        self.servicer.register(rpc.grpc_server)
        rpc.start((PARAMETER_SERVER_SERVICE,))
        self._stack.callback(self._holder.stop_sharing)
        self._stack.callback(rpc.stop, 0.1)
        self._stack.callback(self.servicer.close)
        self.channel = self._stack.enter_context(grpc.insecure_channel(self.address))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _vouch(self, identity: WorkerIdentity) -> None:
        if identity in self.strangers:
            raise StaleError(f"worker {identity.rank} has not joined")

    def end(self, error: TaihuError) -> None:
        """As a daemon whose run has failed."""
        self.servicer.fail(error)
        self._holder.stop_sharing()

    def initialize(self, *requests: pb.InitializeRequest, identity: WorkerIdentity | None = None) -> int:
        """The number of values that the server says it holds; without requests all that it needs is brought."""
        metadata = identity_to_metadata(identity or worker(0))
        call: grpc.StreamUnaryMultiCallable[pb.InitializeRequest, pb.InitializeResponse] = self.channel.stream_unary(
            f"/{PARAMETER_SERVER_SERVICE}/Initialize",
            pb.InitializeRequest.SerializeToString,
            pb.InitializeResponse.FromString,
        )
        try:
            return call(iter(requests or list(initial_requests())), timeout=TIMEOUT_S, metadata=metadata).elements
        except grpc.RpcError as error:
            raise error_from_rpc(error, "server 0") from None

    def fetch(self, **request: Any) -> list[Frame]:
        call: grpc.UnaryStreamMultiCallable[pb.FetchRequest, bytes] = self.channel.unary_stream(
            f"/{PARAMETER_SERVER_SERVICE}/Fetch", pb.FetchRequest.SerializeToString
        )
        known: dict[str, Any] = {"job": "taihu", "rank": 1, "incarnation": 71, "layout_digest": LAYOUT.digest}
        try:
            return [read(message) for message in call(pb.FetchRequest(**known | request), timeout=TIMEOUT_S)]
        except grpc.RpcError as error:
            raise error_from_rpc(error, "server 0") from None

    def share(self, identity: WorkerIdentity, buffer: SharedBuffer) -> bool:
        """Whether the server tells of its own memory in return."""
        call: grpc.UnaryUnaryMultiCallable[pb.ShareRequest, pb.ShareResponse] = self.channel.unary_unary(
            f"/{PARAMETER_SERVER_SERVICE}/Share", pb.ShareRequest.SerializeToString, pb.ShareResponse.FromString
        )
        request = pb.ShareRequest(job=identity.job, rank=identity.rank, incarnation=identity.incarnation)
        request.gradients.CopyFrom(buffer_to_message(buffer.descriptor))
        try:
            return call(request, timeout=TIMEOUT_S).HasField("parameters")
        except grpc.RpcError as error:
            raise error_from_rpc(error, "server 0") from None

    def keep(self, identity: WorkerIdentity) -> None:
        call: grpc.UnaryUnaryMultiCallable[pb.KeepRequest, pb.KeepResponse] = self.channel.unary_unary(
            f"/{PARAMETER_SERVER_SERVICE}/Keep", pb.KeepRequest.SerializeToString, pb.KeepResponse.FromString
        )
        request = pb.KeepRequest(job=identity.job, rank=identity.rank, incarnation=identity.incarnation)
        try:
            call(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise error_from_rpc(error, "server 0") from None

    def connect(self, identity: WorkerIdentity) -> socket.socket | None:
        origin = Origin("server 0", Sender(0))
        opened = open_connection(self.channel, PARAMETER_SERVER_SERVICE, self.address, identity, origin)
        return None if opened is None else opened.alone()

    def exchange(self, identity: WorkerIdentity | None) -> Exchanging:
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = self.channel.stream_stream(
            f"/{PARAMETER_SERVER_SERVICE}/Exchange"
        )
        return Exchanging(self, call, identity)


class Exchanging:
    """The stream of one worker."""

    def __init__(self, served: Served, call: Any, identity: WorkerIdentity | None) -> None:
        self._served = served
        self._identity = identity
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()
        self._numbers = count()
        metadata = identity_to_metadata(identity) if identity is not None else ()
        self._answers = call(iter(self._requests.get, None), metadata=metadata, timeout=TIMEOUT_S)

    def push(self, number: int, step: int = 1, **changes: Any) -> None:
        """A frame of ones."""
        assert self._identity is not None
        spec = self._served.frames[number]
        identity = self._identity
        header = header_of(identity.incarnation, 1, step, spec.group, spec.offset, spec.count, identity.rank)
        ones = [np.ones(spec.count, np.float32)]
        self._requests.put(message_of(changed(header, **changes), ones, next(self._numbers)))

    def answer(self) -> FrameHeader:
        """The next answer, or the error that ends the stream."""
        try:
            return read(next(self._answers)).header
        except grpc.RpcError as error:
            raise error_from_rpc(error, "server 0") from None

    def end(self) -> None:
        """End the stream in good order, and await that the server does."""
        self._requests.put(None)
        assert list(self._answers) == []


def worker(rank: int, incarnation: int | None = None, job: str = "taihu") -> WorkerIdentity:
    return WorkerIdentity(job, rank, 70 + rank if incarnation is None else incarnation)


def initial_requests() -> Iterator[pb.InitializeRequest]:
    yield pb.InitializeRequest(layout=layout_to_message(LAYOUT))
    for spec in Shard(LAYOUT, 1, 0).state_frames(40):
        request = pb.InitializeRequest()
        header = initial_header(70, 1, 0, spec.group, spec.offset, spec.count, 0)
        request.frame = message_of(header, [np.full(spec.count, 2.0, np.float32)])
        yield request


def push_all(exchanges: Iterable[Exchanging], number: int, step: int = 1) -> None:
    for exchange in exchanges:
        exchange.push(number, step)


def test_all_workers_are_answered_when_all_have_pushed() -> None:
    with Served() as served:
        assert served.initialize() == LAYOUT.elements
        exchanges = [served.exchange(worker(rank)) for rank in range(2)]
        for number, spec in enumerate(served.frames):
            push_all(exchanges, number)
            assert {exchange.answer().address.offset for exchange in exchanges} == {spec.offset}
        exchanges[0].push(0)  # again, to one alone
        assert exchanges[0].answer().address.at.step == 1
        push_all(exchanges, 0, step=2)
        assert [exchange.answer().address.at.step for exchange in exchanges] == [2, 2]
        read = served.fetch()
        assert {frame.header.address.at.step for frame in read} == {2}
        for exchange in exchanges:
            exchange.end()
        assert sorted(served.lost.get(timeout=TIMEOUT_S) for _ in range(2)) == [
            (0, "its exchange ended"),
            (1, "its exchange ended"),
        ]
        collected = served.metrics.registry.collect()
        numbers = {sample.name: sample.value for family in collected for sample in family.samples}
        assert numbers["taihu_step"] == 2
        assert numbers["taihu_duplicate_frames_total"] == 1


def test_a_stream_that_is_opened_after_a_failure_is_told_of_it() -> None:
    with Served() as served:
        served.initialize()
        exchanges = [served.exchange(worker(rank)) for rank in range(2)]
        push_all(exchanges, 0)
        assert [exchange.answer().address.at.step for exchange in exchanges] == [1, 1]
        for reason in ("out of paper", "later"):
            served.servicer.fail(RunError(reason))
        for exchange in (*exchanges, served.exchange(worker(0)), served.exchange(worker(1, 99))):
            with pytest.raises(RunError, match=r"^out of paper$"):
                exchange.answer()
        with pytest.raises(RunError, match=r"^out of paper$"):
            served.fetch()


def test_a_connection_of_an_earlier_incarnation_is_cut_and_not_used() -> None:
    with Served() as served:
        served.initialize()
        earlier = served.connect(worker(0, 1))
        assert earlier is not None
        with earlier:
            exchanges = [served.exchange(worker(0, 2)), served.exchange(worker(1))]
            push_all(exchanges, 0)
            assert [exchange.answer().address.at.step for exchange in exchanges] == [1, 1]
            earlier.settimeout(TIMEOUT_S / 4)  # before the exchanges themselves end
            assert earlier.recv(1) == b""


def test_an_initialization_is_the_layout_and_then_its_frames() -> None:
    layout, *frames = initial_requests()
    with Served() as served:
        for requests, words in (
            ([frames[0]], "expected the layout first, then frames"),
            ([layout, layout], "expected the layout first, then frames"),
            ([layout, pb.InitializeRequest()], "expected the layout first, then frames"),
            ([layout, *frames[1:]], "1 of 4 frames did not come"),
        ):
            with pytest.raises(FrameError, match=words):
                served.initialize(*requests)
        call: grpc.StreamUnaryMultiCallable[bytes, bytes] = served.channel.stream_unary(
            f"/{PARAMETER_SERVER_SERVICE}/Initialize"
        )
        with pytest.raises(grpc.RpcError, match="expected the layout first, got nothing"):
            call(iter(()), timeout=TIMEOUT_S, metadata=identity_to_metadata(worker(0)))
        with pytest.raises(StaleError, match="no parameters yet"):
            served.exchange(worker(0)).answer()
        served.initialize()
        with pytest.raises(StaleError, match="initialized already"):
            served.initialize()


def test_parameters_are_told_to_workers_of_the_same_job_and_model() -> None:
    with Served() as served:
        served.initialize()
        read = served.fetch()
        assert sum(frame.header.address.elements for frame in read) == LAYOUT.elements
        assert all((frame.values == 2.0).all() for frame in read)
        assert served.fetch(without_values=True) == []
        with pytest.raises(ModelError, match="the worker's model differs from the server's"):
            served.fetch(layout_digest="other")
        with pytest.raises(ModelError, match="the worker's model differs from the server's"):
            served.fetch(layout_digest="other", without_values=True)
        with pytest.raises(StaleError, match="worker 1 belongs to job 'other', this is job 'taihu'"):
            served.fetch(job="other")


def test_strangers_are_not_let_in() -> None:
    with Served() as served:
        served.initialize()
        with SharedBuffer.create(4 * LAYOUT.elements) as buffer:
            for stranger, words in (
                (worker(2), "worker 2: outside the world of 2 workers"),
                (worker(0, job="other"), "worker 0 belongs to job 'other', this is job 'taihu'"),
            ):
                with pytest.raises(StaleError, match=words):
                    served.exchange(stranger).answer()
                with pytest.raises(StaleError, match=words):
                    served.share(stranger, buffer)
                assert served.connect(stranger) is None
        with pytest.raises(FrameError, match="exchange without the metadata"):
            served.exchange(None).answer()


def test_who_has_not_joined_reads_and_changes_nothing() -> None:
    """Worker 77 fetched a shard, and whoever knew the job's name could bring parameters."""
    unjoined, outside = worker(1, 5), worker(77)
    with Served() as served, SharedBuffer.create(4 * LAYOUT.elements) as buffer:
        served.strangers.add(unjoined)
        served.strangers.add(worker(0, 5))
        for identity, words in (
            (worker(0, 5), "worker 0 has not joined"),
            (worker(1), "worker 1 brings parameters"),
            (outside, "worker 77: outside the world"),
        ):
            with pytest.raises(StaleError, match=words):
                served.initialize(identity=identity)
        served.initialize()
        exchanges = [served.exchange(worker(rank)) for rank in range(2)]
        for identity, words in ((unjoined, "worker 1 has not joined"), (outside, "worker 77: outside the world")):
            with pytest.raises(StaleError, match=words):
                served.fetch(rank=identity.rank, incarnation=identity.incarnation)
            with pytest.raises(StaleError, match=words):
                served.share(identity, buffer)
            with pytest.raises(StaleError, match=words):
                served.keep(identity)
            with pytest.raises(StaleError, match=words):
                served.exchange(identity).answer()
            assert served.connect(identity) is None
        push_all(exchanges, 0)
        assert [exchange.answer().address.at.step for exchange in exchanges] == [1, 1]


def test_a_rank_has_one_exchange() -> None:
    with Served() as served:
        served.initialize()
        exchanges = [served.exchange(worker(rank)) for rank in range(2)]
        push_all(exchanges, 0)
        assert [exchange.answer().address.at.step for exchange in exchanges] == [1, 1]
        with pytest.raises(StaleError, match="worker 0 has an open exchange already; ranks must be unique"):
            served.exchange(worker(0, 99)).answer()
        push_all(exchanges, 0, step=2)
        assert [exchange.answer().address.at.step for exchange in exchanges] == [2, 2]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"elements": 3}, FrameError, "expected"),
        ({"step": 2}, StaleError, "step 2, expected 1"),
        ({"kind": Question(), "encoding": Encoding.NONE}, FrameError, "expected 0 float32 values"),
        (
            {"kind": RingSegment(1)},
            FrameError,
            "worker 0 sent a segment of a ring: expected gradients or learning rates or a question or a farewell",
        ),
        (
            {"kind": Summed()},
            FrameError,
            "worker 0 sent an answer: expected gradients or learning rates or a question or a farewell",
        ),
    ],
)
def test_a_bad_frame_ends_its_exchange_alone(changes: dict[str, Any], error: type[TaihuError], words: str) -> None:
    with Served() as served:
        served.initialize()
        bad, good = served.exchange(worker(0)), served.exchange(worker(1))
        bad.push(0, **changes)
        with pytest.raises(error, match=words):
            bad.answer()
        again = served.exchange(worker(0, 99))
        push_all((good, again), 0)
        assert [exchange.answer().address.at.step for exchange in (good, again)] == [1, 1]
        assert served.lost.empty()


@pytest.mark.parametrize("reason", ["out of paper", "worker 0 sent an answer"])
def test_a_worker_is_told_why_before_its_connection_is_cut(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has failed, or it sent a bad frame: one that lost its connection first could only guess."""
    told, cut = threading.Event(), threading.Event()

    def close(exchange: WorkerExchange) -> None:
        if told.wait(TIMEOUT_S / 4):
            cut.set()
        unpatched(exchange)

    unpatched = WorkerExchange.close
    monkeypatch.setattr(WorkerExchange, "close", close)
    with Served() as served:
        served.initialize()
        connection = served.connect(worker(0))
        assert connection is not None
        with connection:
            exchange, other = (served.exchange(worker(rank)) for rank in range(2))
            push_all((exchange, other), 0)
            assert [each.answer().address.at.step for each in (exchange, other)] == [1, 1]
            if reason == "out of paper":
                served.servicer.fail(RunError(reason))
            else:
                exchange.push(1, kind=Summed())
            with pytest.raises(TaihuError, match=reason):
                exchange.answer()
            told.set()
            assert connection.recv(1) == b""
    assert cut.is_set()


def test_a_worker_that_lives_is_told_which_server_has_lost_it() -> None:
    with Served() as served:
        served.initialize()
        connection = served.connect(worker(0))
        assert connection is not None
        with connection:
            exchange = served.exchange(worker(0))
            exchange.push(0)
            connection.sendall(b"half of a header")
            connection.shutdown(socket.SHUT_WR)
            with pytest.raises(MemberLostError, match=r"^server 0: worker 0 was lost: its connection broke$"):
                exchange.answer()
        assert served.lost.get(timeout=TIMEOUT_S) == (0, "its connection broke")


def test_a_worker_whose_connection_is_cut_before_it_opens_its_stream_is_told_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that ends closes connections that no exchange has taken."""
    told: SimpleQueue[TaihuError] = SimpleQueue()
    cut = threading.Event()

    def connection_lost(link: FrameLink, error: TaihuError) -> None:
        cut.set()
        unpatched(link, error)

    unpatched = FrameLink._connection_lost
    monkeypatch.setattr(FrameLink, "_connection_lost", connection_lost)
    nothing = Sink((), places=lambda _: None, take=lambda *_: None, take_frame=lambda _: None)
    with Served() as served:
        served.initialize()
        end = LinkEnd(PARAMETER_SERVER_SERVICE, served.address, Origin("server 0", Sender(0)))
        link = FrameLink(end, worker(0), nothing, PipeEvents(told.put, lambda: None))
        link.prepare("tcp")
        link.settle()
        served.servicer.fail(RunError("out of paper"))
        served.servicer.close()
        assert cut.wait(TIMEOUT_S)
        link.open()
        assert str(told.get(timeout=TIMEOUT_S)) == "out of paper"
        link.close()


def test_a_frame_of_an_attempt_that_was_given_up_is_dropped_and_its_sender_goes_on() -> None:
    """It was under way while another worker's frame of the next attempt came."""
    with Served() as served:
        served.initialize()
        exchanges = [served.exchange(worker(rank)) for rank in range(2)]
        for exchange in exchanges:
            exchange.push(0, attempt=1)
        assert [exchange.answer().address.at.attempt for exchange in exchanges] == [1, 1]
        exchanges[0].push(1)
        for exchange in exchanges:
            exchange.push(1, attempt=1)
        assert [exchange.answer().address.at.attempt for exchange in exchanges] == [1, 1]


def test_who_opens_memory_when_the_run_has_failed_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name may be gone by then, which is no reason to say that this machine shares none."""
    job = shard_job({})
    with (
        Served(job) as served,
        SharedBuffer.create(4 * LAYOUT.elements) as buffer,
        ExitStack() as stack,
    ):
        served.initialize()
        calls = ServerCalls(
            served.channel, job, worker(0), peer="server 0", track=lambda _: None, is_abandoned=lambda: False
        )
        assert calls.share(buffer, LAYOUT.elements) is not None

        def open_too_late(descriptor: SharedDescriptor) -> SharedBuffer:
            served.end(RunError("worker 1 ran out of paper"))
            return stack.enter_context(open_shared(descriptor))

        monkeypatch.setattr("taihu.worker.exchange.servers.calls.open_shared", open_too_late)
        for _ in range(2):
            with pytest.raises(RunError, match="worker 1 ran out of paper"):
                calls.share(buffer, LAYOUT.elements)


def test_memory_of_another_size_is_another_model() -> None:
    with Served(shard_job({})) as served:
        served.initialize()
        with SharedBuffer.create(4 * LAYOUT.elements) as right, SharedBuffer.create(4 * LAYOUT.elements + 4) as wrong:
            assert served.share(worker(0), right)
            with pytest.raises(FrameError, match=r"shared gradients of 496 bytes: expected 492"):
                served.share(worker(0), wrong)
    with Served() as served, SharedBuffer.create(4 * LAYOUT.elements) as buffer:
        served.initialize()
        assert not served.share(worker(0), buffer)
