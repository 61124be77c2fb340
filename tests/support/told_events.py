"""The events of step protocols and aggregators, as they are told of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from taihu.core.wire.frames.headers import At
from taihu.ps_server.aggregator import Aggregator, Complete
from taihu.worker.exchange.step_actions import Action, Ask
from taihu.worker.exchange.step_parameters import Reading, StepParameters
from taihu.worker.exchange.step_protocol import StepProtocol

__all__ = ["Event", "Told"]

Event = tuple[str, int, int]


class Told:
    """The events that patched classes were told of, by object.

    Attributes:
        pushed: pushes and updates of each protocol.
        fetched: questions and what came of them, of each.
        summed: sums of each server.
    """

    def __init__(self) -> None:
        self.pushed: list[list[Event]] = []
        self.fetched: list[list[Event]] = []
        self.summed: list[list[Event]] = []

    @contextmanager
    def listening(self, monkeypatch: pytest.MonkeyPatch, protocol: Any, aggregator: Any) -> Iterator[Told]:
        """Listen to what the modules make."""
        with monkeypatch.context() as patched:
            patched.setattr(protocol, "StepProtocol", lambda *of: _ToldProtocol(self, *of))
            patched.setattr(aggregator, "Aggregator", lambda **of: _ToldAggregator(self, **of))
            yield self


class _ToldParameters(StepParameters):
    """Tells what is asked for, and what has come whole."""

    def __init__(self, told: Told, rules: Any) -> None:
        super().__init__(rules)
        self.events: list[Event] = []
        told.fetched.append(self.events)

    def turn(self, reading: Reading) -> Sequence[Action]:
        return self._tell(super().turn(reading))

    def updated(self, group: int) -> Sequence[Action]:
        return self._tell(super().updated(group))

    def arrived(self, group: int, attempt: int = 0) -> Sequence[Action]:
        missing = self._groups[group].unfetched
        actions = super().arrived(group, attempt)
        if missing == 1:
            self.events.append(("came", self._at.step, group))
        return self._tell(actions)

    def _tell(self, actions: Sequence[Action]) -> Sequence[Action]:
        self.events += [("ask", action.step, action.group) for action in actions if isinstance(action, Ask)]
        return actions


class _ToldProtocol(StepProtocol):
    """Tells what is pushed and updated."""

    def __init__(self, told: Told, rules: Any, scale: Any = None) -> None:
        super().__init__(rules, scale)
        self.parameters = _ToldParameters(told, rules)
        self.events: list[Event] = []
        told.pushed.append(self.events)

    def ready(self, group: int, *, fits: bool = True) -> Sequence[Action]:
        self.events.append(("push", self.at.step, group))
        return super().ready(group, fits=fits)

    def updated(self, group: int, at: At, *, skipped: bool = False) -> Sequence[Action]:
        self.events.append(("update", at.step, group))
        return super().updated(group, at, skipped=skipped)


class _ToldAggregator(Aggregator[Any]):
    """Tells what sums are complete."""

    def __init__(self, told: Told, **of: Any) -> None:
        super().__init__(**of)
        self.events: list[Event] = []
        told.summed.append(self.events)

    def offer(self, header: Any, payload: Any) -> Any:
        outcome = super().offer(header, payload)
        if isinstance(outcome, Complete):
            self.events.append(("sum", outcome.at.step, outcome.frame.offset))
        return outcome
