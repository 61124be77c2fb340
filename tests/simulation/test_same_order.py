"""A real job and its simulation: the same inputs of every rank's step protocol in the same order, and the same sums.

Steps and their actions, links and operations are the same code in both (docs/adr/0085, 0091). What is compared here
is what is not: a server's shard, and the order of operations with ZeRO. Compute takes much longer than any message,
in the simulation by the clock; in the real job every group is waited for before the next one is pushed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import groupby

import pytest
from support.cluster import layout_of
from support.exchanges import run_workers
from support.simulations import job_of, simulated
from support.told_events import Event, Told
from support.worker import train_slowly

import taihu.ps_server.server_shard
import taihu.simulation.servers
import taihu.simulation.worker
import taihu.worker.exchange.shell

SIZES = (700, 40, 1200, 90, 300)
STEPS = 3


def in_order_of_asking(events: list[Event]) -> list[Event]:
    """Questions and what came of them; of what came at about the same time first what was asked for first.

    Servers are threads.
    """
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
    with Told().listening(monkeypatch, taihu.worker.exchange.shell, taihu.ps_server.server_shard) as real:
        run_workers(job, layout_of(*SIZES), partial(train_slowly, steps=STEPS))
    with Told().listening(monkeypatch, taihu.simulation.worker, taihu.simulation.servers) as own:
        simulated(job, SIZES, each=1.0, distinct=True, steps=STEPS)
    assert own.pushed == real.pushed
    assert [*map(in_order_of_asking, own.fetched)] == [*map(in_order_of_asking, real.fetched)]
    assert sorted(own.summed) == sorted(real.summed)
    pushes = [("push", step, group) for step in range(1, STEPS + 1) for group in range(len(SIZES))]
    assert [[event for event in events if event[0] == "push"] for events in own.pushed] == [pushes] * 2
