"""Cases of machines that come and go: which seeds have them, what is drawn, and what such a run may do."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from random import Random

import pytest

from taihu.explore.campaign.attended import allowed_again, moves_of, problems_of_agents
from taihu.explore.campaign.judging import may_fail
from taihu.explore.campaign.work import Smaller, Work
from taihu.explore.cases import AGENTS, Case, Machines, OrderDraw, Shape
from taihu.explore.faults import fault_from
from taihu.explore.fleets import faults_of_machines, lasting, machines_of
from taihu.explore.outcomes import End, Outcome

SHAPE = Shape(2, 3, 4, 2, {"exchange": {"transport": "tcp"}, "train": {}})


def case(*faults: str, shape: Shape = SHAPE, arrivals: tuple[float, ...] = (0.0, 0.0, 2.5)) -> Case:
    told = tuple(map(fault_from, faults))
    return Case(1, shape, AGENTS, OrderDraw(None), told, machines=Machines(arrivals))


def outcome(**codes: int) -> Outcome:
    ends = {name: End(name, 0, code) for name, code in ((key.replace("_", " "), code) for key, code in codes.items())}
    return Outcome(
        ends,
        former=(),
        standstill="",
        supervision="",
        said=(),
        failures=(),
        findings=(),
        generations=1,
        told_from=1,
        made_again=0,
        checkpoints=(),
        damaged=(),
        left=(),
        connected=(),
        done=(),
        virtual_s=1.0,
        switches=1,
        points=1,
        digest="",
    )


def test_one_of_five_seeds_is_explored_once_more_with_agents() -> None:
    both = [(seed, agents) for seed, _, agents in Work(8, 4, agents=None).all_cases]
    assert both == [(8, False), (9, False), (10, False), (10, True), (11, False)]
    assert [(seed, agents) for seed, _, agents in Work(8, 2, agents=True).all_cases] == [(8, True), (9, True)]
    assert [(seed, agents) for seed, _, agents in Work(8, 2).all_cases] == [(8, False), (9, False)]
    assert [seed for seed, _, _ in islice(Work(0, 10**9).all_cases, 3)] == [0, 1, 2]


def test_a_case_that_names_agents_has_them() -> None:
    cases = [(3, Smaller()), (4, Smaller(agents=[0.0]))]
    assert [agents for _, _, agents in Work(cases=cases).all_cases] == [False, True]


@pytest.mark.parametrize("seed", range(60))
def test_what_is_drawn_can_be_written_down_and_read_again(seed: int) -> None:
    chance = Random(seed)
    machines = machines_of(chance, SHAPE, 2.0)
    assert machines.arrivals[0] == 0.0
    assert list(machines.arrivals) == sorted(machines.arrivals)
    assert 1 <= machines.least <= len(machines.arrivals) <= 4
    faults = faults_of_machines(chance, SHAPE, machines, {("worker 1", "push"): 3}, 2.0)
    assert [fault_from(str(each)) for each in faults] == list(faults)
    agents = {f"agent {number}" for number in range(len(machines.arrivals))}
    assert {each.member for each in faults} <= {*SHAPE.members, *agents}


def test_a_fault_at_a_late_point_can_be_read_again() -> None:
    """Its place has a comma in words, as `1,295th`."""
    fault = replace(fault_from('kill server 0 at its 1st "lock"'), nth=1295)
    assert str(fault) == 'kill server 0 at its 1,295th "lock"'
    assert fault_from(str(fault)) == fault


def test_steps_are_left_when_others_join() -> None:
    assert lasting(SHAPE).steps >= 2 * SHAPE.steps
    assert lasting(SHAPE) == lasting(SHAPE)
    assert lasting(SHAPE).step_s > 0


def test_a_run_begins_again_for_each_machine_that_comes_later() -> None:
    assert moves_of(case()) == 1
    assert moves_of(case(arrivals=(0.0, 0.0))) == 0


COMPRESSED = replace(SHAPE, settings={**SHAPE.settings, "compression": {"method": "topk"}})
HALVES = replace(SHAPE, settings={**SHAPE.settings, "train": {"precision": "fp16"}})
RING = replace(SHAPE, servers=0)


@pytest.mark.parametrize(
    ("faults", "shape", "steps"),
    [
        ((), SHAPE, 0),
        (("leave agent 0 after 1 s",), COMPRESSED, 0),
        (("kill worker 1 after 1 s",), COMPRESSED, 1),
        (("kill agent 1 after 1 s", "kill server 0 after 2 s"), SHAPE, 2),
        (("power-loss agent 1 after 1 s",), SHAPE, 1),
        (("kill agent 1 after 1 s",), COMPRESSED, None),
        (("kill agent 1 after 1 s",), RING, None),
        (("power-loss server 1 after 1 s",), SHAPE, None),
        (("partition agent 1 after 1 s for 2 s",), SHAPE, None),
        (("kill worker 1 after 1 s",), HALVES, None),
    ],
)
def test_steps_that_may_be_made_again_are_those_of_the_table(
    faults: tuple[str, ...], shape: Shape, steps: int | None
) -> None:
    """That of docs/recovery.md, and one step of a worker that is killed between sending and holding it."""
    assert allowed_again(case(*faults, shape=shape)) == steps


def test_an_agent_ends_with_its_run_or_as_it_was_made_to() -> None:
    all_three = outcome(agent_0=130, agent_1=-9, agent_2=0)
    assert not list(problems_of_agents(case("leave agent 0 after 1 s", "kill agent 1 after 2 s"), all_three))
    assert list(problems_of_agents(case(), all_three)) == [
        "agent 0 ended with exit code 130, expected [0]: ",
        "agent 1 ended with exit code -9, expected [0]: ",
    ]
    # Longer than anybody looks for a coordinator.
    assert not list(problems_of_agents(case("partition agent 0 after 1 s for 100 s"), outcome(agent_0=2)))
    assert list(problems_of_agents(case("stop worker 0 after 1 s for 100 s"), outcome(agent_0=2)))
    ring = case("stop worker 0 after 1 s for 100 s", shape=RING)
    assert not list(problems_of_agents(ring, outcome(agent_0=2)))


def test_an_agent_that_was_held_up_as_the_run_ended_finds_nobody() -> None:
    """Seed 1092: it was suspended until all others had ended, and looked for a coordinator that was gone."""
    ended = {"worker 0": End("worker 0", 0, 0, parameters="c0ffee", at_s=5.0)}
    told = outcome(agent_0=2)
    away = replace(told, ends=told.ends | ended, done=("4.000000 suspend agent 0 after 4 s for 20 s",))
    suspended = case("suspend agent 0 after 4 s for 20 s")
    assert not list(problems_of_agents(suspended, away))
    early = replace(away, done=("1.000000 suspend agent 0 after 4 s for 2 s",))
    assert list(problems_of_agents(suspended, early)) == ["agent 0 ended with exit code 2, expected [0]: "]


def test_a_run_fails_where_agents_look_for_its_coordinator_for_too_long() -> None:
    """Seed 359: nobody starts agents again that have given up."""
    assert may_fail(case("mute server 0 after 15 s for 100 s"))
    assert not may_fail(case("mute server 0 after 15 s for 20 s"))
    assert not may_fail(case("stop worker 1 after 15 s for 100 s"))
