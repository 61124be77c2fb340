"""The first frame of a later plan changes a server's shard to it, between two steps and at no other time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.frames import changed
from support.shards import KINDS, OTHER_GROUPS, Driven, all_told, driven, make_plan

from taihu.core.base.errors import FrameError, StaleError
from taihu.core.coordination.plans.plan import Plan
from taihu.core.wire.frames.headers import Frame
from taihu.core.wire.frames.kinds import RingSegment
from taihu.ps_server.aggregator import Outcome
from taihu.ps_server.updating import Answer


def change(run: Driven, from_step: int) -> Frame:
    """The first frame of the run's next plan."""
    run.plans.append(make_plan(2, from_step, OTHER_GROUPS))
    spec = run.frames[0]
    return run.frame(spec, 0, from_step, np.ones(spec.count, np.float32))


def test_frames_of_a_newer_plan_are_refused_while_older_ones_wait() -> None:
    run = driven("momentum")
    run.step(1)
    gradients = run.gradients(2)
    waiting, *rest = run.frames
    run.shard.push(run.frame(waiting, 0, 2, gradients[waiting.offset][0]))
    early = change(run, from_step=2)
    with pytest.raises(StaleError, match="frame of plan 2: this server is at plan 1, the run at plan 2"):
        run.shard.push(early)
    run.plans.pop()
    for spec in (waiting, *rest):
        for rank in range(2):
            if (spec, rank) != (waiting, 0):
                run.shard.push(run.frame(spec, rank, 2, gradients[spec.offset][rank]))
    undisturbed = driven("momentum")
    undisturbed.step(1)
    undisturbed.step(2, gradients)
    assert run.parameters.tobytes() == undisturbed.parameters.tobytes()


def test_frames_of_a_newer_plan_are_refused_before_all_of_the_step_before_came() -> None:
    run = driven("sgd")
    gradients = run.gradients(1)
    for spec in run.frames[:-1]:
        for rank in range(2):
            run.shard.push(run.frame(spec, rank, 1, gradients[spec.offset][rank]))
    with pytest.raises(StaleError, match="which begins with step 2"):
        run.shard.push(change(run, from_step=2))
    assert run.shard.plan.version == 1


def test_frames_of_another_plan_than_the_runs_are_refused() -> None:
    run = driven("sgd")
    run.step(1)
    frame = change(run, from_step=2)
    for version in (3, 4):
        with pytest.raises(StaleError, match=f"frame of plan {version}: this server is at plan 1, the run at pl"):
            run.shard.push(replace(frame, header=changed(frame.header, plan=version)))
    with pytest.raises(StaleError, match="frame of plan 0, this server is at plan 1"):
        run.shard.push(replace(frame, header=changed(frame.header, plan=0)))
    with pytest.raises(FrameError, match="worker 0 sent a segment of a ring: expected gradients"):
        run.shard.push(replace(frame, header=replace(frame.header, kind=RingSegment(1))))
    assert run.shard.plan.version == 1
    run.shard.push(frame)
    assert run.shard.plan.version == 2


@pytest.mark.parametrize("kind", KINDS)
def test_it_changes_no_bit_where_every_value_stands_for_itself(kind: str) -> None:
    if kind == "squeezed":
        return  # Its frames share thresholds.
    steady, changing = driven(kind), driven(kind)
    for step in range(1, 5):
        gradients = steady.gradients(step)
        steady.step(step, gradients)
        if step == 3:
            lent = changing.shard.buffers.lend(12, np.float32)
            changing.shard.buffers.give_back([lent])
            changing.plans.append(make_plan(2, 3, OTHER_GROUPS))
        whole = [np.concatenate([gradients[f.offset][rank] for f in steady.frames]) for rank in range(2)]
        cut = {f.offset: [each[f.offset : f.offset + f.count] for each in whole] for f in changing.frames}
        answers = changing.step(step, cut)
        assert {answer.header.address.at.plan for answer in answers.values()} == {1 if step < 3 else 2}
    assert changing.parameters.tobytes() == steady.parameters.tobytes()
    assert (changing.shard.plan.version, changing.shard.step) == (2, 4)
    assert changing.shard.buffers.lend(12, np.float32) is not lent


def test_what_waits_of_an_attempt_that_was_given_up_is_dropped() -> None:
    run = driven("sgd")
    run.step(1)
    spec = run.frames[0]
    run.shard.push(run.frame(spec, 0, 2, np.full(spec.count, 9.0, np.float32)))
    again = change(run, from_step=2)
    with pytest.raises(StaleError, match="frame of plan 2"):
        run.shard.push(again)
    run.shard.push(replace(again, header=changed(again.header, attempt=1)))
    undisturbed = driven("sgd")
    undisturbed.step(1)
    undisturbed.plans.append(run.plans[-1])
    gradients = undisturbed.gradients(2)
    gradients = {**gradients, run.frames[0].offset: [again.values, gradients[run.frames[0].offset][1]]}
    run.step(2, gradients, attempt=1)
    undisturbed.step(2, gradients)
    assert run.parameters.tobytes() == undisturbed.parameters.tobytes()


def test_what_was_held_back_stays_and_thresholds_are_made_anew_where_layers_are_cut_otherwise() -> None:
    run = driven("squeezed")
    for step in range(1, 4):
        run.step(step)
    before, ranges = arrays_of(run), ranges_of(run)
    assert (before["ages"] >= 0).all()
    assert (before["thresholds"] > 0).all()
    assert np.count_nonzero(before["residual"])
    run.plans.append(make_plan(2, 4, OTHER_GROUPS))
    nothing = {f.offset: [np.zeros(f.count, np.float32)] * 2 for f in run.frames}
    answers = run.step(4, nothing)
    after = arrays_of(run)
    known = np.array([each in ranges for each in ranges_of(run)])
    assert len(after["ages"]) == len(known) != len(before["ages"])
    assert known.any()
    assert not known.all()
    assert (after["ages"][~known] == 0).all()
    # What was not sent now is what had been held back, to the bit; the rest was applied.
    sent = np.array(sorted(all_told(run, answers)))
    assert 0 < len(sent) < run.partition.elements
    rest = np.setdiff1d(np.arange(run.partition.elements), sent)
    assert (after["residual"][rest] == before["residual"][rest]).all()
    moved = before["parameters"] - np.float32(0.05) * before["residual"]
    np.testing.assert_allclose(after["parameters"][sent], moved[sent], rtol=1e-6)


def arrays_of(run: Driven) -> dict[str, NDArray[Any]]:
    """Copies of all that outlasts a step, by name."""
    state = run.shard.state()
    return {**state.shared.arrays, **state.own}


def ranges_of(run: Driven) -> list[list[int]]:
    """Start and stop of what each frame covers of each layer, in the server's arena."""
    return [bounds for frame in run.frames for bounds in frame.shard_bounds.tolist()]


def test_the_runs_plan_is_asked_for_when_a_later_one_comes_and_only_then() -> None:
    run, asked = driven("zero 3"), list[int]()

    def get_plan() -> Plan:
        asked.append(run.shard.step)
        return run.plans[-1]

    run.get_plan = get_plan
    run.step(1)
    run.shard.ask(run.question(run.frames[0], 1, 1))
    assert asked == []
    run.plans.append(make_plan(2, 2, OTHER_GROUPS))
    run.step(2)
    assert asked == [1]


def test_parameters_are_asked_for_by_the_later_plan_first() -> None:
    run = driven("zero 3")
    run.step(1)
    run.plans.append(make_plan(2, 2, OTHER_GROUPS))
    spec = run.frames[0]
    answer = run.shard.ask(run.question(spec, 1, 1))
    assert (answer.header.address.at.plan, answer.header.address.at.step) == (2, 1)
    assert (np.concatenate(answer.pieces) == run.parameters[spec.offset : spec.offset + spec.count]).all()


def test_two_workers_may_bring_the_later_plan_at_the_same_time() -> None:
    run = driven("sgd")
    run.step(1)
    first = change(run, from_step=2)
    spec = run.frames[0]
    second = run.frame(spec, 1, 2, first.values)
    asked: list[int] = []

    def get_plan() -> Plan:
        asked.append(run.shard.plan.version)
        if len(asked) == 1:  # While worker 0 asks for it, worker 1 has changed to it.
            assert run.shard.push(second) is Outcome.PENDING
        return run.plans[-1]

    run.get_plan = get_plan
    assert isinstance(run.shard.push(first), Answer)
    assert asked == [1, 1]
