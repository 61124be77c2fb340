"""A run that fails before the first step: whoever waits for a server is told the cause, and nobody keeps waiting."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from support.cluster import Cluster, initial_parameters, layout_of, make_job
from support.frames import initial_header

from taihu.allreduce.communicator import Communicator
from taihu.core.base.errors import FrameError, MemberLostError, RunError, TaihuError
from taihu.core.coordination.control.looking_ways import STATE
from taihu.core.coordination.plans.planning import first_plan
from taihu.core.wire.frames.format import message_of
from taihu.core.wire.frames.identity import Sender, WorkerIdentity, identity_to_metadata
from taihu.core.wire.frames.layouts import layout_to_message
from taihu.core.wire.links import direct_connection
from taihu.core.wire.links.connection import Connection
from taihu.core.wire.links.inbox import Origin
from taihu.protos import parameter_server_pb2 as pb
from taihu.worker.exchange.making import Beside, between_workers, through_servers
from taihu.worker.memory.arenas import arenas_of

LAYOUT = layout_of(8, 3)
SERVICE = "/taihu.v1.ParameterServerService"


def test_a_worker_that_waits_for_initial_parameters_is_told_why_they_do_not_come() -> None:
    with Cluster(make_job(2, 2)) as cluster, cluster.member(1, LAYOUT) as waiting:
        with ThreadPoolExecutor(1) as pool, cluster.member(0, LAYOUT) as failing:
            started = pool.submit(waiting.exchange.start)
            failing.client.finish(failure="out of paper")
            with pytest.raises(RunError, match=r"^worker 0: out of paper$"):
                started.result(timeout=120)
        cluster.join()


def test_a_call_for_initial_parameters_ends_with_the_run() -> None:
    with Cluster(make_job(1, 2)) as cluster, cluster.member(1, LAYOUT) as waiting:
        with grpc.insecure_channel(waiting.addresses[0]) as channel:
            fetch: grpc.UnaryStreamMultiCallable[pb.FetchRequest, bytes] = channel.unary_stream(
                f"{SERVICE}/Fetch", pb.FetchRequest.SerializeToString
            )
            life = waiting.identity.incarnation
            request = pb.FetchRequest(job="taihu", rank=1, incarnation=life, layout_digest=LAYOUT.digest)
            call = fetch(request, timeout=600)
            waiting.client.finish(failure="out of paper")
            with pytest.raises(grpc.RpcError, match="out of paper"):
                list(call)
        cluster.join()


def test_a_worker_that_initializes_a_mute_server_is_told_why_the_run_failed() -> None:
    with Cluster(make_job(1, 1)) as cluster, cluster.member(0, LAYOUT) as member, socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with (
            through_servers(cluster.job, member.plan, [address], member.identity, member.arenas) as exchange,
            ThreadPoolExecutor(1) as pool,
        ):
            started = pool.submit(exchange.start)
            connection, _ = mute.accept()
            with connection:
                exchange.fail(RunError("server 0 was lost"))
                with pytest.raises(RunError, match=r"^server 0 was lost$"):
                    started.result(timeout=120)


def test_initial_parameters_of_another_plan_are_refused() -> None:
    layout = layout_of(8)
    header = initial_header(1000, 2, 0, 0, 0, 8, 0)
    frame = pb.InitializeRequest()
    frame.frame = message_of(header, [np.zeros(8, dtype=np.float32)])
    requests = [pb.InitializeRequest(layout=layout_to_message(layout)), frame]
    with Cluster(make_job(1, 1)) as cluster, cluster.member(0, layout) as member:
        with grpc.insecure_channel(member.addresses[0]) as channel:
            initialize: grpc.StreamUnaryMultiCallable[pb.InitializeRequest, bytes] = channel.stream_unary(
                f"{SERVICE}/Initialize", pb.InitializeRequest.SerializeToString
            )
            with pytest.raises(grpc.RpcError) as caught:
                initialize(iter(requests), timeout=120, metadata=identity_to_metadata(member.identity))
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        member.exchange.start()
        assert (member.step(1, np.zeros(8, dtype=np.float32)) == initial_parameters(layout)).all()


def test_a_state_of_a_later_version_is_refused() -> None:
    with pytest.raises(FrameError, match="run state 99"):
        STATE.of(99)


def test_a_connection_that_ends_by_itself_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something between worker and server may close the values' connection and leave the stream open."""
    connections: list[Connection] = []
    connect = direct_connection.connect_directly

    def remember(*arguments: Any) -> Connection:
        connections.append(connect(*arguments))
        return connections[-1]

    monkeypatch.setattr(direct_connection, "connect_directly", remember)
    layout = layout_of(8)
    with Cluster(make_job(1, 2)) as cluster, cluster.member(0, layout) as first, cluster.member(1, layout) as second:
        first.exchange.start()
        second.exchange.start()
        first.exchange.begin(1)
        connections[0].cut()
        with pytest.raises(TaihuError, match=r"worker 0 was lost|server 0 at .* was lost: its connection ended"):
            first.exchange.wait(0)
        second.exchange.begin(1)
        second.exchange.push(0)
        with pytest.raises(TaihuError, match="worker 0"):
            second.exchange.wait(0)
        cluster.join()


def test_a_connection_that_was_given_up_before_the_exchange_is_not_used() -> None:
    """A worker whose handshake took too long goes on in the stream, whatever the server thinks of the connection."""
    layout = layout_of(8)
    job = make_job(1, 1, exchange={"transport": "grpc"})
    with Cluster(job) as cluster, cluster.member(0, layout) as member:
        address = member.addresses[0]
        with grpc.insecure_channel(address) as channel:
            origin = Origin("server 0", Sender(0))
            connection = direct_connection.open_connection(channel, SERVICE[1:], address, member.identity, origin)
            assert connection is not None
            connection.close()
            member.exchange.start()
            assert member.exchange.path == "grpc"
            member.step(1, np.zeros(8, dtype=np.float32))
        member.client.finish(parameters_sha256="equal")
        cluster.join()
        assert cluster.outcomes == {0: None}


def test_an_exchange_whose_network_has_failed_before_it_is_made_says_so() -> None:
    job = make_job(1, 1, exchange={"kind": "ring"})
    told: list[TaihuError] = []
    with Communicator(WorkerIdentity("taihu", 0, 1), 1) as communicator:
        lost = MemberLostError("worker 1 was lost: its connection broke")
        communicator.fail(lost)
        plan = first_plan(job, LAYOUT, one_host=True)
        exchange = between_workers(
            job, plan, communicator, arenas_of(job, LAYOUT.elements), Beside(on_failure=told.append)
        )
        with pytest.raises(MemberLostError, match=r"^worker 1 was lost"):
            exchange.start()
        exchange.close()
        assert told == [lost]
