"""A real job and its simulation: the same inputs of every rank's step protocol in the same order, and the same sums.

Compute takes much longer than any message, in the simulation by the clock; in the real job every group is waited for
before the next one is pushed. What is pushed and updated, and what is asked for and comes, is compared by event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import pytest
from support.cluster import layout_of
from support.exchanges import run_workers
from support.simulations import job_of, simulated
from support.worker import Worker

import ps_server.server_shard
import taihu.simulation.job
import taihu.simulation.worker
import worker.exchange.shell
from ps_server.aggregator import Aggregator, Complete
from taihu.wire.headers import At
from worker.exchange.step_actions import Action, Ask
from worker.exchange.step_parameters import Reading, StepParameters
from worker.exchange.step_protocol import StepProtocol

SIZES = (700, 40, 1200, 90, 300)
STEPS = 3
Event = tuple[str, int, int]


class Told:
    """The events that patched classes were told of, by object."""

    def __init__(self) -> None:
        self.pushed: list[list[Event]] = []
        self.fetched: list[list[Event]] = []
        self.summed: list[list[Event]] = []

    @contextmanager
    def listening(self, monkeypatch: pytest.MonkeyPatch, protocol: Any, aggregator: Any) -> Iterator[Told]:
        """Listen to what the modules make."""
        with monkeypatch.context() as patched:
            patched.setattr(protocol, "StepProtocol", self._protocol())
            patched.setattr(aggregator, "Aggregator", self._aggregator())
            yield self

    def _protocol(self) -> type[StepProtocol]:
        told = self

        class Parameters(StepParameters):
            """Tells what is asked for, and what has come whole."""

            def __init__(self, rules: Any) -> None:
                super().__init__(rules)
                self.events: list[Event] = []
                told.fetched.append(self.events)

            def turn(self, reading: Reading) -> Sequence[Action]:
                return self.tell(super().turn(reading))

            def updated(self, group: int) -> Sequence[Action]:
                return self.tell(super().updated(group))

            def arrived(self, group: int, attempt: int = 0) -> Sequence[Action]:
                missing = self._groups[group].unfetched
                actions = super().arrived(group, attempt)
                if missing == 1:
                    self.events.append(("came", self._at.step, group))
                return actions

            def tell(self, actions: Sequence[Action]) -> Sequence[Action]:
                self.events += [("ask", action.step, action.group) for action in actions if isinstance(action, Ask)]
                return actions

        class Protocol(StepProtocol):
            """Tells what is pushed and updated."""

            def __init__(self, rules: Any, scale: Any = None) -> None:
                super().__init__(rules, scale)
                self.parameters = Parameters(rules)
                self.events: list[Event] = []
                told.pushed.append(self.events)

            def ready(self, group: int, *, fits: bool = True) -> Sequence[Action]:
                self.events.append(("push", self.at.step, group))
                return super().ready(group, fits=fits)

            def updated(self, group: int, at: At, *, skipped: bool = False) -> Sequence[Action]:
                self.events.append(("update", at.step, group))
                return super().updated(group, at, skipped=skipped)

        return Protocol

    def _aggregator(self) -> type[Aggregator[Any]]:
        told = self

        class Collector(Aggregator[Any]):
            """Tells what sums are complete."""

            def __init__(self, **of: Any) -> None:
                super().__init__(**of)
                self.events: list[Event] = []
                told.summed.append(self.events)

            def offer(self, header: Any, payload: Any) -> Any:
                outcome = super().offer(header, payload)
                if isinstance(outcome, Complete):
                    self.events.append(("sum", outcome.at.step, outcome.frame.offset))
                return outcome

        return Collector


def train_slowly(worker: Worker) -> None:
    """Some steps in which every group is waited for before the next one is pushed."""
    exchange, groups = worker.exchange, len(worker.bounds)

    def quiet() -> None:
        parameters = exchange._protocol.parameters
        exchange._wait_until(lambda: all(map(parameters.is_quiet, range(groups))), 0)

    for step in range(1, STEPS + 1):
        for group in reversed(range(groups)):
            exchange.wait(group)
            quiet()
        exchange.begin(step)
        for group in range(groups):
            exchange.prepare(group)
            quiet()
            exchange.push(group)
            exchange.complete(group)


def in_order_of_asking(events: list[Event]) -> list[Event]:
    """The events, and of what came at about the same time first what was asked for first: servers are threads."""
    ordered = list[Event]()
    for _, run in groupby(events, lambda event: event[0]):
        same = list(run)
        ordered += sorted(same, reverse=True) if same[0][0] == "came" else same
    return ordered


@pytest.mark.parametrize(
    ("servers", "sections"),
    [
        (1, {}),
        (2, {"exchange": {"zero": 3}}),
        (1, {"exchange": {"zero": 2}, "train": {"precision": "bf16"}}),
        (0, {}),
        (0, {"exchange": {"zero": 3}}),
    ],
)
def test_events_have_the_order_of_a_real_job(
    servers: int, sections: Mapping[str, Mapping[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    over = {**sections, "exchange": {"plan": "per-layer", "transport": "tcp", **sections.get("exchange", {})}}
    job = job_of(2, servers, **over)
    with Told().listening(monkeypatch, worker.exchange.shell, ps_server.server_shard) as real:
        run_workers(job, layout_of(*SIZES), train_slowly)
    with Told().listening(monkeypatch, taihu.simulation.worker, taihu.simulation.job) as own:
        simulated(job, SIZES, each=1.0, distinct=True, steps=STEPS)
    assert own.pushed == real.pushed
    assert [*map(in_order_of_asking, own.fetched)] == [*map(in_order_of_asking, real.fetched)]
    assert sorted(own.summed) == sorted(real.summed)
    pushes = [("push", step, group) for step in range(1, STEPS + 1) for group in range(len(SIZES))]
    assert [[event for event in events if event[0] == "push"] for events in own.pushed] == [pushes] * 2
