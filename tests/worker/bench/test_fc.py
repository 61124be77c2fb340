"""Schemes of a spread layer with modelled products: what is said of the steps follows from what they did."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray
from support.peers import Peers

from taihu.core.planner.fc_mode import FcLayer
from taihu.core.trace import Tracer
from taihu.worker.fc.bench import ModelledProducts, time_schemes
from taihu.worker.fc.passes import Scheme

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)


class Sleeper:
    """A clock that counts what is slept."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_products_take_their_time_and_compute_nothing() -> None:
    clock, out = Sleeper(), np.full((3, 5), 7.0, dtype=np.float32)
    products = ModelledProducts(1e3, clock)
    products(np.ones((3, 4), dtype=np.float32), np.ones((4, 5), dtype=np.float32), out)
    products(np.ones((4, 3), dtype=np.float32).T, np.ones((4, 5), dtype=np.float32), out)
    assert clock.slept == [2 * 3 * 4 * 5 / 1e3] * 2
    assert products.seconds == sum(clock.slept)
    assert (out == 7.0).all()


def test_products_without_time_are_not_waited_for() -> None:
    clock = Sleeper()
    ModelledProducts(np.inf, clock)(np.ones((3, 4)), np.ones((4, 5)), np.ones((3, 5)))
    assert not clock.slept


def test_what_no_product_wrote_is_moved_whatever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = np.empty

    def of_the_largest(*arguments: Any, **named: Any) -> NDArray[Any]:
        array = empty(*arguments, **named)
        if array.dtype.kind == "f":
            array.fill(np.finfo(array.dtype).max)
        return array

    monkeypatch.setattr(np, "empty", of_the_largest)
    with Peers(2, mesh=True) as peers:
        made = peers.run(lambda each: time_schemes(each, FcLayer("fc", 30, 8), 6, SCHEMES[:1], rounds=1, flops=1e9))
    assert made[0] == made[1]


@pytest.mark.parametrize("gflops", [None, 0.001])
def test_rows_have_the_times_of_all_ranks(gflops: float | None) -> None:
    layer, batch, rounds = FcLayer("fc", 30, 8), 6, 2
    flops = None if gflops is None else 1e9 * gflops
    with Peers(2, mesh=True) as peers:
        tracers = [Tracer(), Tracer()]
        everybody = peers.run(
            lambda communicator: time_schemes(
                communicator, layer, batch, SCHEMES, rounds=rounds, flops=flops, tracer=tracers[communicator.rank]
            )
        )
    assert everybody[0] == everybody[1]
    assert [row["scheme"] for row in everybody[0]] == list(SCHEMES)
    for row in everybody[0]:
        assert (row["inputs"], row["outputs"], row["batch"], row["ranks"]) == (30, 8, 6, 2)
        assert all(0.0 <= row[name] <= 1.0 for name in ("hidden_ratio", "hidden_in_ratio", "hidden_back_ratio"))
        if flops is None:
            assert "products_seconds" not in row
            continue
        # Forward, and the gradients of inputs and weights: all examples by half of the columns.
        assert row["products_seconds"] == pytest.approx(3 * 2 * (2 * batch) * 30 * 4 / flops, rel=1e-4)
        assert row["seconds"]["min"] >= row["products_seconds"] * (1 - 1e-4)
        products_and_transfers = row["products_seconds"] + row["transfers_seconds"]["median"]
        saved_s = row["saved_ratio"] * row["transfers_seconds"]["median"]
        assert row["seconds"]["median"] == pytest.approx(products_and_transfers - saved_s, rel=0.01)
