"""Members of several hosts write what they held, and the run goes on behind that: over real gRPC on a free port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs
from support.held import hold, job_in, memory_in

from taihu.core.base.errors import RecoveringError, TaihuError
from taihu.core.checkpoint import salvage as salvaging
from taihu.core.checkpoint.files import write_part
from taihu.core.checkpoint.part import Part
from taihu.core.checkpoint.places import Place
from taihu.core.checkpoint.run_memory import prepare_memory
from taihu.core.checkpoint.salvage import OwnSteps
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.coordination.client.client import CoordinatorClient
from taihu.core.coordination.coordinator.coordinator import Coordinator
from taihu.core.coordination.coordinator.desk import Desk
from taihu.core.coordination.coordinator.gatherer import gather
from taihu.core.coordination.coordinator.parties import Parties
from taihu.core.coordination.coordinator.service import COORDINATOR_SERVICE, CoordinatorServicer
from taihu.core.coordination.membership.members import Begun, MemberId, Role, RunState
from taihu.core.coordination.membership.membership import Membership
from taihu.core.coordination.membership.outcome import Terms
from taihu.core.coordination.membership.stopping import PendingStop
from taihu.core.coordination.status import stop_run
from taihu.core.job import Job
from taihu.core.wire.base.clock import SystemClock
from taihu.core.wire.base.status import error_from_rpc
from taihu.core.wire.serving.server import RpcServer
from taihu.protos import parameter_server_pb2 as pb
from taihu.protos.parameter_server_pb2_grpc import ParameterServerServiceStub

OTHERS = (MemberId(Role.SERVER, 1), MemberId(Role.WORKER, 0), MemberId(Role.WORKER, 1))
"""All but the one that hosts the coordinator."""


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return memory_in(tmp_path, monkeypatch)


def job_at(tmp_path: Path, port: int, connect_timeout_s: float = 120.0) -> Job:
    cluster = {"servers": 2, "workers": 2, "connect_timeout_s": connect_timeout_s}
    return job_in(tmp_path / "kept", cluster={**cluster, "coordinator": f"127.0.0.1:{port}"})


def begin(job: Job, member: MemberId) -> Begun:
    with CoordinatorClient.at(job.cluster.coordinator or "", job, member, 1 + member.rank) as client:
        return client.begin(OwnSteps(job, str(member)))


@contextmanager
def coordinating(job: Job, rpc: RpcServer, begun: Begun) -> Iterator[None]:
    """The next generation's coordinator, which tells all that they may join."""
    coordinator = Coordinator(
        Membership.of(job, Terms(), begun.generation), lambda _: pytest.fail("nobody joins"), SystemClock()
    )
    CoordinatorServicer(Desk(coordinator, begun)).register(rpc.grpc_server)
    rpc.start((COORDINATOR_SERVICE,))
    try:
        yield
    finally:
        rpc.stop(0.0)


class Hosts:
    """The hosts of a job's members, between two generations; `make` makes the job, and has steps held."""

    def __init__(self, tmp_path: Path, connect_timeout_s: float = 120.0) -> None:
        self.rpc = RpcServer.create(threads=16)
        self.job = job_at(tmp_path, self.rpc.listen("127.0.0.1:0"), connect_timeout_s)
        self.store = CheckpointStore(tmp_path / "kept")
        self.pending = PendingStop()
        prepare_memory(self.job)

    def gather(
        self, members: tuple[MemberId, ...] = OTHERS, before: Callable[[], object] = lambda: None
    ) -> list[Begun | TaihuError]:
        """Gather what all hold; where the next generation begins for others, who ask when `before` has returned."""
        with ThreadPoolExecutor(len(OTHERS) + 1) as pool:
            ready = pool.submit(before)

            def ask(member: MemberId) -> Begun:
                ready.result(timeout=120)
                return begin(self.job, member)

            asking = [pool.submit(ask, member) for member in members]
            try:
                gather(self.job, "server 0", self.rpc, Parties.of(self.job), self.pending)
            finally:
                self.rpc.stop(0.0)
            again = RpcServer.create(threads=16)
            again.listen(self.job.cluster.coordinator or "")
            step = next(iter(self.store.steps()), 0)
            with coordinating(self.job, again, Begun(9, step)):
                return list(map(outcome_of, asking))


def outcome_of(asked: Future[Begun]) -> Begun | TaihuError:
    try:
        return asked.result(timeout=120)
    except TaihuError as error:
        return error


def test_each_writes_its_part_and_all_go_on_behind_the_newest_step_that_all_held(
    tmp_path: Path, memory: Path
) -> None:
    hosts = Hosts(tmp_path)
    hold(hosts.job, 3, 4)
    hold(hosts.job, 5, members=("worker 1",))
    assert hosts.gather() == [Begun(9, 4)] * 3
    found = hosts.store.going_on(hosts.job.shared_settings)
    assert found is not None
    assert found.step == 4
    assert set(found.manifest.files) == {"server 0", "server 1", "worker 0", "worker 1"}
    for rank in range(2):
        assert set(found.own_of(f"worker {rank}")["residual"]) == {4.0}


def test_where_somebody_holds_nothing_nobody_is_waited_for(tmp_path: Path, memory: Path) -> None:
    """Its host was lost; the others need not even ask."""
    hosts = Hosts(tmp_path)
    hold(hosts.job, 3, 4, members=("server 0", "server 1", "worker 0"))
    assert hosts.gather(OTHERS[-1:]) == [Begun(9, 0)]
    assert hosts.store.steps() == []


@pytest.mark.parametrize("who", ["server 0", "worker 1"])
def test_where_somebody_cannot_write_a_step_the_one_before_is_taken(
    who: str, tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(folder: Place, part: Part) -> Any:
        if (part.member, part.step) == (who, 4):
            raise OSError(28, "No space left on device")
        return write_part(folder, part)

    monkeypatch.setattr(salvaging, "write_part", write)
    hosts = Hosts(tmp_path)
    hold(hosts.job, 3, 4)
    with capture_logs() as logs:
        assert hosts.gather() == [Begun(9, 3)] * 3
    (told,) = [each for each in logs if each["event"] == "held steps are lost"]
    assert "No space left on device" in told["reason"]


def test_steps_of_a_job_with_other_settings_are_left(tmp_path: Path, memory: Path) -> None:
    hosts = Hosts(tmp_path)
    hold(hosts.job.model_copy(update={"train": hosts.job.train.model_copy(update={"seed": 77})}), 4)
    assert hosts.gather() == [Begun(9, 0)] * 3
    assert hosts.store.steps() == []


def test_who_does_not_come_is_named_and_not_waited_for_any_longer(tmp_path: Path, memory: Path) -> None:
    hosts = Hosts(tmp_path, connect_timeout_s=2.0)
    hold(hosts.job, 4)
    with capture_logs() as logs:
        hosts.gather(OTHERS[:1])
    (told,) = [each for each in logs if each["event"] == "held steps are lost"]
    assert told["reason"].endswith("worker 0 and worker 1")  # the other one may be late, too
    assert hosts.store.steps() == []


def test_a_stop_meanwhile_is_left_to_the_next_generation_and_nothing_is_lost(tmp_path: Path, memory: Path) -> None:
    hosts = Hosts(tmp_path)
    hold(hosts.job, 4)
    states = []

    def stop() -> None:
        states.append(stop_run(hosts.job.cluster.coordinator or "", hosts.job.name, "enough", 120.0))

    assert hosts.gather(before=stop) == [Begun(9, 4)] * 3
    assert states == [RunState.WAITING]
    assert hosts.pending.reason == "enough"


def test_calls_to_what_is_served_there_else_hear_that_all_begin_again(tmp_path: Path, memory: Path) -> None:
    """A worker that had not heard took the process for a stranger, and ended the run."""
    hosts = Hosts(tmp_path)
    hold(hosts.job, 4)

    def call() -> None:
        with grpc.insecure_channel(hosts.job.cluster.coordinator or "") as channel:
            stub = ParameterServerServiceStub(channel)
            for each in (
                lambda: stub.Keep(pb.KeepRequest(), timeout=120, wait_for_ready=True),
                lambda: next(stub.Exchange(iter(()))),
            ):
                with pytest.raises(grpc.RpcError) as raised:
                    each()
                assert isinstance(error_from_rpc(raised.value, "server 0"), RecoveringError)

    assert hosts.gather(before=call) == [Begun(9, 4)] * 3
