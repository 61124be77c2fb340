"""The aggregator against recorded scenarios, and against a second implementation that forgets nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from support.frames import changed, header_of, question
from support.scenarios import check_scenario, parse_options, scenario_paths
from support.strategies import weighted

from taihu.core.base.errors import StaleError, TaihuError
from taihu.core.planner.partition import FrameSpec, Piece
from taihu.core.wire.frames.headers import FrameHeader
from taihu.ps_server.aggregator import Aggregator, Complete

_HEADER = {"step": "", "attempt": "0", "group": "", "offset": "", "count": "", "plan": "1"}
_HEADER["incarnation"] = ""


_PUSH = {"worker": "", "payload": "", **_HEADER}


class Interpreter:
    """Scenario commands on an aggregator of plan 1.

    A push carries the incarnation that its worker was last admitted with, and its worker's rank as payload, unless
    it says otherwise.
    """

    def __init__(self) -> None:
        self._incarnations: dict[str, str] = {}
        self._frames: dict[int, FrameSpec] = {}
        self._aggregator: Aggregator[str] = Aggregator(plan=0, workers=0, frames=())

    def __call__(self, line: str) -> str:
        command, *words = line.split()
        match command:
            case "workers":
                known = {"workers": "", "frames": "", "after-step": "0", "gaps": "refused"}
                return self._start(parse_options([command, *words], known))
            case "admit":
                rank, _, incarnation = words
                self._aggregator.admit(int(rank), int(incarnation))
                self._incarnations[rank] = incarnation
                return "ok"
            case "push" | "ask" | "again":
                return self._frame(command, parse_options(words, _PUSH))
            case "applied":
                self._aggregator.applied(self._frames[int(words[1])], skipped=words[2:] == ["skipped"])
                return "ok"
            case "restart":
                return self._restart(parse_options(words, {"plan": "", "frames": "", "after-step": ""}))
            case _:
                return self._state(command, words)

    def _leave(self, rank: int) -> str:
        try:
            self._aggregator.leave(rank)
        except TaihuError as error:
            return f"{type(error).__name__}: {error}"
        return "ok"

    def _state(self, command: str, words: Sequence[str]) -> str:
        if command == "state":
            return describe_missing(self._aggregator.missing())
        if command == "leave":
            return self._leave(int(words[0]))
        if command == "quiet":
            options = parse_options(words, {"after-step": "", "attempt": "0"})
            return str(self._aggregator.is_quiet_after(int(options["after-step"]), int(options["attempt"])))
        raise ValueError(f"unknown command {command!r}")

    def _start(self, options: Mapping[str, str]) -> str:
        frames = self._cut(options["frames"])
        self._aggregator = Aggregator(
            plan=1,
            workers=int(options["workers"]),
            frames=frames,
            last_step=int(options["after-step"]),
            gaps=options["gaps"] == "taken",
        )
        return "ok"

    def _restart(self, options: Mapping[str, str]) -> str:
        frames = self._cut(options["frames"])
        self._aggregator.restart(int(options["plan"]), frames, int(options["after-step"]))
        return "ok"

    def _cut(self, frames: str) -> list[FrameSpec]:
        numbers = [map(int, frame.split(":")) for frame in frames.split()]
        specs = [FrameSpec(group, offset, count, ()) for group, offset, count in numbers]
        self._frames = {frame.offset: frame for frame in specs}
        return specs

    def _header(self, options: Mapping[str, str]) -> FrameHeader:
        worker = options["worker"]
        return header_of(
            incarnation=int(options["incarnation"] or self._incarnations.get(worker, "0")),
            plan=int(options["plan"]),
            step=int(options["step"]),
            group=int(options["group"]),
            offset=int(options["offset"]),
            elements=int(options["count"]),
            rank=None if worker == "nobody" else int(worker),
            attempt=int(options["attempt"]),
        )

    def _frame(self, command: str, options: Mapping[str, str]) -> str:
        if command == "ask":
            return f"offset {self._aggregator.check_asked(self._header(options)).offset}"
        if command == "again":
            frame, skipped = self._aggregator.find_answered(self._header(options))
            return f"offset {frame.offset}{', skipped' if skipped else ''}"
        outcome = self._aggregator.offer(self._header(options), options["payload"] or options["worker"])
        if not isinstance(outcome, Complete):
            return outcome.value
        attempt = f" attempt {outcome.at.attempt}" if outcome.at.attempt else ""
        return (
            f"complete step {outcome.at.step}{attempt} group {outcome.frame.group} offset {outcome.frame.offset}: "
            f"{', '.join(outcome.contributions)}"
        )


def describe_missing(missing: Mapping[int, Sequence[int]]) -> str:
    lines = [f"offset {offset} waits for {', '.join(map(str, ranks))}" for offset, ranks in sorted(missing.items())]
    return "\n".join(lines) or "nothing waits"


@pytest.mark.parametrize("path", scenario_paths("aggregator"), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    check_scenario(path, Interpreter())


@dataclass
class Ledger:
    """The same rules, read off a list of everything that was ever accepted."""

    workers: int
    frames: Sequence[FrameSpec]
    last_step: int
    admitted: dict[int, int] = field(default_factory=dict)
    accepted: dict[tuple[int, int, int], str] = field(default_factory=dict)
    applied: set[tuple[int, int]] = field(default_factory=set)
    attempt: int = 0

    def newest(self, offset: int) -> int:
        """The last step of which the frame at `offset` has come from everybody."""
        step = self.last_step
        while self.contributions(step + 1, offset):
            step += 1
        return step

    def waits(self, newest: int, offset: int) -> bool:
        """Whether the last complete step of the frame at `offset` is to be applied yet."""
        return newest > self.last_step and (newest, offset) not in self.applied

    def contributions(self, step: int, offset: int) -> list[str]:
        """Frames of all workers in rank order; empty unless everybody sent one."""
        keys = [(step, offset, rank) for rank in range(self.workers)]
        return [self.accepted[key] for key in keys] if all(key in self.accepted for key in keys) else []

    def offer(self, header: FrameHeader, payload: str) -> object:
        (incarnation, sender), (at, group, offset, count) = header.sender, header.address
        if sender is None or self.admitted.get(sender) != incarnation:
            return "StaleError"
        if at.plan != 1:
            return "StaleError"
        if at.attempt < self.attempt:
            return "GivenUpError"
        if not any((f.group, f.offset, f.count) == (group, offset, count) for f in self.frames):
            return "FrameError"
        newest = {frame.offset: self.newest(frame.offset) for frame in self.frames}
        if at.attempt > self.attempt:
            last = newest[offset]
            if at.step != last + 1 or at.step <= max(newest.values()) or self.waits(last, offset):
                return "StaleError"
            self.attempt = at.attempt
            self.accepted = {key: value for key, value in self.accepted.items() if key[0] <= newest[key[1]]}
        return self._take(at.step, offset, sender, payload)

    def _take(self, step: int, offset: int, sender: int, payload: str) -> object:
        newest = self.newest(offset)
        waits = self.waits(newest, offset)
        if step == newest > self.last_step:
            return "duplicate" if waits else "answered"
        if step != newest + 1 or waits:
            return "StaleError"
        if (step, offset, sender) in self.accepted:
            return "duplicate"
        self.accepted[step, offset, sender] = payload
        return (step, offset, self.contributions(step, offset) or "pending")

    def missing(self) -> dict[int, tuple[int, ...]]:
        missing = {}
        for frame in self.frames:
            step = self.newest(frame.offset) + 1
            there = [rank for rank in range(self.workers) if (step, frame.offset, rank) in self.accepted]
            if there:
                missing[frame.offset] = tuple(rank for rank in range(self.workers) if rank not in there)
        return missing


@dataclass(frozen=True)
class Admit:
    rank: int
    incarnation: int


@dataclass(frozen=True)
class Push:
    """A push of frame number `frame`, `ahead` steps after the last complete one, with some fields replaced.

    `later` attempts after the present one.
    """

    rank: int
    frame: int
    ahead: int
    changes: Mapping[str, Any]
    later: int = 0


@dataclass(frozen=True)
class Applied:
    frame: int


FRAMES = (
    FrameSpec(0, 0, 4, (Piece(0, 4),)),
    FrameSpec(0, 4, 4, (Piece(4, 8),)),
    FrameSpec(1, 8, 2, (Piece(8, 10),)),
)
DEFECTS: list[dict[str, Any]] = [
    {"plan": 2},
    {"incarnation": 4},
    {"incarnation": 9},
    {"rank": None},
    {"rank": -1},
    {"rank": 3},
    {"group": 7},
    {"offset": 2},
    {"elements": 3},
]
NO_DEFECT: dict[str, Any] = {}


def commands(workers: int) -> SearchStrategy[Admit | Push | Applied]:
    numbers, ranks = st.integers(0, len(FRAMES) - 1), st.integers(0, workers - 1)
    good = st.builds(Push, ranks, numbers, st.just(1), st.just(NO_DEFECT))
    bad = st.builds(Push, ranks, numbers, st.sampled_from([0, 1]), st.sampled_from(DEFECTS))
    elsewhen = st.builds(Push, ranks, numbers, st.integers(-1, 2), st.just(NO_DEFECT))
    replays = st.builds(
        Push, ranks, numbers, st.sampled_from([0, 1, 1]), st.just(NO_DEFECT), st.sampled_from([-1, 1])
    )
    admissions = st.builds(Admit, st.integers(-1, workers), st.integers(5, 6))
    return weighted(
        (12, good), (8, st.builds(Applied, numbers)), (3, elsewhen), (2, bad), (2, replays), (1, admissions)
    )


class Pair:
    """An aggregator and its ledger, given the same commands; they must answer alike."""

    def __init__(self, workers: int, last_step: int) -> None:
        self._aggregator: Aggregator[str] = Aggregator(plan=1, workers=workers, frames=FRAMES, last_step=last_step)
        self._ledger = Ledger(workers, FRAMES, last_step)
        self._pushed = 0

    def run(self, command: Admit | Push | Applied) -> str:
        match command:
            case Admit(rank, incarnation):
                return self._admit(rank, incarnation)
            case Applied(number):
                frame = FRAMES[number]
                self._aggregator.applied(frame)
                self._ledger.applied.add((self._ledger.newest(frame.offset), frame.offset))
                return "applied"
            case Push():
                return self._push(command)

    def check_missing(self) -> None:
        assert self._aggregator.missing() == self._ledger.missing()

    def _admit(self, rank: int, incarnation: int) -> str:
        if rank in range(self._ledger.workers):
            self._aggregator.admit(rank, incarnation)
            self._ledger.admitted[rank] = incarnation
            return "admitted"
        with pytest.raises(StaleError, match=f"worker {rank}: outside the world"):
            self._aggregator.admit(rank, incarnation)
        return "not admitted"

    def _push(self, push: Push) -> str:
        self._pushed += 1
        payload = f"payload {self._pushed}"
        frame = FRAMES[push.frame]
        step = self._ledger.newest(frame.offset) + push.ahead
        incarnation = self._ledger.admitted.get(push.rank, 5)
        header = changed(
            header_of(incarnation, 1, step, frame.group, frame.offset, frame.count, push.rank),
            **{"attempt": max(0, self._ledger.attempt + push.later), **push.changes},
        )
        outcome = self._offer(header, payload)
        assert outcome == self._ledger.offer(header, payload)
        return outcome if isinstance(outcome, str) else "pending" if outcome[2] == "pending" else "complete"

    def _offer(self, header: FrameHeader, payload: str) -> str | tuple[int, int, object]:
        try:
            outcome = self._aggregator.offer(header, payload)
        except TaihuError as error:
            return type(error).__name__
        if isinstance(outcome, Complete):
            assert outcome.frame in FRAMES
            assert outcome.at.attempt == header.address.at.attempt
            return outcome.at.step, outcome.frame.offset, list(outcome.contributions)
        return (
            (header.address.at.step, header.address.offset, "pending")
            if outcome.value == "pending"
            else outcome.value
        )


def test_any_sequence_of_commands_has_the_outcomes_of_the_ledger() -> None:
    seen: Counter[str] = Counter()

    @settings(deadline=None, max_examples=50)
    @given(st.integers(1, 3), st.sampled_from([0, 0, 7]), st.data())
    def check(workers: int, last_step: int, data: st.DataObject) -> None:
        script = data.draw(st.lists(commands(workers), min_size=20, max_size=60))
        pair = Pair(workers, last_step)
        everyone = [Admit(rank, 5) for rank in range(workers)]
        for command in [*everyone, *script]:
            seen[pair.run(command)] += 1
            pair.check_missing()

    check()
    assert {"pending", "complete", "duplicate", "answered", "StaleError", "FrameError"} <= set(seen)


@given(st.data(), st.integers(1, 3), st.integers(0, 7))
def test_frames_that_all_workers_leave_out_of_a_step_are_waited_for_by_nobody(
    data: st.DataObject, workers: int, last_step: int
) -> None:
    aggregator: Aggregator[tuple[int, int, int]] = Aggregator(
        plan=1, workers=workers, frames=FRAMES, last_step=last_step, gaps=True
    )
    for rank in range(workers):
        aggregator.admit(rank, 5)
    for step in range(last_step + 1, last_step + 5):
        brought = data.draw(st.sets(st.integers(0, len(FRAMES) - 1)))
        pushes = data.draw(st.permutations([(rank, number) for rank in range(workers) for number in brought]))
        sums = {}
        for rank, number in pushes:
            frame = FRAMES[number]
            header = header_of(5, 1, step, frame.group, frame.offset, frame.count, rank)
            outcome = aggregator.offer(header, (step, rank, number))
            if isinstance(outcome, Complete):
                sums[number] = outcome
                assert not aggregator.is_quiet_after(step)
                aggregator.applied(frame)
        assert {number: each.contributions for number, each in sums.items()} == {
            number: tuple((step, rank, number) for rank in range(workers)) for number in brought
        }
        assert aggregator.is_quiet_after(step)
        assert not brought or not aggregator.is_quiet_after(step - 1)


def test_parameters_may_be_asked_for_as_they_are_between_two_steps() -> None:
    frame = FrameSpec(0, 0, 4, (Piece(0, 4),))
    aggregator: Aggregator[str] = Aggregator(plan=1, workers=1, frames=[frame])
    aggregator.admit(0, 7)

    def ask(step: int) -> FrameSpec:
        return aggregator.check_asked(question(7, 1, step, 0, 0, 4, 0))

    assert ask(0) == frame
    with pytest.raises(StaleError, match="worker 0 asks for group 0, offset 0 after step 1: expected step 0"):
        ask(1)
    assert isinstance(aggregator.offer(header_of(7, 1, 1, 0, 0, 4, 0), "gradient"), Complete)
    for step in (0, 1):
        with pytest.raises(StaleError, match=f"after step {step}: expected step 1"):
            ask(step)
    aggregator.applied(frame)
    assert ask(1) == frame
    with pytest.raises(StaleError, match="after step 0: expected step 1"):
        ask(0)
    with pytest.raises(StaleError, match="no open exchange"):
        aggregator.check_asked(question(7, 1, 1, 0, 0, 4, 3))
