"""A member that is lost and comes back, on the virtual clock: when it is noticed, what is replayed, what it costs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.cluster import layout_of
from support.simulations import AT_ONCE, PLAIN, job_of, seconds_of
from support.told_events import Told

import taihu.simulation.servers
import taihu.simulation.worker
from taihu.core.base.errors import ConfigError
from taihu.core.coordination.membership.liveness import TICK_S
from taihu.core.coordination.membership.members import MemberId, Role
from taihu.core.job import Job
from taihu.core.job.signs_of_life import seconds_between_signs
from taihu.simulation.loss import Loss, Recovery, noticed, simulate_loss
from taihu.simulation.machines import Network
from taihu.simulation.placement import Placement

SIZES = (20_000, 400, 60_000)
INSTANT = replace(PLAIN, alpha_seconds=1e-9, bytes_per_second=1e15)
WORKER, SERVER = MemberId(Role.WORKER, 2), MemberId(Role.SERVER, 1)


def lost(job: Job, loss: Loss, network: Network = PLAIN, each: float = 2e-3) -> Recovery:
    layout = layout_of(*SIZES)
    return simulate_loss(job, layout, seconds_of(layout, each), Placement(network, AT_ONCE), None, loss)


@pytest.mark.parametrize(("servers", "member"), [(2, WORKER), (2, SERVER), (0, WORKER)])
@pytest.mark.parametrize("restart_s", [20.0, 1.0])
def test_what_was_done_of_a_step_and_the_time_without_the_member_are_lost(
    servers: int, member: MemberId, restart_s: float
) -> None:
    """Steps of 6 s, and links that take no time; 8.5 s fall into the second one. Silence is noticed after 15 s."""
    recovery = lost(job_of(3, servers), Loss(member, 8.5, restart_s), INSTANT, each=1.0)
    resumed_s = 28.5 if restart_s == 20.0 else 8.5 + 15.0 + TICK_S
    assert (recovery.step, recovery.replayed, recovery.attempt) == (2, 2, 1)
    assert recovery.noticed_s == pytest.approx(8.5 + 15.0 + TICK_S)
    assert recovery.resumed_s == pytest.approx(resumed_s)
    assert recovery.seconds_lost == pytest.approx(resumed_s - 6.0)
    assert recovery.reason == f"{member} was lost after step 1: no heartbeat for 15 s"


@given(at_s=st.floats(0.01, 100.0), heartbeat_s=st.floats(0.05, 2.0), patience_s=st.floats(2.1, 30.0))
@example(at_s=1.25, heartbeat_s=0.0625, patience_s=2.1875)  # five members give fewer signs than that
@settings(max_examples=20)
def test_silence_is_noticed_at_the_first_look_behind_what_is_allowed(
    at_s: float, heartbeat_s: float, patience_s: float
) -> None:
    job = job_of(3, 2, cluster={"workers": 3, "servers": 2, "heartbeat_s": heartbeat_s, "lost_after_s": patience_s})
    found, reason = noticed(job, Loss(WORKER, at_s, 0.0), 4)
    between_s = seconds_between_signs(job)
    beat = between_s * math.floor(at_s / between_s)
    assert patience_s < found - beat <= patience_s + TICK_S * (1 + 1e-6)
    assert reason.startswith("worker 2 was lost after step 3: no heartbeat for ")


WAYS = [
    (2, {}, {}),
    (2, {"zero": 2}, {}),
    (2, {"zero": 3}, {}),
    (2, {"zero": 2}, {"precision": "bf16"}),
    (2, {"zero": 3}, {"precision": "fp16"}),
    (0, {}, {}),
    (0, {"zero": 2}, {}),
    (0, {"zero": 3}, {}),
    (0, {"zero": 3}, {"precision": "fp16"}),
]


@given(way=st.sampled_from(WAYS), plan=st.sampled_from(["single", "per-layer"]), at_s=st.floats(0.001, 0.3))
@settings(max_examples=12)
def test_every_way_of_exchanging_goes_on(
    way: tuple[int, dict[str, object], dict[str, object]], plan: str, at_s: float
) -> None:
    """The time without the member is lost, and at most two steps and the time of its parameters beside it."""
    servers, exchange, train = way
    job = job_of(3, servers, exchange={"plan": plan, **exchange}, train=train)
    for member in (WORKER, *([SERVER] if servers else [])):
        recovery = lost(job, Loss(member, at_s, 20.0))
        assert recovery.replayed in {recovery.step - 1, recovery.step}
        away_s = recovery.resumed_s - at_s
        # What a step has to wait for of the one before ends meanwhile.
        assert away_s - 0.02 <= recovery.seconds_lost <= away_s + 0.2


def test_survivors_give_up_what_is_under_way_and_push_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is lost pushes no more as it was; who is back has the protocol of a new process."""
    job = job_of(3, 1, exchange={"plan": "per-layer"})
    with Told().listening(monkeypatch, taihu.simulation.worker, taihu.simulation.servers) as told:
        recovery = lost(job, Loss(WORKER, 0.05, 20.0))
    # What the undisturbed run made stands behind it.
    first, second, gone, *others = told.pushed
    back = next(events for events in others if events and events[0] == ("push", recovery.replayed, 0))
    for events in (first, second):
        pushes = [event for event in events if event[0] == "push" and event[1] == recovery.replayed]
        assert pushes[-len(SIZES) :] == [("push", recovery.replayed, group) for group in range(len(SIZES))]
        assert len(pushes) > len(SIZES), "nothing was given up"
    assert {step for _, step, _ in back} == set(range(recovery.replayed, recovery.replayed + 3))
    assert max(step for _, step, _ in gone) <= recovery.step


@pytest.mark.parametrize(
    ("servers", "member", "sections", "words"),
    [
        (2, MemberId(Role.SERVER, 0), {}, "server 0 hosts the coordinator"),
        (0, MemberId(Role.WORKER, 0), {}, "worker 0 hosts the coordinator"),
        (2, MemberId(Role.WORKER, 3), {}, "--lose worker:3: the job has worker 0 to 2"),
        (0, MemberId(Role.SERVER, 1), {}, "--lose server:1: the job has no servers"),
        (0, WORKER, {"train": {"precision": "bf16"}}, "no new one can join; set exchange.zero = 3"),
    ],
)
def test_who_cannot_be_lost_is_one_line(
    servers: int, member: MemberId, sections: dict[str, dict[str, object]], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        lost(job_of(3, servers, **sections), Loss(member, 1.0, 1.0))
