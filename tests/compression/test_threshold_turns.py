"""Thresholds by layer and by group that take turns within a run, and the ratio of their steps."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.compression.thresholds import blocks_of, ratio_of
from benchmarks.compression.worker_in_turns import BLOCK, THRESHOLDS, InTurns, turn_of
from taihu.core.compression import Compressor, GroupCompressor
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.groups import Group
from taihu.core.planner.partition import Shard
from taihu.core.settings import CompressionSettings

LAYOUT = Layout(tuple(LayerSpec(f"l{i}", (TensorSpec("w", (size,)),)) for i, size in enumerate((40, 60))))
GRADIENTS, PARAMETERS = np.zeros((2, 100), dtype=np.float32)
MERGED, APART = (Group(0, 1),), (Group(0, 0), Group(1, 1))


def compressor_by(threshold: str) -> GroupCompressor:
    settings = CompressionSettings.model_validate({"method": "dlgs", "density": 0.1, "threshold": threshold})
    method = Compressor(settings.method, 0.1, threshold=settings.threshold)
    return GroupCompressor(method, LAYOUT, MERGED, gradients=GRADIENTS, parameters=PARAMETERS)


def test_each_selects_in_its_steps_what_it_would_alone() -> None:
    random = np.random.default_rng(3)
    alone = [compressor_by(each) for each in THRESHOLDS]
    turns = InTurns([compressor_by(each) for each in THRESHOLDS])
    units = []
    for step in range(1, 6 * BLOCK):
        groups = MERGED if step < 3 * BLOCK else APART
        if step == 3 * BLOCK:
            turns.adopt(groups)
            for each in alone:
                each.adopt(groups)
        # A gradient of the first layer is ten times one of the second: by group it takes most of what is sent.
        GRADIENTS[:] = random.standard_normal(100) * np.repeat([10, 1], [40, 60])
        for number in range(len(groups)):
            own = alone[turn_of(step)]
            expected, seen = own.compress(number, step), turns.compress(number, step)
            np.testing.assert_array_equal(seen.indices, expected.indices)
            np.testing.assert_array_equal(seen.values, expected.values)
            frame = Shard(LAYOUT, 1, 0).frames(groups, 100)[number]
            one, other = turns.pack(seen, frame), own.pack(expected, frame)
            np.testing.assert_array_equal(one.values, other.values)
            np.testing.assert_array_equal(one.sections, other.sections)
            units.append(len(seen.outcome.units))
    assert units[: 2 * BLOCK] == [2] * BLOCK + [1] * BLOCK


def test_steps_are_counted_by_turn_but_for_the_first_of_each() -> None:
    seconds = {step: float(step) for step in range(1, 50)}
    blocks = blocks_of(seconds, 1 + 2 * BLOCK, 2)
    assert blocks == {"layer": [[10, 11, 12], [18, 19, 20]], "group": [[14, 15, 16], [22, 23, 24]]}


@pytest.mark.parametrize("drift", [0.0, 5.0])
def test_a_ratio_lies_within_its_bounds_however_the_machine_drifts(drift: float) -> None:
    random = np.random.default_rng(0)
    levels = 1 + drift * np.linspace(0, 1, 200)[:, None]
    group = levels * random.normal(1, 0.05, (200, BLOCK - 1))
    layer = 1.1 * levels * random.normal(1, 0.05, (200, BLOCK - 1))
    ratio = ratio_of({"layer": layer.tolist(), "group": group.tolist()})
    assert ratio.value == np.median(layer) / np.median(group)
    assert ratio.low < 1.1 < ratio.high
    assert ratio.high - ratio.low < 0.03 * (1 + drift)
