"""A member's words for a coordinator that is not there any more."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from support.certificates import TestAuthority
from support.cluster import layout_of, make_job
from support.daemons import free_port
from typing_extensions import override

from taihu.core.base.errors import MemberLostError, StaleError, TaihuError
from taihu.core.coordination.client import client as module
from taihu.core.coordination.client.client import CoordinatorClient
from taihu.core.coordination.client.heartbeats import HeartbeatThread
from taihu.core.coordination.coordinator.coordinator import Coordinator
from taihu.core.coordination.coordinator.desk import Desk
from taihu.core.coordination.coordinator.service import COORDINATOR_SERVICE, CoordinatorServicer
from taihu.core.coordination.membership.members import Begun, MemberId, Progress, Role, RunState
from taihu.core.coordination.membership.membership import Membership
from taihu.core.coordination.membership.outcome import Terms
from taihu.core.coordination.membership.stopping import StopNotice
from taihu.core.job import Job
from taihu.core.wire.base.clock import SystemClock
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.serving.channel import open_channel
from taihu.core.wire.serving.server import RpcServer
from taihu.protos import coordinator_pb2 as pb


@pytest.mark.parametrize(("kind", "host"), [("ring", "worker 0"), ("server", "server 0")])
def test_a_lost_coordinator_is_named_as_the_member_that_hosts_it(kind: str, host: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    job = make_job(1, 2, exchange={"kind": kind, "zero": 1})
    with (
        CoordinatorClient.at(address, job, MemberId(Role.WORKER, 1), 1) as client,
        pytest.raises(MemberLostError, match=f"^{host}, coordinator at {address}: UNAVAILABLE"),
    ):
        client.get_plan(5)


class Coordinated:
    """A client whose run has ended when it asks for the third time."""

    peer = "coordinator"

    def __init__(self) -> None:
        self.heartbeats = 0

    def heartbeat(self, progress: Progress, stop: StopNotice) -> tuple[RunState, str]:
        self.heartbeats += 1
        return (RunState.FINISHED if self.heartbeats == 3 else RunState.RUNNING), ""


def test_a_heartbeat_that_is_hurried_is_followed_by_others_until_the_run_has_ended() -> None:
    job = Job.model_validate({"cluster": {"heartbeat_s": 3600, "lost_after_s": 7200}})
    client, ended = Coordinated(), threading.Event()
    with HeartbeatThread(cast(CoordinatorClient, client), job, Progress, lambda *_: ended.set()) as heartbeats:
        heartbeats.hurry()
        assert ended.wait(60)
    assert client.heartbeats == 3


def serving(**handlers: grpc.RpcMethodHandler[Any, Any]) -> tuple[grpc.Server, str]:
    """A coordinator that answers these calls alone, and its address."""
    server = grpc.server(ThreadPoolExecutor(4), options=(("grpc.http2.max_ping_strikes", 0),))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("taihu.v1.CoordinatorService", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"


def test_a_coordinator_that_names_the_missing_members_late_is_heard() -> None:
    """It gives up when the member does, and its answer takes a while on a machine that is busy."""

    def joined(request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
        left_s = context.time_remaining()
        threading.Event().wait(0.6)
        context.abort(grpc.StatusCode.ABORTED, f"worker 1 did not join; {left_s > 5.0}")

    handler = grpc.unary_unary_rpc_method_handler(
        joined, pb.JoinRequest.FromString, pb.JoinResponse.SerializeToString
    )
    server, address = serving(Join=handler)
    told = {"workers": 3, "connect_timeout_s": 0.5, "lost_after_s": 30.0, "heartbeat_s": 0.1}
    job = Job.model_validate({"cluster": told, "exchange": {"kind": "ring"}})
    with (
        CoordinatorClient.at(address, job, MemberId(Role.WORKER, 0), 1) as client,
        pytest.raises(TaihuError, match="worker 1 did not join; True"),
    ):
        client.join()
    server.stop(None).wait()


def begun(request: pb.BeginRequest, context: grpc.ServicerContext) -> pb.BeginResponse:
    """The answer of a coordinator whose generation is the seventh, from step 3 on."""
    return pb.BeginResponse(generation=7, step=3)


def test_a_coordinator_that_has_its_name_alone_of_the_former_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[str] = []

    def resolved(name: str, patience: Patience, *_: object) -> grpc.Channel:
        """As gRPC does: the address that the name has when the channel is opened."""
        assert name == "server:7070"
        known.append(former if len(known) < 3 else successor)
        return open_channel(known[-1], patience)

    former = f"127.0.0.1:{free_port()}"
    server, successor = serving(
        Begin=grpc.unary_unary_rpc_method_handler(
            begun, pb.BeginRequest.FromString, pb.BeginResponse.SerializeToString
        )
    )
    monkeypatch.setattr(module, "open_channel", resolved)
    with CoordinatorClient.at("server:7070", make_job(1, 2), MemberId(Role.WORKER, 1), 1) as client:
        assert client.begin() == Begun(7, 3)
    server.stop(None).wait()
    assert known == [former] * 3 + [successor]


def test_a_connection_on_which_nobody_answers_is_given_up_for_another() -> None:
    """As gRPC's is now and then that was made while the server of the last generation ended."""
    peers: list[str] = []
    is_over = threading.Event()

    def answered_over_the_third(request: pb.BeginRequest, context: grpc.ServicerContext) -> pb.BeginResponse:
        peers.append(context.peer())
        if len(peers) < 3:
            is_over.wait()
        return begun(request, context)

    handler = grpc.unary_unary_rpc_method_handler(
        answered_over_the_third, pb.BeginRequest.FromString, pb.BeginResponse.SerializeToString
    )
    server, address = serving(Begin=handler)
    job = Job.model_validate({"cluster": {"connect_timeout_s": 20, "lost_after_s": 0.5, "heartbeat_s": 0.1}})
    try:
        with CoordinatorClient.at(address, job, MemberId(Role.WORKER, 1), 1) as client:
            assert client.begin() == Begun(7, 3)
    finally:
        is_over.set()
        server.stop(None).wait()
    assert len(set(peers)) == len(peers) >= 3


def test_a_loss_that_is_told_after_the_client_has_closed_ends_no_thread() -> None:
    """A link that breaks while its member ends is watched by a thread of its own, which may come last."""
    job = make_job(1, 2, exchange={"kind": "server", "zero": 1})
    with CoordinatorClient.at(f"127.0.0.1:{free_port()}", job, MemberId(Role.WORKER, 1), 1) as client:
        pass
    client.tell_of_loss(MemberLostError("worker 0 was lost: its connection broke"))


def test_a_call_of_a_client_that_has_closed_tells_that_its_member_takes_no_part() -> None:
    """A frame of the next plan is taken in by a thread that asks for this plan, when its server has left already."""
    job = make_job(1, 2, exchange={"kind": "server", "zero": 1})
    with CoordinatorClient.at(f"127.0.0.1:{free_port()}", job, MemberId(Role.SERVER, 1), 1) as client:
        pass
    with pytest.raises(StaleError, match="server 1 takes no part any more"):
        client.get_plan(5)
    with pytest.raises(StaleError, match="server 1 takes no part any more"):
        client.left_out(4, "the disk is full")


class Renewing(SystemClock):
    """A clock by which `renew` is called once, where somebody waits before it asks again."""

    def __init__(self, renew: Callable[[], None]) -> None:
        self._renew: Callable[[], None] | None = renew

    @override
    def sleep(self, seconds: float) -> None:
        if self._renew is not None:
            self._renew()
            self._renew = None
        super().sleep(seconds)


def test_who_was_to_join_by_certificates_that_are_renewed_reads_them_again(tmp_path: Path) -> None:
    """It was refused until it gave up: its channel kept what it had read before."""
    former, present = TestAuthority(tmp_path / "own"), TestAuthority(tmp_path / "present")
    for authority in (former, present):
        for place in ("server/0", "worker/0"):
            authority.sign(place)
    rpc = RpcServer.create(threads=8, security=present.security("server/0"))
    address = f"127.0.0.1:{rpc.listen('127.0.0.1:0')}"
    job = make_job(1, 1, security=dict(former.settings()), exchange={"transport": "grpc"})
    membership = Membership.of(job, Terms(), 0)
    membership.admission.join(MemberId(Role.SERVER, 0), 1, job=job.name, digest=job.digest, now=0.0, address="here")
    coordinator = Coordinator(membership, lambda _: pytest.fail("nobody asks for a plan"), SystemClock())
    CoordinatorServicer(Desk(coordinator)).register(rpc.grpc_server)
    rpc.start((COORDINATOR_SERVICE,))

    def renew() -> None:
        for path in present.folder.iterdir():
            shutil.copy(path, former.folder)

    try:
        with CoordinatorClient.at(address, job, MemberId(Role.WORKER, 0), 1, Renewing(renew)) as client:
            assert client.join(layout=layout_of(3)) == ("here",)
    finally:
        rpc.stop(0.0)
