"""Agents that call a coordinator: what they hear, and when; and copies that workers bring it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from support.cluster import layout_of
from support.controls import Place, coordinator_of, place
from support.daemons import wait_for
from support.held import hold, job_in, memory_in, state_of
from support.memberships import make_membership

from taihu.core.base.errors import ConfigError, FrameError, MemberLostError, StaleError
from taihu.core.checkpoint.copies import MOST_BYTES, Copies
from taihu.core.checkpoint.files import open_part, part_bytes
from taihu.core.checkpoint.gathering import Gathering
from taihu.core.checkpoint.held_steps import Label
from taihu.core.checkpoint.part import Part, State
from taihu.core.checkpoint.run_memory import prepare_memory
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.coordination.agents.hosting import Agents
from taihu.core.coordination.control.asks import Assigned, Attend, Begin, Copy
from taihu.core.coordination.control.looking import AgentStatus, Change, GetStatus
from taihu.core.coordination.coordinator.coordinator import Coordinator
from taihu.core.coordination.coordinator.desk import Desk
from taihu.core.coordination.coordinator.gatherer import gather
from taihu.core.coordination.coordinator.parties import Parties
from taihu.core.coordination.coordinator.past import Past
from taihu.core.coordination.membership.members import Begun, Life, MemberId, MemberRecord, Progress, Role, RunState
from taihu.core.coordination.membership.outcome import Terms
from taihu.core.coordination.membership.stopping import PendingStop
from taihu.core.coordination.servers.hosting import JoinedServers
from taihu.core.job import Job
from taihu.core.wire.serving.server import RpcServer
from taihu.protos import coordinator_pb2 as pb
from taihu.protos.coordinator_pb2_grpc import CoordinatorServiceStub

JOB = Job.model_validate({"cluster": {"servers": 1, "workers": 2, "heartbeat_s": 0.5}})
ANNA, BERT = 71, 72
ONCE = Past(1)
GENERATION = 5


class Coordinated:
    """A coordinator of two workers, whose agents call it at `place`."""

    def __init__(self, where: Place, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.control = where.control("an agent")

    def attend(
        self, agent: int, *runs: int, job: str = JOB.name, digest: str = JOB.digest, timeout_s: float = 30.0
    ) -> Assigned:
        return self.control.call(Attend(job, agent, f"agent {agent}", digest, runs), timeout_s)

    @property
    def agents(self) -> tuple[AgentStatus, ...]:
        return self.control.call(GetStatus(), 30.0).agents


@contextmanager
def coordinated(
    agents: Agents | None, kind: str = "memory", begun: Begun | None = None, past: Past = ONCE
) -> Iterator[Coordinated]:
    coordinator = coordinator_of(JOB, Terms(recovers=True), GENERATION)
    with place(kind) as where:
        where.opens(Desk(coordinator, begun, agents=agents, past=past))
        run = Coordinated(where, coordinator)
        yield run
        run.control.close()


def test_an_agent_is_answered_as_soon_as_it_is_to_run_others() -> None:
    with coordinated(Agents.of(JOB)) as run, ThreadPoolExecutor(1) as pool:
        first = pool.submit(run.attend, ANNA)
        wait_for(lambda: run.agents, "the first agent has not come")
        assert run.attend(BERT).ranks == (1,)
        assert first.result(timeout=10).ranks == (0,)
        assert [(each.name, each.ranks, each.leaves) for each in run.agents] == [
            (f"agent {ANNA}", (0,), False),
            (f"agent {BERT}", (1,), False),
        ]


@pytest.mark.parametrize("kind", ["memory", "grpc"])
def test_who_begins_is_told_why_and_where_the_workers_run(kind: str) -> None:
    agents, worker = Agents.of(JOB), Life(MemberId(Role.WORKER, 0), 9)
    past = Past().began(0).ended("agent bert leaves").began(7)
    with coordinated(agents, kind, begun=Begun(GENERATION, 7, follows=past.follows), past=past) as run:
        assert run.attend(ANNA, 0, 1).ranks == (0, 1)
        begun = run.control.call(Begin(JOB.name, worker, JOB.digest, frozenset(), agent=ANNA), 30.0)
        assert begun == Begun(GENERATION, 7, follows="agent bert leaves", shared_out=f"agent {ANNA} 0, 1")
        status = run.control.call(GetStatus(), 30.0)
        assert (status.generations, status.changes) == (2, (Change("agent bert leaves", 7),))


def test_the_past_keeps_the_last_ends_and_the_number_of_all() -> None:
    past = Past().began(0)
    assert (past.generations, past.changes, past.follows) == (1, (), "")
    for step in range(1, 101):
        past = past.ended(f"the {step}th").began(step)
    assert past.generations == 101
    assert past.changes == tuple(Change(f"the {step}th", step) for step in range(81, 101))
    assert past.follows == "the 100th"


def test_an_agent_that_hears_nothing_new_is_answered_before_it_gives_up() -> None:
    with coordinated(Agents.of(JOB)) as run:
        answer = run.attend(ANNA, timeout_s=1.0)
        assert answer.ranks == ()
        assert answer.awaited == "others that may come"


def test_an_agent_whose_call_breaks_off_is_gone_soon() -> None:
    agents = Agents.of(JOB)
    with (
        coordinated(agents, "grpc") as run,
        ThreadPoolExecutor(2) as pool,
        Parties(agents, JoinedServers.of(JOB)).watched(run.coordinator),
    ):
        # The first has rank 0, the second says that it runs the other one.
        run.attend(BERT, 1, timeout_s=0.5)
        wait_for(lambda: run.attend(ANNA).ranks == (0,), "the first agent has nothing to run")
        held = pool.submit(run.attend, BERT, 1, timeout_s=60.0)
        wait_for(lambda: run.agents[0].seconds_since_call < 0.2, "the call has not come")
        run.control.renew(cuts=True)
        with pytest.raises(MemberLostError):
            held.result(timeout=60)
        wait_for(lambda: run.attend(ANNA, 0).ranks == (0, 1), "nobody has taken over")


def test_a_coordinator_whose_run_is_over_waits_until_those_that_stand_by_know() -> None:
    agents = Agents.of(JOB)
    parties = Parties(agents, JoinedServers.of(JOB))
    with coordinated(agents) as run, ThreadPoolExecutor(1) as pool:
        run.attend(ANNA, timeout_s=0.5)  # and asks again a moment later
        with run.coordinator.changing() as (membership, _):
            membership.outcome.state = RunState.FINISHED
        told = pool.submit(parties.tell_end, run.coordinator, 60.0)
        with pytest.raises(TimeoutError):
            told.result(timeout=0.1)
        assert run.attend(ANNA).state is RunState.FINISHED
        told.result(timeout=60)


def test_nobody_that_stands_by_is_waited_for_where_members_begin_again() -> None:
    agents = Agents.of(JOB)
    parties = Parties(agents, JoinedServers.of(JOB))
    with coordinated(agents) as run, ThreadPoolExecutor(1) as pool:
        run.attend(ANNA, timeout_s=0.5)
        with run.coordinator.changing() as (membership, _):
            membership.outcome.end_generation("worker 1 was lost")
        pool.submit(parties.tell_end, run.coordinator, 60.0).result(timeout=30)


def test_an_agent_of_another_job_is_told_so() -> None:
    with coordinated(Agents.of(JOB)) as run:
        with pytest.raises(StaleError, match="not 'another'; check the address"):
            run.attend(ANNA, job="another")
        with pytest.raises(ConfigError, match="its job has other settings than the run's"):
            run.attend(ANNA, digest="0")
        assert not run.agents


def test_a_run_that_a_lost_worker_ends_takes_no_agents() -> None:
    with coordinated(None) as run, pytest.raises(ConfigError, match=r"agents need checkpoint\.dir"):
        run.attend(ANNA)


def test_a_copy_that_comes_when_its_generation_is_over_is_left_out() -> None:
    agents, worker = Agents.of(JOB), Life(MemberId(Role.WORKER, 0), 9)
    with coordinated(agents) as run:
        with run.coordinator.changing() as (membership, now):
            membership.roster.members[worker.member] = MemberRecord(9, "", now)

        def bring(step: int) -> None:
            run.control.call(Copy(JOB.name, worker, Label(GENERATION, step), b"", stays=False), 60.0)

        bring(3)
        with run.coordinator.changing() as (membership, _):
            membership.outcome.end_generation("a worker is lost")
        bring(4)
    assert [agents.copies.has("worker 0", Label(GENERATION, step)) for step in (3, 4)] == [True, False]


def part_of(step: int, values: float | None = None) -> Part:
    own = {} if values is None else {"moment": np.full(3, values, dtype=np.float32)}
    return Part("worker 0", step, State(own=own, facts={"told": "words"}))


def test_a_copy_is_the_part_that_was_brought() -> None:
    copies = Copies()
    for step in (3, 4):
        copies.put("worker 0", Label(7, step), part_bytes(part_of(step, step)), stays=False)
    assert copies.covers("worker 0")
    assert not copies.covers("worker 1")
    assert [copies.has("worker 0", Label(*label)) for label in ((7, 3), (7, 4), (7, 5), (6, 4))] == [1, 1, 0, 0]
    state = copies.state_of("worker 0", Label(7, 3))
    np.testing.assert_array_equal(state.own["moment"], np.full(3, 3.0))
    assert state.facts == {"told": "words"}


def test_a_part_that_stays_is_that_of_later_steps_of_its_generation() -> None:
    copies = Copies()
    copies.put("worker 0", Label(7, 3), part_bytes(part_of(3)), stays=True)
    assert [copies.has("worker 0", Label(7, step)) for step in (2, 3, 900)] == [False, True, True]
    assert copies.state_of("worker 0", Label(7, 900)).facts == {"told": "words"}
    copies.put("worker 0", Label(8, 900), part_bytes(part_of(900, 1.0)), stays=False)
    assert not copies.has("worker 0", Label(7, 900))
    assert [copies.has("worker 0", Label(8, step)) for step in (900, 901)] == [True, False]


def test_no_more_is_kept_than_a_member_holds() -> None:
    copies = Copies()
    for step in range(9):
        copies.put("worker 0", Label(7, step), b"", stays=False)
    assert [step for step in range(9) if copies.has("worker 0", Label(7, step))] == [6, 7, 8]
    with pytest.raises(FrameError, match="a copy of 1,048,577 bytes"):
        copies.put("worker 0", Label(7, 9), bytes(MOST_BYTES + 1), stays=False)


def held_by(gathering: Gathering, **labels: list[int]) -> None:
    for life, (member, steps) in enumerate(labels.items(), start=1):
        gathering.holds(member.replace("_", " "), life, frozenset(Label(7, step) for step in steps), 0.0)


def test_a_copy_stands_in_for_what_a_new_host_does_not_hold() -> None:
    copies = Copies()
    copies.put("worker 0", Label(7, 3), b"", stays=True)
    gathering = Gathering(("server 0", "server 1", "worker 0"), 1.0, copies)
    held_by(gathering, worker_0=[])
    assert not gathering.is_over
    held_by(gathering, worker_0=[], server_0=[4, 5], server_1=[5, 6])
    assert [gathering.wanted_of(f"server {index}", 2 + index) for index in (0, 1)] == [Label(7, 5)] * 2
    assert gathering.wanted_of("worker 0", 1) is None
    assert gathering.wanted_here == ("worker 0", Label(7, 5))


def test_a_worker_that_holds_the_step_writes_it_itself() -> None:
    copies = Copies()
    copies.put("worker 0", Label(7, 4), b"", stays=False)
    gathering = Gathering(("server 0", "worker 0"), 1.0, copies)
    held_by(gathering, worker_0=[4, 5], server_0=[4, 5])
    assert gathering.wanted_of("worker 0", 1) == Label(7, 5)
    assert gathering.wanted_here is None


def test_nothing_is_awaited_where_the_others_hold_nothing_that_was_copied() -> None:
    copies = Copies()
    copies.put("worker 0", Label(7, 4), b"", stays=False)
    gathering = Gathering(("server 0", "server 1", "worker 0"), 1.0, copies)
    held_by(gathering, server_0=[5], server_1=[5], worker_0=[])
    assert gathering.is_over
    assert gathering.parts is None


def test_a_step_is_gathered_whose_worker_has_lost_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but worker 0 hold step 4, and what it had of that was copied."""
    memory_in(tmp_path, monkeypatch)
    rpc = RpcServer.create(threads=16)
    port = rpc.listen("127.0.0.1:0")
    cluster = {"servers": 1, "workers": 2, "connect_timeout_s": 120.0, "coordinator": f"127.0.0.1:{port}"}
    job = job_in(tmp_path / "kept", cluster=cluster, compression={"method": "none"})
    prepare_memory(job)
    hold(job, 4, members=("server 0",), generation=GENERATION)
    agents = Agents.of(job)
    agents.copies.put("worker 0", Label(GENERATION, 4), part_bytes(part_of(4, 8.0)), stays=False)

    def ask(stub: CoordinatorServiceStub) -> Callable[[], pb.BeginResponse]:
        member = pb.Member(role=pb.ROLE_WORKER, rank=0, incarnation=9)
        return lambda: stub.Begin(pb.BeginRequest(job=job.name, member=member), timeout=60, wait_for_ready=True)

    with ThreadPoolExecutor(1) as pool:
        gathered = pool.submit(gather, job, "server 0", rpc, Parties(agents, JoinedServers.of(job)), PendingStop())
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert ask(CoordinatorServiceStub(channel))().again
        gathered.result(timeout=120)
    rpc.stop(0.0)
    store = CheckpointStore(tmp_path / "kept")
    assert store.steps() == [4]
    folder = tmp_path / "kept" / "step-000004"
    with open_part(folder / "worker-0.safetensors") as stored:
        np.testing.assert_array_equal(stored.own()["moment"], np.full(3, 8.0))
    with open_part(folder / "server-0.safetensors") as stored:
        assert stored.names("shared") == list(state_of("server 0", 4).shared.arrays)


def test_workers_move_behind_a_step_that_is_known() -> None:
    """Before that one may have been made that nobody would keep: it was made again."""
    agents, membership = Agents.of(JOB), make_membership(1, 2, terms=Terms(recovers=True))
    workers = [MemberId(Role.WORKER, rank) for rank in range(2)]
    for member in (MemberId(Role.SERVER, 0), *workers):
        layout = layout_of(100) if member.role is Role.WORKER else None
        membership.admission.join(member, 1, job="demo", digest="", now=0.0, layout=layout)
    assert membership.outcome.state is RunState.RUNNING

    def attend(*lives: int, now: float) -> None:
        with agents.changing() as attendance:
            for life in lives:
                attendance.attends(life, f"agent {life}", attendance.ranks_of(life), now=now)
        agents.look(membership, now)

    attend(ANNA, now=0.0)
    attend(ANNA, now=3.5)
    attend(ANNA, BERT, now=4.0)
    attend(ANNA, BERT, now=5.5)
    assert membership.outcome.state is RunState.RUNNING
    assert not membership.outcome.stop.reason
    membership.liveness.heartbeat(workers[0], 1, Progress(step=1), job="demo", now=5.6)
    attend(ANNA, BERT, now=5.7)
    assert membership.outcome.state is RunState.RUNNING
    assert membership.outcome.stop.reason == f"agent agent {BERT} joins"


@pytest.mark.parametrize("recovers", [True, False])
def test_an_agent_that_joins_ends_no_run_that_could_not_begin_again(recovers: bool) -> None:
    """A move would stop the run for good where `checkpoint.restarts` are used up."""
    agents = Agents.of(JOB)
    coordinator = coordinator_of(JOB, Terms(recovers=recovers), GENERATION)
    with coordinator.changing() as (membership, now), agents.changing() as attendance:
        attendance.attends(ANNA, "anna", (0, 1), now=now)
        attendance.attends(BERT, "bert", (), now=now)
        for rank in range(2):
            member = MemberId(Role.WORKER, rank)
            membership.roster.members[member] = MemberRecord(9, "", now, progress=Progress(step=7))
        membership.outcome.begin()
    with coordinator.changing() as (membership, now):
        agents.look(membership, now + 1.5)
        assert membership.outcome.stop.reason == ("agent bert joins" if recovers else "")
    with coordinator.changing() as (membership, now), agents.changing() as attendance:
        attendance.attends(ANNA, "anna", (0, 1), leaves=True, now=now)
    with coordinator.changing() as (membership, now):
        agents.look(membership, now + 1.5)
        assert membership.outcome.stop.reason == ("agent bert joins" if recovers else "agent anna leaves")
