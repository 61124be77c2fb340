"""The coordinator's words survive the wire, and what this version does not know is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import CHARACTERS

from taihu.core.base.errors import ConfigError, FrameError
from taihu.core.base.words import told
from taihu.core.checkpoint.files import PartFile
from taihu.core.checkpoint.gathering import WrittenPart
from taihu.core.checkpoint.held_steps import MOST_HELD, Label
from taihu.core.coordination.control.asks import LeftOut
from taihu.core.coordination.control.kinds import fields_of
from taihu.core.coordination.control.looking_ways import LIFE, LOOKING_KINDS, STATE
from taihu.core.coordination.control.ways import HELD, PART, PLAN
from taihu.core.coordination.membership.members import Life, MemberId, Progress, Role, RunState
from taihu.core.coordination.plans.plan import Plan
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.model.world import World
from taihu.core.planner.carriage import CARRIAGES
from taihu.core.planner.groups import Group
from taihu.protos import coordinator_pb2 as pb

PROGRESS = fields_of(pb.Progress, Progress, LOOKING_KINDS)
quick = settings(deadline=None)

UINT32 = st.integers(0, 2**32 - 1)
UINT64 = st.integers(0, 2**64 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False)
NAMES = st.text(CHARACTERS, max_size=8)
TENSORS = st.builds(TensorSpec, NAMES, st.lists(st.integers(0, 9), max_size=4).map(tuple))
LAYERS = st.builds(LayerSpec, NAMES, st.lists(TENSORS, max_size=3).map(tuple))
WHOLE = {"step", "tests", "moves", "total_steps", "bytes_sent_per_step", "bytes_received_per_step"}
FLOATS = {f.name: UINT64 if f.name in WHOLE else FLOAT32 for f in fields(Progress)}
WORDS = ("test_metric", "path", "waits_for", "busy_with", "waits_in")
COUNTS = st.lists(UINT64, max_size=4).map(tuple)
PROGRESSES = st.builds(Progress, **{**FLOATS, **dict.fromkeys(WORDS, NAMES), "begun": COUNTS})


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    layers = draw(st.lists(LAYERS, max_size=6))
    cuts = draw(st.sets(st.integers(1, len(layers) - 1))) if len(layers) > 1 else set()
    bounds = sorted({0, *cuts, len(layers)})
    groups = tuple(Group(first, following - 1) for first, following in pairwise(bounds))
    return Plan(
        draw(UINT32),
        draw(UINT64),
        groups,
        Layout(tuple(layers)),
        draw(st.integers(1, 2**32 - 1)),
        carriage=draw(st.sampled_from(CARRIAGES)),
        world=World(draw(st.integers(0, 2**32 - 1)), draw(st.integers(1, 2**32 - 1))),
    )


@quick
@given(st.sampled_from(Role), UINT32, UINT64)
def test_members_come_back_equal(role: Role, rank: int, incarnation: int) -> None:
    life = Life(MemberId(role, rank), incarnation)
    assert LIFE.of(pb.Member.FromString(LIFE.to(life).SerializeToString())) == life


@quick
@given(INT32.filter(lambda role: role not in (pb.ROLE_SERVER, pb.ROLE_WORKER)))
def test_a_role_that_is_not_known_is_refused(role: int) -> None:
    message = pb.Member(role=pb.Role.ValueType(role), rank=1)
    with pytest.raises(FrameError, match=f"member role {role}: expected ROLE_SERVER or ROLE_WORKER"):
        LIFE.of(message)


@quick
@given(PROGRESSES)
def test_progress_comes_back_equal(progress: Progress) -> None:
    message = PROGRESS.to(progress)
    shown: dict[str, Any] = {name: told(getattr(progress, name)) for name in WORDS}
    assert PROGRESS.of(pb.Progress.FromString(message.SerializeToString())) == replace(progress, **shown)


def test_every_field_of_progress_has_its_place_on_the_wire() -> None:
    assert {item.name for item in fields(Progress)} == {item.name for item in pb.Progress.DESCRIPTOR.fields}


@pytest.mark.parametrize("state", RunState)
def test_states_come_back_equal(state: RunState) -> None:
    message = pb.HeartbeatResponse(state=STATE.to(state))
    assert STATE.of(pb.HeartbeatResponse.FromString(message.SerializeToString()).state) is state


@quick
@given(INT32.filter(lambda state: state not in {STATE.to(known) for known in RunState}))
def test_a_state_that_is_not_known_is_refused(state: int) -> None:
    """proto3 hands on the number of a state that a newer version sent."""
    message = pb.HeartbeatResponse(state=pb.RunState.ValueType(state))
    with pytest.raises(FrameError, match=f"run state {state}: not known"):
        STATE.of(message.state)


def test_every_state_on_the_wire_but_the_unspecified_is_known() -> None:
    known = {STATE.of(number) for number in pb.RunState.values() if number}
    assert known == set(RunState)


@quick
@given(plans())
def test_plans_come_back_equal(plan: Plan) -> None:
    message = PLAN.to(plan)
    again = PLAN.of(pb.GetPlanResponse.FromString(message.SerializeToString()))
    assert again == plan
    assert again.layout.digest == plan.layout.digest


@quick
@given(plans(), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=4))
def test_a_plan_that_does_not_cover_its_layers_is_refused(plan: Plan, bounds: list[tuple[int, int]]) -> None:
    message = PLAN.to(plan)
    del message.groups[:]
    message.groups.extend(pb.Group(first_layer=first, last_layer=last) for first, last in bounds)
    covered = [layer for first, last in bounds for layer in range(first, last + 1)]
    if covered == list(range(len(plan.layout.layers))) and all(first <= last for first, last in bounds):
        assert PLAN.of(message).groups == tuple(Group(first, last) for first, last in bounds)
        return
    with pytest.raises(ConfigError, match="every layer belongs to one"):
        PLAN.of(message)


def test_a_plan_of_empty_frames_is_refused() -> None:
    layout = Layout((LayerSpec("fc", (TensorSpec("weight", (2, 3)),)),))
    message = PLAN.to(Plan(1, 1, (Group(0, 0),), layout, 1, world=World(0, 2)))
    message.frame_elements = 0
    with pytest.raises(ConfigError, match="frames of 0 values: expected at least 1"):
        PLAN.of(message)


def test_a_carriage_that_is_not_known_is_refused() -> None:
    layout = Layout((LayerSpec("fc", (TensorSpec("weight", (2, 3)),)),))
    message = PLAN.to(Plan(1, 1, (Group(0, 0),), layout, 1, world=World(0, 2)))
    message.carriage = pb.CARRIAGE_UNSPECIFIED
    with pytest.raises(FrameError, match="carriage 0 of a plan: not known to this version"):
        PLAN.of(message)


def test_a_plan_with_a_negative_dimension_is_refused() -> None:
    layout = Layout((LayerSpec("fc", (TensorSpec("weight", (2, 3)),)),))
    message = PLAN.to(Plan(1, 1, (Group(0, 0),), layout, 1, world=World(0, 2)))
    message.layout.layers[0].tensors[0].shape[1] = -3
    with pytest.raises(FrameError, match="fc/weight has a negative dimension"):
        PLAN.of(message)


LABELS_HELD = st.frozensets(st.builds(Label, UINT64, UINT64), max_size=MOST_HELD)


@quick
@given(LABELS_HELD)
def test_held_steps_survive_the_wire(labels: frozenset[Label]) -> None:
    request = pb.BeginRequest.FromString(pb.BeginRequest(held=HELD.to(labels)).SerializeToString())
    assert HELD.of(request.held) == labels


@quick
@given(st.builds(Label, UINT64, UINT64), UINT64, st.text("0123456789abcdef", min_size=64, max_size=64), NAMES)
def test_parts_of_held_steps_survive_the_wire(label: Label, size: int, sha256: str, run: str) -> None:
    part = WrittenPart(label, PartFile("server-1.safetensors", size, sha256), run)
    assert PART.of(pb.HeldPart.FromString(PART.to(part).SerializeToString())) == part


@quick
@given(st.builds(Label, UINT64, UINT64), st.text(CHARACTERS, min_size=1, max_size=8))
def test_parts_that_are_left_out_survive_the_wire(label: Label, why: str) -> None:
    part = LeftOut(label, why)
    assert PART.of(pb.HeldPart.FromString(PART.to(part).SerializeToString())) == part


def test_more_steps_than_a_member_can_hold_are_refused() -> None:
    held = [pb.HeldStep(generation=1, step=step) for step in range(MOST_HELD + 1)]
    with pytest.raises(FrameError, match="4 held steps: expected at most 3"):
        HELD.of(held)
