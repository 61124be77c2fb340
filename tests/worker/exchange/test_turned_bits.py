"""A bit turned on any link of an exchange changes nothing; one that is turned again and again ends it with a name."""

from __future__ import annotations

import re
from itertools import count
from typing import Any

import numpy as np
import pytest
from support.exchanges import exchange_steps
from support.flips import Flips, flipped
from support.undisturbed import CHANGE, LAYOUT, STEPS, gradients, job_of, parametrized, plan_of, run_of
from support.ways import WAYS, Way

from taihu.core.base.errors import DamagedFrameError, RunError
from taihu.core.wire.repetition import DAMAGED
from taihu.worker.exchange.servers import calls as calls_of_workers

# Sums of a ring in shared memory take no link.
ON_LINKS = [way for way in WAYS if way != Way("ring", 0, transport="same-host")]
WITH_VALUES = [way for way in ON_LINKS if way.zero == 1 and way.is_dense and way.transport != "same-host"]
NAMED = re.compile(
    r"the link from (worker|server) \d( at [\d.]+:\d+)? to (worker|server) \d: frame \d+ came damaged twice: "
)


def disturbed(way: Way) -> set[bytes]:
    plans = {CHANGE: "single"} if way.is_planned else {}
    return exchange_steps(job_of(way), LAYOUT, gradients, steps=STEPS, plan=plan_of(way), plans=plans).ends


@parametrized(ON_LINKS)
def test_turned_bits_change_nothing(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run_of(way).ends
    random = np.random.default_rng([len(str(way)), *str(way).encode()])
    numbers, bits = sorted(random.integers(8, 80, 2)), random.integers(2**31, size=2).tolist()
    links: set[object] = set()

    def chosen(seen: int) -> int | None:
        """Each link may turn one: the next might be one of the frame that is repeated, or of the word that asks."""
        turned = len(links)
        if turned == len(bits) or seen < numbers[turned] or flips.link in links:
            return None
        links.add(flips.link)
        return int(bits[turned])

    before, flips = DAMAGED.count, Flips(monkeypatch, chosen)
    assert disturbed(way) == expected
    assert flips.made == 2
    assert DAMAGED.count == before + 2


@pytest.mark.parametrize("name", ["encode_frame", "decode_frame"])
@pytest.mark.parametrize("times", [1, 1000])
def test_initial_parameters_are_brought_once_more(name: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker 0 encodes them for servers, and others decode what servers send them."""
    way, real, calls = Way("server", 1, transport="grpc"), getattr(calls_of_workers, name), count()

    def with_a_turned_bit(*arguments: Any) -> Any:
        if name == "encode_frame":
            message = real(*arguments)
            return flipped(message, 8 * len(message) - 5) if next(calls) < times else message
        message = arguments[0]
        return real(flipped(message, 8 * len(message) - 5) if next(calls) < times else message)

    monkeypatch.setattr(calls_of_workers, name, with_a_turned_bit)
    if times == 1:
        assert disturbed(way) == run_of(way).ends
        return
    ends = r"server \d at [\d.]+:\d+", r"worker \d"
    sender, receiver = ends if name == "decode_frame" else reversed(ends)
    named = f"the link from {sender} to {receiver}: a frame came damaged twice: "
    # Whoever is told first tells the others, who may end with it before.
    with pytest.raises((DamagedFrameError, RunError), match=named):
        disturbed(way)


@pytest.mark.parametrize("way", WITH_VALUES, ids=str)
def test_a_link_that_damages_everything_is_named(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    Flips(monkeypatch, lambda seen: None).damages_values = True
    with pytest.raises((DamagedFrameError, RunError)) as caught:
        disturbed(way)
    assert NAMED.search(str(caught.value)), str(caught.value)
