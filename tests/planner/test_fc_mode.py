"""The choice for fully connected layers: the published cells, and the best of all combinations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.core.planner.fc_mode import FcJob, FcLayer, FcLinks, choose_fc, printed_rule, step_seconds

FC1, FC2, FC3 = FcLayer("fc1", 25088, 4096), FcLayer("fc2", 4096, 4096), FcLayer("fc3", 4096, 1000)
links = st.builds(FcLinks, st.floats(0, 1e-2), st.floats(0, 1e-2), st.floats(1e-10, 1e-6))


def alone(layer: FcLayer, batch: int, workers: int) -> tuple[float, float]:
    """Seconds on a ring, data-parallel and sharded, with the constants of docs/methods.md section 3."""
    start = 0.36e-3 * (workers - 1) ** 0.84
    there = FcLinks(transfer_seconds=7 * start / 4, exchange_seconds=start, seconds_per_byte=1 / 4.46e9)
    choice = choose_fc([layer], FcJob(batch, workers, 0), there)[0]
    return choice.data_seconds, choice.shard_seconds


@pytest.mark.parametrize(("workers", "batch"), list(product((2, 4, 8), (1, 2, 4, 8, 16, 32, 64, 128))))
def test_the_largest_layer_is_always_faster_sharded(workers: int, batch: int) -> None:
    data, shard = alone(FC1, batch, workers)
    assert shard < data


def test_the_published_extremes_are_met() -> None:
    data, shard = alone(FC1, 1, 2)
    assert data / shard > 33
    data, shard = alone(FC2, 1, 2)
    assert data / shard > 6
    data, shard = alone(FC3, 128, 8)
    assert shard > data


def test_volumes_are_the_lean_ones() -> None:
    batch, workers = 32, 4
    per_byte = FcLinks(0.0, 0.0, 1.0)
    job = FcJob(batch, workers, 0)
    moved = 2 * (workers - 1) * batch * 4096 + 2 * batch * 1000 * (workers - 1) / workers
    assert step_seconds([FC3], ["shard"], job, per_byte) == pytest.approx(4 * moved)
    assert step_seconds([FC3], ["data"], job, per_byte) == pytest.approx(4 * 2 * 3 / 4 * 4097 * 1000)
    # Behind a sharded layer only columns are gathered: the way over the examples' owners is saved, there and back.
    row = step_seconds([FC2, FC3], ["shard", "shard"], job, per_byte)
    apart = step_seconds([FC2], ["shard"], job, per_byte) + step_seconds([FC3], ["shard"], job, per_byte)
    assert apart - row == pytest.approx(4 * 2 * batch * 4096 * (workers - 1) / workers)
    # The link of one of two servers carries half of the gradients of all four workers.
    assert step_seconds([FC3], ["data"], FcJob(batch, workers, 2), per_byte) == pytest.approx(4 * 2 * 4097 * 1000)


class Moves:
    """The busiest worker's values in forward, one by one: who holds which activation, and who needs it.

    Its transfers are counted too. An activation is (example, column); examples and columns lie evenly on workers.
    """

    def __init__(self, batch: int, workers: int) -> None:
        self.batch, self.workers = batch, workers
        self.values = self.transfers = 0
        self.by_columns = False

    def held(self, columns: int) -> set[tuple[int, int]]:
        """Worker 0's share of activations this wide."""
        if self.by_columns:
            return set(product(range(self.batch * self.workers), range(columns // self.workers)))
        return self.own_examples(columns)

    def own_examples(self, columns: int) -> set[tuple[int, int]]:
        return set(product(range(self.batch), range(columns)))

    def receive(self, needed: set[tuple[int, int]], columns: int) -> None:
        self.values += len(needed - self.held(columns))
        self.transfers += 1

    def layer(self, mode: str, inputs: int) -> None:
        if mode == "shard":
            self.receive(set(product(range(self.batch * self.workers), range(inputs))), inputs)
        else:
            self.back_to_examples(inputs)
        self.by_columns = mode == "shard"

    def back_to_examples(self, columns: int) -> None:
        if self.by_columns:
            self.receive(self.own_examples(columns), columns)


def seconds_by_counting(widths: Sequence[int], modes: Sequence[str], job: FcJob, links: FcLinks) -> float:
    """The formulas of `step_seconds`; layers of `widths[i]` inputs and `widths[i + 1]` outputs."""
    moves = Moves(job.batch, job.workers)
    seconds = 0.0
    for mode, (inputs, outputs) in zip(modes, pairwise(widths), strict=True):
        moves.layer(mode, inputs)
        if mode == "data":
            gradient_bytes = 4 * (inputs + 1) * outputs
            if job.servers:
                # A worker's link carries all of it, a server's link its share of what each worker sends.
                busiest = max(gradient_bytes, job.workers * gradient_bytes / job.servers)
            else:
                # P - 1 parts are summed around the ring, and P - 1 sums are handed on.
                busiest = sum(gradient_bytes / job.workers for _ in range(2) for _ in range(job.workers - 1))
            seconds += links.exchange_seconds + busiest * links.seconds_per_byte
    moves.back_to_examples(widths[-1])
    return seconds + 2 * (moves.transfers * links.transfer_seconds + 4 * moves.values * links.seconds_per_byte)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=5),
    st.builds(FcJob, st.integers(1, 4), st.integers(1, 4), st.integers(0, 9)),
    links,
)
def test_the_choice_is_the_best_of_all_by_counting_what_moves(units: list[int], job: FcJob, links: FcLinks) -> None:
    widths = [unit * job.workers for unit in units]
    layers = [FcLayer("fc", inputs, outputs) for inputs, outputs in pairwise(widths)]
    counted = {
        modes: seconds_by_counting(widths, modes, job, links)
        for modes in product(*[("data", "shard") if job.workers > 1 else ("data",)] * len(layers))
    }
    for modes, seconds in counted.items():
        assert step_seconds(layers, modes, job, links) == pytest.approx(seconds, rel=1e-9)
    choices = choose_fc(layers, job, links)
    assert counted[tuple(choice.choice for choice in choices)] <= min(counted.values()) * (1 + 1e-9)
    for choice, layer in zip(choices, layers, strict=True):
        both = [seconds_by_counting([layer.inputs, layer.outputs], [mode], job, links) for mode in ("data", "shard")]
        assert [choice.data_seconds, choice.shard_seconds] == pytest.approx(both, rel=1e-9)


def test_a_layer_with_fewer_outputs_than_workers_stays() -> None:
    slow = FcLinks(0.0, 0.0, 1.0)
    for outputs, workers, mode in ((4, 4, "shard"), (3, 4, "data"), (9, 1, "data")):
        for insist in (False, True):
            (choice,) = choose_fc([FcLayer("fc", 1000, outputs)], FcJob(1, workers, 1), slow, insist=insist)
            assert choice.choice == mode
    (choice,) = choose_fc([FcLayer("fc", 4, 4)], FcJob(1000, 4, 0), slow)
    assert choice.choice == "data"
    (choice,) = choose_fc([FcLayer("fc", 4, 4)], FcJob(1000, 4, 0), slow, insist=True)
    assert choice.choice == "shard"


def test_one_layer_is_left_data_parallel_where_that_is_asked_for() -> None:
    slow = FcLinks(0.0, 0.0, 1.0)
    layers = [FcLayer("a", 50, 40), FcLayer("b", 40, 30), FcLayer("c", 30, 41)]

    def modes(layers: Sequence[FcLayer], batch: int = 1) -> list[str]:
        return [choice.choice for choice in choose_fc(layers, FcJob(batch, 4, 0), slow, leave_one=True)]

    assert modes(layers) == ["shard", "data", "shard"]
    assert modes([]) == []
    assert modes(layers, batch=1000) == ["data", "data", "data"]
    # One that stays anyway is enough.
    assert modes([FcLayer("a", 50, 40), FcLayer("b", 700, 3)]) == ["shard", "data"]


def test_the_row_of_the_results_has_all_fields() -> None:
    (choice,) = choose_fc([FC3], FcJob(32, 4, 0), FcLinks(0.0, 0.0, 1.0))
    assert choice.to_json() == {
        "name": "fc3",
        "inputs": 4096,
        "outputs": 1000,
        "data_seconds": choice.data_seconds,
        "shard_seconds": choice.shard_seconds,
        "choice": choice.choice,
        "rule": printed_rule(FC3, FcJob(32, 4, 0)),
    }


def test_the_printed_inequality() -> None:
    # M P < (K + 1) N / (3 K + 2 N): 1232 for FC1, 819 for FC2, 287 for FC3.
    for layer, most in ((FC1, 1231), (FC2, 819), (FC3, 286)):
        assert printed_rule(layer, FcJob(most, 1, 0)) == "shard"
        assert printed_rule(layer, FcJob(most + 1, 1, 0)) == "data"
    # (1 + 1) 1000 / (3 + 2000) is below 1, and (5 + 1) 15 / (15 + 30) is 2.
    assert printed_rule(FcLayer("fc", 1, 1000), FcJob(1, 1, 0)) == "data"
    assert [printed_rule(FcLayer("fc", 5, 15), FcJob(1, workers, 0)) for workers in (1, 2)] == ["shard", "data"]


def test_of_many_layers_each_is_chosen_alone() -> None:
    choices = choose_fc([FC1, FC3] * 6, FcJob(32, 4, 0), FcLinks(0.0, 0.0, 1e-8))
    assert [choice.choice for choice in choices] == ["shard"] * 12
    # Between layers that are sharded a small one would be, too: but nobody looks at so many combinations.
    small = FcLayer("small", 4096, 1000)
    links = FcLinks(0.0, 0.0, 1e-8)
    job = FcJob(300, 4, 0)
    assert [c.choice for c in choose_fc([FC1, small] * 5, job, links)] != ["shard", "data"] * 5
    assert [c.choice for c in choose_fc([FC1, small] * 5 + [FC1], job, links)] == ["shard", "data"] * 5 + ["shard"]


def test_every_layer_has_a_mode() -> None:
    with pytest.raises(ValueError, match="zip"):
        step_seconds([FC2, FC3], ["data"], FcJob(1, 2, 0), FcLinks(0.0, 0.0, 1.0))
