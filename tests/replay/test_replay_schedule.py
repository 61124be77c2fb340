"""A run that was made in any order is made again to the same bits, by what was recorded of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loose_worlds import LooseWorld, gradient, orders_of

from taihu.core.base.errors import RunError
from taihu.core.traits.consistencies import CONSISTENCIES
from taihu.replay.schedule import Apply, Compute, Replay, TakeOver


@given(st.data(), st.sampled_from(["ssp:1", "ssp:3", "async", "bsp:N-1"]), st.integers(2, 4), st.integers(1, 3))
def test_the_same_parameters(data: st.DataObject, key: str, workers: int, frames: int) -> None:
    world = LooseWorld(CONSISTENCIES[key], workers, frames, steps=4)
    first = world.parameters.copy()
    world.run(lambda count: data.draw(st.integers(0, count - 1)))
    parameters, copies = first.copy(), [first.copy() for _ in range(workers)]
    gradients = [np.zeros_like(first) for _ in range(workers)]
    for deed in Replay(orders_of(world, servers=min(2, frames))).deeds():
        match deed:
            case TakeOver(rank, ranges):
                for start, stop in ranges:
                    copies[rank][start:stop] = parameters[start:stop]
            case Compute(rank, step):
                gradients[rank] = gradient(copies[rank], rank, step)
            case Apply(ranges, _, ranks):
                for start, stop in ranges:
                    mean = np.sum([gradients[rank][start:stop] for rank in ranks], axis=0) / len(ranks)
                    parameters[start:stop] -= 0.1 * mean
    np.testing.assert_array_equal(parameters, world.parameters)


def recorded() -> LooseWorld:
    world = LooseWorld(CONSISTENCIES["async"], 2, 2, steps=3)
    world.run(lambda count: count - 1)
    return world


def test_orders_that_are_not_whole_are_refused() -> None:
    (order,) = orders_of(recorded())
    with pytest.raises(RunError, match="the order of server 0 has no end"):
        Replay([replace(order, is_whole=False)])
    with pytest.raises(RunError, match="goes on from step 5"):
        Replay([replace(order, head=replace(order.head, begun_after=5))])
    with pytest.raises(RunError, match="versions of a frame have a gap"):
        Replay([replace(order, entries=order.entries[1:])])


def test_a_server_of_another_run_is_refused() -> None:
    first, second = orders_of(recorded(), servers=2)
    with pytest.raises(RunError, match="server 1 is of another run"):
        Replay([first, replace(second, head=replace(second.head, job="other"))])
