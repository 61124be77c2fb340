"""The coordinator: what it takes from whom, in memory; and over gRPC what its messages tell."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grpc
import pytest
from support.checkpoints import with_checkpoints
from support.cluster import Cluster, layout_of, make_job, measured_step
from support.controls import client_of, joined_desk, life_of
from support.memberships import make_membership

from taihu.core.base.errors import ConfigError, FrameError, StaleError, TaihuError
from taihu.core.checkpoint.files import PartFile
from taihu.core.coordination.client.client import CoordinatorClient, coordinator_address
from taihu.core.coordination.client.vouching import vouched_once
from taihu.core.coordination.coordinator.coordinator import Coordinator
from taihu.core.coordination.coordinator.desk import Desk
from taihu.core.coordination.membership.members import MemberId, Progress, Role, RunState
from taihu.core.coordination.membership.membership import Membership
from taihu.core.coordination.membership.outcome import Terms
from taihu.core.coordination.membership.stopping import StopNotice
from taihu.core.coordination.plans.planning import Planning, first_plan
from taihu.core.coordination.status import fetch_status
from taihu.core.job import Job
from taihu.core.planner.measurement import StepMeasurement
from taihu.core.wire.base.clock import SystemClock
from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.protos import coordinator_pb2 as pb
from taihu.protos.coordinator_pb2_grpc import CoordinatorServiceStub

WORKER = MemberId(Role.WORKER, 0)


def joined(desk: Desk, job: Job) -> CoordinatorClient:
    """Worker 0, which has joined with three layers."""
    client = client_of(desk, job, WORKER)
    assert client.join(layout=layout_of(100, 200, 300)) == ("here:1",)
    return client


def test_a_stranger_neither_plans_nor_stops_the_run() -> None:
    """An earlier life of a worker, or a worker of another job that has the address, changes nothing."""
    job = make_job(1, 1, compression={"method": "none"})
    desk = joined_desk(job)
    member = joined(desk, job)
    plan = member.get_plan(120)
    reports = [measured_step(plan, 8 - serial, 1.0, serial=bool(serial)) for serial in (1, 0)]
    for incarnation, name in ((9, job.name), (life_of(WORKER).incarnation, "another")):
        stranger = client_of(desk, job.model_copy(update={"name": name}), WORKER, incarnation)
        expected = "belongs to job 'another'" if name == "another" else "worker 0 with incarnation 9 has not"
        with pytest.raises(StaleError, match=expected):
            stranger.report_steps(8, reports, 120)
        with pytest.raises(StaleError, match=expected):
            stranger.bring_layout(layout_of(1))
        with pytest.raises(TaihuError, match=expected):
            stranger.fix_last_step(8, 10)
    assert member.get_plan(120) == plan
    # Nobody's reports had been taken in: those of step 8 are the first.
    assert member.report_steps(8, reports, 120).version == 2


def test_the_host_tells_whom_it_has_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The log of a process that is refused may be on another machine."""
    ours = make_job(1, 2)
    desk = joined_desk(ours)
    another = ours.model_copy(update={"name": "another"})
    larger = ours.model_copy(update={"train": ours.train.model_copy(update={"batch": 7})})
    for job, words in ((another, "belongs to job 'another'"), (larger, "other settings than server 0")):
        client = client_of(desk, job, MemberId(Role.WORKER, 1), 5)
        with pytest.raises(TaihuError, match=words):
            client.join(layout=layout_of(100))
        told = [line for line in capsys.readouterr().out.splitlines() if "process refused" in line]
        assert len(told) == 1
        assert words in told[0]
        assert "peer=" in told[0]


def test_what_everybody_may_ask_lets_nobody_speak_as_a_member() -> None:
    """Status told the lives of members, and with one of them a forged farewell ended the run."""
    with Cluster(make_job(1, 1)) as cluster, cluster.member(0, layout_of(100)) as member:
        address, worker = coordinator_address(cluster.job), MemberId(Role.WORKER, 0)
        with grpc.insecure_channel(address) as channel:
            raw = CoordinatorServiceStub(channel).GetStatus(pb.GetStatusRequest(), timeout=120)
        told = [entry.member.incarnation for entry in raw.members]
        assert told == [0, 0]
        for incarnation in told:
            with CoordinatorClient.at(address, cluster.job, worker, incarnation) as forger:
                asked: list[Callable[[], object]] = [
                    partial(forger.finish, failure="gone"),
                    partial(forger.heartbeat, Progress(step=9), StopNotice()),
                    partial(forger.get_plan, 10),
                    partial(forger.vouch, worker, member.identity.incarnation),
                    partial(forger.compare, 1, "0" * 64),
                ]
                for ask in asked:
                    with pytest.raises(StaleError, match="has not joined job"):
                        ask()
        status = fetch_status(address, 120)
        assert status.state == RunState.RUNNING
        assert [entry.progress.step for entry in status.members] == [0, 0]


def test_members_ask_whether_who_calls_them_is_one() -> None:
    job = make_job(1, 1)
    member = joined(joined_desk(job), job)
    member.vouch(WORKER, life_of(WORKER).incarnation)
    with pytest.raises(StaleError, match="worker 0 with incarnation 5 has not joined"):
        member.vouch(WORKER, 5)
    with pytest.raises(ConfigError, match="worker 77: outside the world"):
        member.vouch(MemberId(Role.WORKER, 77), 5)


def test_who_was_vouched_for_is_not_asked_about_again_and_strangers_are() -> None:
    asked: list[tuple[MemberId, int]] = []

    def ask(member: MemberId, incarnation: int) -> None:
        asked.append((member, incarnation))
        if incarnation != 7:
            raise StaleError("nobody")

    check = vouched_once(ask)
    for _ in range(2):
        check(WorkerIdentity("job", 1, 7))
        with pytest.raises(StaleError, match="nobody"):
            check(WorkerIdentity("job", 1, 8))
    worker = MemberId(Role.WORKER, 1)
    assert asked == [(worker, 7), (worker, 8), (worker, 8)]


class _SlowPlanning(Planning):
    """A planning that takes its time."""

    def __init__(self) -> None:
        self.begun, self.going_on = threading.Event(), threading.Event()

    def report(self, rank: int, step: int, steps: Sequence[StepMeasurement]) -> None:
        self.begun.set()
        assert self.going_on.wait(120)
        raise StaleError("enough")


def test_signs_of_life_do_not_wait_for_a_plan() -> None:
    """Members were lost on slow machines, where the first plan compiles what it needs."""
    membership = make_membership(1, 1)
    planning, worker = _SlowPlanning(), MemberId(Role.WORKER, 0)
    coordinator = Coordinator(membership, lambda _: planning, SystemClock())
    with coordinator.changing() as (members, now):
        members.admission.join(MemberId(Role.SERVER, 0), 1, job="demo", digest="", now=now)
        members.admission.join(worker, 1, job="demo", digest="", now=now, layout=layout_of(100))
    planning.plan = first_plan(make_job(1, 1), layout_of(100), one_host=False)
    coordinator.plan(1.0)
    with ThreadPoolExecutor(2) as pool:
        reported = pool.submit(coordinator.report, worker, 1, (), 1.0)
        assert planning.begun.wait(120)

        def beat() -> None:
            with coordinator.changing() as (members, now):
                members.liveness.heartbeat(worker, 1, Progress(), job="demo", now=now)

        beaten = pool.submit(beat)
        try:
            beaten.result(timeout=120)
        finally:
            planning.going_on.set()
        with pytest.raises(StaleError, match="enough"):
            reported.result(timeout=120)


def test_a_sign_of_life_wakes_nobody_who_waits_for_the_end() -> None:
    """With hundreds of members, all that wait would look again hundreds of times a second."""
    membership, worker = make_membership(1, 1), MemberId(Role.WORKER, 0)
    coordinator = Coordinator(membership, lambda _: pytest.fail("nobody asks for a plan"), SystemClock())
    looks, looked = [], threading.Semaphore(0)

    def is_over(members: Membership) -> bool:
        looks.append(members.outcome.state)
        looked.release()
        return members.outcome.state.is_final

    def beat() -> None:
        with coordinator.noting() as (members, now):
            members.liveness.heartbeat(worker, 1, Progress(), job="demo", now=now)

    with coordinator.changing() as (members, now):
        members.admission.join(MemberId(Role.SERVER, 0), 1, job="demo", digest="", now=now)
        members.admission.join(worker, 1, job="demo", digest="", now=now, layout=layout_of(100))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(coordinator.wait_for, is_over, 120)
        assert looked.acquire(timeout=120)
        for _ in range(100):
            beat()
        assert not looked.acquire(blocking=False)
        with coordinator.noting() as (members, _):
            members.outcome.fail("enough")
        assert waiting.result(timeout=120)
    assert looks == [RunState.RUNNING, RunState.FAILED]


def test_a_part_under_another_name_or_without_its_hash_is_refused(tmp_path: Path) -> None:
    """The names of a checkpoint's files are those of its members: no message leads out of its folder."""
    job = with_checkpoints(make_job(1, 1), dir=tmp_path)
    member = joined(joined_desk(job), job)
    for name, sha256 in (("../worker-0.safetensors", "0" * 64), ("worker-0.safetensors", "0" * 63)):
        with pytest.raises(FrameError, match=r"expected worker-0.safetensors and its SHA-256"):
            member.stored(1, PartFile(name, 1, sha256))
    member.stored(1, PartFile("worker-0.safetensors", 1, "0" * 64))
    assert not [path for path in tmp_path.iterdir() if path.name != "memory"]


def finished(keep_end: Callable[[str], str | None]) -> Coordinator:
    """A coordinator whose workers have done their part."""
    membership = make_membership(0, 2, terms=Terms(recovers=True, keeps_end=True))
    coordinator = Coordinator(membership, lambda _: _SlowPlanning(), SystemClock(), keep_end=keep_end)
    with coordinator.changing() as (members, now):
        for rank in range(2):
            members.admission.join(
                MemberId(Role.WORKER, rank), 1, job="demo", digest="", now=now, layout=layout_of(100)
            )
        for rank in range(2):
            members.outcome.finish(MemberId(Role.WORKER, rank), 1, job="demo", now=now, parameters_sha256="ab")
    return coordinator


def test_an_end_that_is_being_kept_holds_no_call_up() -> None:
    """A disk may be slow: who asks for the end is answered meanwhile, and does not take the coordinator for lost."""
    kept, going_on = queue.SimpleQueue[str](), threading.Event()

    def keep(parameters_sha256: str) -> None:
        kept.put(parameters_sha256)
        assert going_on.wait(120)

    coordinator = finished(keep)
    for _ in range(2):  # as each worker's call does
        coordinator.conclude()
    assert kept.get(timeout=120) == "ab"
    assert not coordinator.wait_for(lambda m: m.outcome.state.is_final, 0)
    going_on.set()
    assert coordinator.wait_for(lambda m: m.outcome.state is RunState.FINISHED, 120)
    coordinator.close(120)
    assert kept.empty()


def test_an_end_that_cannot_be_kept_is_told_and_kept_later(capsys: pytest.CaptureFixture[str]) -> None:
    """A disk may be full for a while."""
    problems = iter(["no space is left", "no space is left"])
    coordinator = finished(lambda _: next(problems, None))
    coordinator.conclude()
    assert coordinator.wait_for(lambda m: m.outcome.state is RunState.FINISHED, 120)
    assert coordinator.wait_for(lambda m: m.outcome.end_is_kept, 120)
    assert next(problems, "none is left") == "none is left"
    assert capsys.readouterr().out.count("the end of the run cannot be kept yet") == 1


def test_nobody_tries_to_keep_an_end_when_the_coordinator_is_closed() -> None:
    coordinator = finished(lambda _: "no space is left")
    coordinator.conclude()
    assert coordinator.wait_for(lambda m: m.outcome.state is RunState.FINISHED, 120)
    coordinator.close(120)
    assert not any(thread.name == "conclusion" for thread in threading.enumerate())
