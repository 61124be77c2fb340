"""A bit turned on any link of an exchange ends it, as a lost connection does, and the link is named."""

from __future__ import annotations

import re
from itertools import count
from typing import Any

import numpy as np
import pytest
from support.exchanges import exchange_steps
from support.flips import Flips, flipped
from support.undisturbed import CHANGE, LAYOUT, STEPS, gradients, job_of, parametrized, plan_of
from support.ways import WAYS, Way

from taihu.core.base.errors import DamagedFrameError, RunError
from taihu.worker.exchange.servers import calls as calls_of_workers

# Sums of a ring in shared memory take no link.
ON_LINKS = [way for way in WAYS if way != Way("ring", 0, transport="same-host")]
NAMED = re.compile(
    r"the link from (worker|server) \d( at [\d.]+:\d+)? to (worker|server) \d: "
    r"frame \d+( of sum \d+)? came damaged[:;] "
)


def disturbed(way: Way) -> set[bytes]:
    plans = {CHANGE: "single"} if way.is_planned else {}
    return exchange_steps(job_of(way), LAYOUT, gradients, steps=STEPS, plan=plan_of(way), plans=plans).ends


@parametrized(ON_LINKS)
def test_a_turned_bit_ends_the_exchange_and_names_the_link(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng([len(str(way)), *str(way).encode()])
    number, bit = int(random.integers(8, 48)), int(random.integers(2**31))
    flips = Flips(monkeypatch, lambda seen: bit if seen == number else None)
    # Whoever is told first tells the others, who may end with it before.
    with pytest.raises((DamagedFrameError, RunError)) as caught:
        disturbed(way)
    assert flips.made == 1
    assert NAMED.search(str(caught.value)), str(caught.value)


@pytest.mark.parametrize("name", ["message_of", "read_message"])
def test_initial_parameters_that_come_damaged_name_the_link(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker 0 encodes them for servers, and others decode what servers send them."""
    way, real, calls = Way("server", 1, transport="grpc"), getattr(calls_of_workers, name), count()

    def with_a_turned_bit(*arguments: Any) -> Any:
        if next(calls):
            return real(*arguments)
        if name == "message_of":
            message = real(*arguments)
            return flipped(message, 8 * len(message) - 5)
        return real(flipped(arguments[0], 8 * len(arguments[0]) - 5), *arguments[1:])

    monkeypatch.setattr(calls_of_workers, name, with_a_turned_bit)
    ends = r"server \d at [\d.]+:\d+", r"worker \d"
    sender, receiver = ends if name == "read_message" else reversed(ends)
    with pytest.raises(
        (DamagedFrameError, RunError), match=f"the link from {sender} to {receiver}: a frame came damaged: "
    ):
        disturbed(way)
