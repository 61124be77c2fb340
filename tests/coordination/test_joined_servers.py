"""Servers that join, at a coordinator: what they hear, who may be which, and steps that lack some of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.controls import Place, coordinator_of, place
from support.daemons import wait_for
from support.held import hold, job_in, memory_in

from taihu.core.base.errors import ConfigError, StaleError
from taihu.core.checkpoint.run_memory import prepare_memory
from taihu.core.checkpoint.salvage import salvage, servers_held
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.coordination.control.asks import Again, Begin, Seat, Seated
from taihu.core.coordination.coordinator.coordinator import Coordinator
from taihu.core.coordination.coordinator.desk import Desk
from taihu.core.coordination.coordinator.gatherer import gather
from taihu.core.coordination.coordinator.parties import Parties
from taihu.core.coordination.membership.members import Begun, Life, MemberId, Role, RunState
from taihu.core.coordination.membership.outcome import Terms
from taihu.core.coordination.membership.stopping import PendingStop
from taihu.core.coordination.servers.hosting import JoinedServers
from taihu.core.coordination.servers.seats import Seats
from taihu.core.job import Job
from taihu.core.job.sizes import are_of_one_run, tied_to_servers, with_servers
from taihu.core.wire.serving.server import RpcServer

ANNA, BERT = 71, 72
JOB: Mapping[str, Any] = {
    "cluster": {"servers": 1, "workers": 2, "heartbeat_s": 0.2},
    "checkpoint": {"dir": "kept"},
}


def job_of(**sections: Mapping[str, Any]) -> Job:
    return Job.model_validate({**JOB, **sections})


class Joining:
    """A coordinator of a run with one server of its own, which others call at `place`."""

    def __init__(self, where: Place, coordinator: Coordinator, joined: JoinedServers, job: Job) -> None:
        self.coordinator = coordinator
        self.control = where.control("a server")
        self.joined = joined
        self.job = job

    def seat(self, life: int, index: int = 0, *, job: str = "", digest: str = "", timeout_s: float = 30.0) -> Seated:
        ask = Seat(job or self.job.name, life, f"server {life}", digest or self.job.digest, index)
        return self.control.call(ask, timeout_s)

    def begin(self, index: int, life: int) -> Begun | Again:
        member = Life(MemberId(Role.SERVER, index), 5)
        return self.control.call(Begin(self.job.name, member, self.job.digest, agent=life), 30.0)

    def next_generation(self) -> int:
        """Those who wait have places behind it; the number of servers."""
        return self.joined.settle()


@contextmanager
def joining(job: Job | None = None, kind: str = "memory") -> Iterator[Joining]:
    job = job or job_of()
    coordinator, joined = coordinator_of(job, Terms(recovers=True), 5), JoinedServers.of(job)
    with place(kind) as where:
        where.opens(Desk(coordinator, Begun(5), joined=joined))
        run = Joining(where, coordinator, joined, job)
        yield run
        run.control.close()


def test_a_server_is_answered_as_soon_as_it_has_a_place() -> None:
    with joining() as run, ThreadPoolExecutor(1) as pool:
        assert run.seat(ANNA) == Seated(0, RunState.WAITING, "")
        assert run.next_generation() == 2
        assert run.seat(ANNA).index == 1
        held = pool.submit(run.seat, ANNA, 1)
        run.joined.leaves(1)
        assert run.next_generation() == 1
        assert held.result(timeout=30).index == 0


def test_the_place_of_a_server_that_joined_is_its_own() -> None:
    with joining() as run:
        run.seat(ANNA)
        assert run.begin(1, ANNA) == Again()
        run.next_generation()
        assert run.begin(1, BERT) == Again()
        with pytest.raises(ConfigError, match="server 1: outside the world of 1 server"):
            run.begin(1, 0)
    with joining(with_servers(job_of(), 2)) as run:
        assert run.begin(1, 0) == Begun(5)


def test_who_hangs_up_is_gone_soon() -> None:
    with (
        joining(kind="grpc") as run,
        ThreadPoolExecutor(1) as pool,
        Parties(Parties.of(run.job).agents, run.joined).watched(run.coordinator),
    ):
        run.seat(ANNA)
        run.next_generation()
        held = pool.submit(run.seat, ANNA, 1)
        run.control.renew(cuts=True)
        held.exception(timeout=30)
        wait_for(lambda: not run.joined.are_seated, "its place is still its own")


def test_a_coordinator_whose_run_is_over_waits_until_servers_without_a_place_know() -> None:
    with joining() as run, ThreadPoolExecutor(1) as pool:
        run.seat(ANNA)
        with run.coordinator.changing() as (membership, _):
            membership.outcome.state = RunState.FINISHED
        told = pool.submit(Parties(Parties.of(run.job).agents, run.joined).tell_end, run.coordinator, 60.0)
        with pytest.raises(TimeoutError):
            told.result(timeout=0.1)
        assert run.seat(ANNA).state is RunState.FINISHED
        told.result(timeout=60)


def test_nobody_joins_before_a_generation_has_made_a_step() -> None:
    with joining() as run:
        run.seat(ANNA)
        for _ in range(20):
            with run.coordinator.changing() as (membership, now):
                run.joined.look(membership, now + 1.0, moves=True)
                assert not membership.outcome.stop.reason
                assert membership.outcome.state is RunState.WAITING


def test_a_vacant_place_ends_a_generation_and_not_what_is_between_two() -> None:
    job = job_of()
    joined = JoinedServers(
        Seats(1, taken=1, silent_after_s=5.0, gone_after_s=1.0, unheard_after_s=5.0, awaited_s=15.0), job
    )
    coordinator = coordinator_of(job, Terms(recovers=True), 5)
    for moves, state in ((False, RunState.WAITING), (True, RunState.RECOVERING)):
        with coordinator.changing() as (membership, now):
            joined.look(membership, now, moves=moves)
            assert membership.outcome.state is state


def test_who_belongs_to_another_run_is_told_so() -> None:
    with joining() as run:
        with pytest.raises(StaleError, match="not 'another'; check the address"):
            run.seat(ANNA, job="another")
        with pytest.raises(ConfigError, match=f"server server {ANNA}: its job has other settings"):
            run.seat(ANNA, digest="0" * 64)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"exchange": {"kind": "ring"}}, "has no servers"),
        ({"checkpoint": {}}, "servers that join need checkpoint.dir"),
        ({"checkpoint": {"dir": "kept", "restarts": 0}}, "servers that join need checkpoint.dir"),
        ({"compression": {"method": "dlgs", "downlink": "doublesqueeze"}}, "compression.downlink doublesqueeze"),
        (
            {"compression": {"method": "dlgs", "downlink": "exact", "downlink_value_type": "int4"}},
            "compression.downlink_value_type int4",
        ),
    ],
)
def test_runs_that_nobody_joins_say_why(sections: Mapping[str, Any], words: str) -> None:
    with joining(job_of(**sections)) as run, pytest.raises(ConfigError, match=words):
        run.seat(ANNA)


def test_bits_of_dense_and_selected_gradients_depend_on_no_number_of_servers() -> None:
    for method in ("none", "topk", "lags", "dlgs"):
        assert tied_to_servers(job_of(compression={"method": method})) == ""


def test_a_run_is_the_same_with_other_servers_and_no_other_settings() -> None:
    job = job_of()
    more = with_servers(job, 3)
    assert (more.servers, more.shared_settings == job.shared_settings) == (3, False)
    assert are_of_one_run(more.shared_settings, job.shared_settings)
    other = job_of(cluster={"servers": 1, "workers": 3})
    assert not are_of_one_run(other.shared_settings, job.shared_settings)
    assert with_servers(job, 0) is job


def test_steps_count_with_all_servers_of_their_generation_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers hold it, of which one is gone now: what the other has is no checkpoint by itself."""
    memory_in(tmp_path, monkeypatch)
    job = job_in(tmp_path / "kept")
    prepare_memory(job)
    hold(job, 3, 4)
    assert servers_held(with_servers(job, 1)) == 2
    assert salvage(with_servers(job, 1)) is None
    assert salvage(job) == 4


def test_nobody_waits_for_ever_for_what_a_server_held_that_joined_and_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither it nor another one in its place comes to its host within `cluster.lost_after_s`."""
    memory_in(tmp_path, monkeypatch)
    rpc = RpcServer.create(threads=4)
    address = f"127.0.0.1:{rpc.listen('127.0.0.1:0')}"
    cluster = {"servers": 1, "workers": 2, "coordinator": address, "lost_after_s": 1.0, "connect_timeout_s": 3600.0}
    job = job_in(tmp_path / "kept", cluster=cluster)
    prepare_memory(job)
    hold(with_servers(job, 2), 3, 4, members=("server 0",))
    parties = Parties.of(job)
    assert parties.joined.servers == 2
    with ThreadPoolExecutor(1) as pool:
        pool.submit(gather, with_servers(job, 2), "server 0", rpc, parties, PendingStop()).result(timeout=600)
    rpc.stop(0.0)
    assert CheckpointStore(tmp_path / "kept").steps() == []
    assert parties.joined.settle() == 1
