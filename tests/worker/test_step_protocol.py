"""The step protocol against recorded scenarios, and under any order of events."""

from __future__ import annotations

import shlex
import unittest
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.scenarios import check_scenario, scenario_paths

from taihu.core.base.errors import RunError
from taihu.core.optimization import LossScale
from taihu.core.planner.groups import Group, gradient_room, parameter_room
from taihu.core.planner.memory import MemoryJob, worker_memory
from taihu.core.traits.stages import STAGES
from taihu.core.wire.frames.headers import At
from taihu.worker.exchange.step_actions import Action, Apply, Ask, Cancel, Done, Drop, DropAll, Push, Release, Widen
from taihu.worker.exchange.step_parameters import Reading, leading_groups
from taihu.worker.exchange.step_protocol import StepProtocol
from taihu.worker.exchange.step_rules import Rules

_FLAGS = ("drops_gradients", "fetches", "widens", "keeps", "holds", "clips", "agrees", "asks_late", "not_ahead")


class Interpreter:
    """Scenario commands on one protocol; the outcome is its actions, or the answer to a question.

    `rules FLAG... room G P` comes first, `plan VERSION SIZExPARTS...` then.
    """

    def __init__(self) -> None:
        self._protocol = StepProtocol(Rules())
        self._readings: dict[str, Reading] = {}

    def __call__(self, line: str) -> str:
        words = shlex.split(line)
        if words[0] == "rules":
            return self._start(words[1:])
        if words[-1].endswith("?"):
            return self._answer(words)
        return "\n".join(map(describe, self._act(words))) or "nothing to do"

    def _start(self, words: Sequence[str]) -> str:
        flags, (gradients, parameters) = words[: words.index("room")], map(int, words[words.index("room") + 1 :])
        assert set(flags) <= set(_FLAGS), flags
        named = {flag: True for flag in flags if flag not in {"asks_late", "not_ahead"}}
        rules = Rules(
            **named,
            asks_early="asks_late" not in flags,
            ahead_of_forward="not_ahead" not in flags,
            bucket_elements=gradients,
            live_elements=parameters,
        )
        self._protocol = StepProtocol(rules, LossScale(8.0, 2) if rules.holds else None)
        return "ready"

    def _act(self, words: Sequence[str]) -> Sequence[Action]:
        verb, *rest = words
        verbs: dict[str, Callable[..., Sequence[Action]]] = {
            "plan": self._adopt,
            "begin": self._begin,
            "ready": lambda group, *doubt: self._protocol.ready(int(group), fits=not doubt),
            "leave-out": lambda group: self._protocol.leave_out(int(group)),
            "agreed": lambda on, what: self._protocol.agreed(skipped=what == "skipping"),
            "write": lambda group: self._protocol.write(int(group)),
            "forward": self._forward,
            "backward": self._backward,
            "between": self._between,
            "hold": lambda group: self._protocol.parameters.hold(int(group)),
            "free": lambda group: self._protocol.parameters.free(int(group)),
            "updated": self._updated,
            "applied": self._applied,
            "arrived": self._arrived,
            "widened": lambda group: self._protocol.parameters.widened(int(group)),
            "lost": self._protocol.lost,
            "abort": lambda step: self._protocol.abort(int(step)),
        }
        return verbs[verb](*rest)

    def _adopt(self, version: str, *groups: str) -> Sequence[Action]:
        pairs = [tuple(map(int, group.split("x"))) for group in groups]
        return self._protocol.adopt(int(version), [pair[0] for pair in pairs], [pair[1] for pair in pairs])

    def _begin(self, step: str, *attempt: str) -> Sequence[Action]:
        return self._protocol.begin(int(step), int(attempt[-1]) if attempt else 0)

    def _forward(self, group: str) -> Sequence[Action]:
        parameters = self._protocol.parameters
        return parameters.turn(parameters.forward_reading(int(group)))

    def _backward(self, group: str, *alone: str) -> Sequence[Action]:
        parameters = self._protocol.parameters
        return parameters.turn(parameters.backward_reading(int(group), ahead=not alone))

    def _between(self, group: str) -> Sequence[Action]:
        parameters = self._protocol.parameters
        return parameters.turn(parameters.lone_reading(int(group)))

    def _updated(self, group: str, *rest: str) -> Sequence[Action]:
        at = At(*map(int, rest[1:4])) if rest and rest[0] == "at" else self._protocol.at
        return self._protocol.updated(int(group), at, skipped="skipped" in rest)

    def _applied(self, *at: str) -> Sequence[Action]:
        return self._protocol.applied(At(*map(int, at)) if at else self._protocol.at)

    def _arrived(self, group: str, *attempt: str) -> Sequence[Action]:
        present = self._protocol.at.attempt
        return self._protocol.parameters.arrived(int(group), int(attempt[-1]) if attempt else present)

    def _answer(self, words: Sequence[str]) -> str:
        protocol, parameters = self._protocol, self._protocol.parameters
        match words:
            case ["scale?"]:
                return f"loss scale {protocol.loss_scale:g}, skipped steps {protocol.skipped_steps}"
            case ["at?"]:
                return f"plan {protocol.at.plan}, step {protocol.at.step}, attempt {protocol.at.attempt}"
            case [group, question]:
                known: dict[str, Callable[[int], bool]] = {
                    "written?": protocol.may_write,
                    "read?": parameters.may_read,
                    "complete?": protocol.is_complete,
                    "turned-to?": lambda number: parameters.may_turn(parameters.forward_reading(number)),
                }
                if question == "awaited?":
                    return protocol.awaited(int(group))
                return "yes" if known[question](int(group)) else "no"
        raise ValueError(f"unknown question {words}")


def describe(action: Action) -> str:
    """`push 0, skipped` and the like."""
    words = [type(action).__name__.lower()]
    for field in fields(action):
        value = getattr(action, field.name)
        if isinstance(value, bool):
            words += [f", {field.name}"] if value else []
        elif isinstance(value, At):
            words.append(f" step {value.step} attempt {value.attempt}")
        else:
            words.append(f" after step {value}" if field.name == "step" else f" {value}")
    return "".join(words)


@pytest.mark.parametrize("path", scenario_paths("step"), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    check_scenario(path, Interpreter())


@given(st.permutations(range(6)), st.lists(st.integers(0, 9), min_size=6, max_size=6), st.integers(-5, 60))
def test_the_groups_beside_are_the_longest_beginning_that_fits(order: list[int], sizes: list[int], room: int) -> None:
    beginnings = [tuple(order[:length]) for length in range(7)]
    fitting = [each for each in beginnings if sum(sizes[group] for group in each) <= max(0, room)]
    longest = fitting[-1] if room >= 0 else ()
    assert leading_groups(order, sizes, room) == longest


def test_scales_grow_after_a_row_of_steps_and_end_at_one() -> None:
    protocol = StepProtocol(Rules(holds=True), LossScale(2.0, 3))
    protocol.adopt(1, [4], [1])
    scales = []
    for step in range(1, 8):
        protocol.begin(step)
        scales.append(protocol.loss_scale)
        protocol.ready(0, fits=step < 5)
        protocol.updated(0, At(1, step), skipped=step >= 5)
    assert scales == [2.0, 2.0, 2.0, 4.0, 4.0, 2.0, 1.0]
    with pytest.raises(RunError, match="even with loss scale 1"):
        protocol.begin(8)


def test_every_group_has_its_number_of_parts() -> None:
    with pytest.raises(ValueError, match="zip"):
        StepProtocol(Rules()).adopt(1, [4, 4], [1])


class Training(RuleBasedStateMachine):
    """A worker that trains in order while the network answers, and attempts are given up, in any order.

    The machine keeps its own book of the memory that is written and of what is on the network.
    """

    def __init__(self) -> None:
        super().__init__()
        self.step = self.attempt = 0
        self.todo: list[tuple[str, int]] = []
        self.gradients: set[int] = set()
        self.parameters: set[int] = set()
        self.sums: list[tuple[int, At]] = []
        self.applying: list[At] = []
        self.fetches: list[tuple[int, int]] = []
        self.widening: list[int] = []
        self.asked: list[int] = []
        self.held: set[int] = set()
        self.ended: set[int] = set()
        self.current: Reading | None = None
        self.in_backward = False

    @initialize(
        sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
        parts=st.integers(1, 3),
        flags=st.tuples(*[st.booleans()] * 7),
        rooms=st.tuples(st.integers(0, 9), st.integers(0, 30)),
    )
    def start(self, sizes: list[int], parts: int, flags: tuple[bool, ...], rooms: tuple[int, int]) -> None:
        widens, holds, keeps, early, ahead, fetches, clips = flags
        self.promised = Rules(
            drops_gradients=True,
            fetches=fetches or widens,
            widens=widens,
            keeps=widens and keeps,
            holds=widens and holds,
            agrees=False,
            clips=clips,
            # Only a ring clips, and no backward waits for what all of it must come before.
            asks_early=early and not clips,
            ahead_of_forward=ahead and not clips,
            bucket_elements=rooms[0],
            live_elements=rooms[1],
        )
        self.sizes, self.parts = sizes, parts
        self.protocol = StepProtocol(self.promised, LossScale(2.0, 1) if self.promised.holds else None)
        self.protocol.adopt(1, sizes, [parts] * len(sizes))
        self.ended = set(range(len(sizes)))
        self.forward()

    def forward(self) -> None:
        self.todo = [("read", group) for group in reversed(range(len(self.sizes)))]
        self.todo += [("begin", 0), *self.all_of_backward()]
        self.in_backward = False

    def all_of_backward(self) -> list[tuple[str, int]]:
        """Of every group, what comes before its gradients are computed, and after."""
        return [(what, group) for group in range(len(self.sizes)) for what in ("backward", "ready")]

    def do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Push(group):
                    assert group in self.gradients, "pushed before it was written"
                    self.sums += [(group, self.protocol.at)] * self.parts
                case Ask(group):
                    assert group not in [each for each, _ in self.fetches], "asked twice"
                    assert group not in self.parameters, "asked for what is here"
                    self.asked.append(group)
                    self.fetches += [(group, self.protocol.at.attempt)] * self.parts
                case Widen(group):
                    self.widening.append(group)
                case Apply(at):
                    assert not self.sums, "updated before all had been summed"
                    self.applying.append(at)
                case Drop(group):
                    assert self.current is None or not self.is_read(group), "dropped what is read"
                    assert group not in self.held, "dropped what is held"
                    self.parameters.discard(group)
                case DropAll():
                    self.parameters.clear()
                case Release(group):
                    assert not [each for each in self.sums if each[0] == group], "released what is summed"
                    self.gradients.discard(group)
                case Done(group):
                    assert group not in self.ended, "ended twice"
                    self.ended.add(group)
                case Cancel():
                    self.sums.clear()
                    self.applying.clear()
                    self.fetches.clear()

    def is_read(self, group: int) -> bool:
        return self.reading and self.current is not None and group == self.current.group

    @property
    def is_anything_under_way(self) -> bool:
        return bool(self.sums or self.applying or self.fetches or self.widening)

    @property
    def reading(self) -> bool:
        return self.current is not None and self.protocol.parameters.may_read(self.current.group)

    @precondition(lambda self: self.todo)
    @rule()
    def train(self) -> None:
        """The next thing that a training loop does, if it need not wait."""
        what, group = self.todo[0]
        if getattr(self, f"_{what}")(group):
            self.todo.pop(0)
        if not self.todo:
            self.forward()

    def _read(self, group: int) -> bool:
        if not self.promised.fetches:
            return self.protocol.is_complete(group)
        return self._turn(self.protocol.parameters.forward_reading(group))

    def _turn(self, reading: Reading) -> bool:
        if self.current is None or self.current.group != reading.group:
            if not self.protocol.parameters.may_turn(reading):
                assert self.is_anything_under_way, "waits for nothing"
                return False
            self.current = None
            self.do(self.protocol.parameters.turn(reading))
            self.current = reading
        if not self.protocol.parameters.may_read(reading.group):
            assert self.is_anything_under_way, "waits for nothing"
            return False
        return True

    def _begin(self, _: int) -> bool:
        if not all(map(self.protocol.is_complete, range(len(self.sizes)))):
            assert self.is_anything_under_way, "waits for nothing"
            return False
        self.step += 1
        self.protocol.begin(self.step)
        self.current = None
        self.ended.clear()
        self.in_backward = True
        return True

    def _backward(self, group: int) -> bool:
        if not self.protocol.may_write(group):
            assert self.sums, "waits for nothing"
            return False
        self.protocol.write(group)
        self.gradients.add(group)
        return not self.promised.fetches or self._turn(self.protocol.parameters.backward_reading(group))

    @precondition(lambda self: self.parameters and not self.promised.widens)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        """A group that is here stays until it is freed, or pushed."""
        group = data.draw(st.sampled_from(sorted(self.parameters)))
        self.protocol.parameters.hold(group)
        self.held.add(group)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(sorted(self.held)))
        self.held.discard(group)
        self.do(self.protocol.parameters.free(group))

    def _ready(self, group: int) -> bool:
        self.current = None
        self.held.discard(group)
        self.do(self.protocol.ready(group))
        return True

    @precondition(lambda self: self.sums)
    @rule(data=st.data())
    def sum(self, data: st.DataObject) -> None:
        group, at = self.sums.pop(data.draw(st.integers(0, len(self.sums) - 1)))
        self.do(self.protocol.updated(group, at))

    @precondition(lambda self: self.applying)
    @rule()
    def apply(self) -> None:
        self.do(self.protocol.applied(self.applying.pop()))

    @precondition(lambda self: self.arriving)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        self.take(*data.draw(st.sampled_from(self.arriving)))

    def take(self, group: int, attempt: int) -> None:
        """A part of a group's parameters is here."""
        self.fetches.remove((group, attempt))
        actions = self.protocol.parameters.arrived(group, attempt)
        if not self.promised.widens and group not in [each for each, _ in self.fetches]:
            self.parameters.add(group)
        self.do(actions)

    @property
    def arriving(self) -> list[tuple[int, int]]:
        """Groups that are on their way and have been updated."""
        return [each for each in self.fetches if each[0] not in [group for group, _ in self.sums]]

    @precondition(lambda self: self.widening)
    @rule(data=st.data())
    def widen(self, data: st.DataObject) -> None:
        self.make_wide(data.draw(st.integers(0, len(self.widening) - 1)))

    def make_wide(self, place: int) -> None:
        """A group's parameters are there in fp32."""
        group = self.widening.pop(place)
        self.parameters.add(group)
        self.do(self.protocol.parameters.widened(group))

    @precondition(lambda self: self.in_backward)
    @rule()
    def give_up(self) -> None:
        """The attempt ends, and the step is replayed."""
        self.current = None
        self.held.clear()
        self.do(self.protocol.abort(self.step))
        self.attempt += 1
        self.do(self.protocol.begin(self.step, self.attempt))
        self.ended.clear()
        self.todo = self.all_of_backward()

    @invariant()
    def memory_is_what_the_protocol_says(self) -> None:
        if not hasattr(self, "protocol"):
            return
        groups = range(len(self.sizes))
        if self.promised.fetches:
            here = {group for group in groups if self.protocol.parameters.may_read(group)}
            assert here == self.parameters
            assert self.held <= here
            beside = sum(self.sizes[group] for group in here - self.held)
            assert beside <= parameter_room(self.sizes, self.promised.live_elements)
        if not (self.promised.holds or self.promised.clips):
            held = sum(self.sizes[group] for group in self.gradients)
            assert held <= gradient_room(self.sizes, self.promised.bucket_elements)

        if self.promised.widens and not self.promised.keeps:
            assert self.held_bytes() <= self.planned_bytes()

    def held_bytes(self) -> int:
        """Bytes of stage 3 in 16 bits: what is here, comes and is sent, and the gradients that are computed."""
        computed = [group for what, group in self.todo[:1] if what == "ready"]
        half = [*self.gradients, *{group for group, _ in self.fetches}, *self.widening]
        # One thread widens.
        widened = max((4 * self.sizes[group] for group in self.widening), default=0)
        fp32 = sum(4 * self.sizes[group] for group in (*self.parameters, *computed))
        return fp32 + sum(2 * self.sizes[group] for group in half) + widened

    def planned_bytes(self) -> int:
        """The same by the plan of a worker's memory."""
        rules = self.promised
        job = MemoryJob(
            layer_elements=tuple(self.sizes),
            groups=tuple(Group(index, index) for index in range(len(self.sizes))),
            workers=1,
            servers=1,
            stage=STAGES[3],
            optimizer_arrays=0,
            value_bytes=2,
            bucket_bytes=4 * rules.bucket_elements,
            live_bytes=4 * rules.live_elements,
            holds_gradients=rules.holds or rules.clips,
        )
        planned = worker_memory(job)
        return planned.parameters + planned.gradients + planned.buffers

    def teardown(self) -> None:
        """Whatever has happened, training can go on to the end of a step."""
        if not hasattr(self, "protocol"):
            return
        last = self.step + 2
        for _ in range(400):
            while self.sums:
                self.do(self.protocol.updated(*self.sums.pop()))
            while self.applying:
                self.apply()
            while self.arriving:
                self.take(*self.arriving[0])
            while self.widening:
                self.make_wide(0)
            if self.step >= last:
                return
            self.train()
        raise AssertionError(f"stuck in step {self.step} at {self.todo[:1]}")


TestTraining: type[unittest.TestCase] = Training.TestCase
Training.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    ("sizes", "live", "above"), [([3, 9, 3], 0, 0.0), ([1, 2, 6, 5, 1], 0, 0.05), ([4, 4, 4, 4], 12, 0.1)]
)
def test_what_is_planned_in_16_bits_is_reached(sizes: list[int], live: int, above: float) -> None:
    """Sums take as long as can be, parameters come at once, and are widened last."""
    training = Training()
    training.start(sizes, 1, (True, False, False, True, True, True, False), (0, live))
    most = 0
    for _ in range(200):
        while training.arriving:
            training.take(*training.arriving[0])
        most = max(most, training.held_bytes())
        before = list(training.todo)
        training.train()
        if training.todo != before or training.arriving:
            continue
        if training.widening:
            training.make_wide(0)
        elif training.sums:
            training.do(training.protocol.updated(*training.sums.pop(0)))
    assert most <= training.planned_bytes() <= (1 + above) * most
    training.teardown()
