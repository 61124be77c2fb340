"""Groups of an arena: what is selected and what is kept back are a whole gradient, and a frame has its part."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.core.compression import Compressor, GroupCompressor
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.groups import Group
from taihu.core.planner.partition import Shard
from taihu.core.settings import CompressionSettings
from taihu.core.settings.compression import ValueName
from taihu.core.traits.methods import METHODS
from taihu.core.wire.frames.headers import ValueType
from taihu.kernels.packing import unpack

_SIZES = (7, 0, 12, 5, 20)
LAYOUT = Layout(tuple(LayerSpec(f"l{i}", (TensorSpec("w", (size,)),)) for i, size in enumerate(_SIZES)))
PLANS = ((Group(0, 1), Group(2, 4)), (Group(0, 0), Group(1, 1), Group(2, 2), Group(3, 4)), (Group(0, 4),))


def groups_of(plan: int, density: float, gradients: np.ndarray[tuple[int], np.dtype[np.float32]]) -> GroupCompressor:
    settings_ = CompressionSettings(method=METHODS["dlgs"], density=density)
    compressor = Compressor(settings_.method, density)
    parameters = np.zeros(LAYOUT.elements, dtype=np.float32)
    return GroupCompressor(compressor, LAYOUT, PLANS[plan], gradients=gradients, parameters=parameters)


@settings(max_examples=30)
@given(
    plan=st.integers(0, 2),
    later=st.integers(0, 2),
    servers=st.integers(1, 3),
    frame=st.integers(4, 50),
    density=st.sampled_from([0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_nothing_of_a_gradient_is_lost(
    *, plan: int, later: int, servers: int, frame: int, density: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    gradients = np.empty(LAYOUT.elements, dtype=np.float32)
    compressor = groups_of(plan, density, gradients)
    assert compressor.value_type is ValueType.FP32
    total, sent = np.zeros((2, LAYOUT.elements))
    for step, groups in enumerate((PLANS[plan], PLANS[later], PLANS[later]), 1):
        if step == 2:
            compressor.adopt(groups)
        gradients[:] = random.integers(-40, 40, LAYOUT.elements)
        total += gradients
        frames = [
            shard_frame
            for server in range(servers)
            for shard_frame in Shard(LAYOUT, servers, server).frames(groups, frame)
        ]
        for number, group in enumerate(groups):
            start, stop = LAYOUT.offsets[group.first_layer], LAYOUT.offsets[group.last_layer + 1]
            selection = compressor.compress(number, step)
            assert all(unit.group == number for unit in selection.outcome.units)
            assert np.all((start <= selection.indices) & (selection.indices < stop))
            assert len(selection.indices) == selection.outcome.selected.sum()
            for own in frames:
                if own.group == number:
                    packed = compressor.pack(selection, own)
                    positions = np.empty(packed.count, dtype=np.int32)
                    unpack(packed.sections, own.arena_bounds, packed.count, positions)
                    sent[positions] += packed.values
    np.testing.assert_array_equal(sent + compressor.state.residual, total)
    assert compressor.kept(20, 1) == max(1, math.ceil(20 * density))


@settings(max_examples=30)
@given(
    plan=st.integers(0, 2),
    density=st.sampled_from([0.1, 0.5]),
    value=st.sampled_from([np.inf, -np.inf, np.nan]),
    bad=st.lists(st.integers(0, LAYOUT.elements - 1), min_size=1, unique=True),
    kind=st.sampled_from(get_args(ValueName)),
)
def test_what_is_not_finite_is_sent_once_and_not_kept(
    *, plan: int, density: float, value: float, bad: list[int], kind: ValueName
) -> None:
    """More of it than is sent would otherwise come for as many steps as there are values to one that is sent."""
    gradients = np.ones(LAYOUT.elements, dtype=np.float32)
    compressor = Compressor(METHODS["dlgs"], density, value_type=kind, momentum=0.5)
    parameters = np.zeros(LAYOUT.elements, dtype=np.float32)
    groups = GroupCompressor(
        compressor, LAYOUT, PLANS[plan], gradients=gradients, parameters=parameters, forgets_non_finite=True
    )
    gradients[bad] = value
    sent = [all_sent(groups, plan, 1)]
    gradients[:] = 1.0
    sent.append(all_sent(groups, plan, 2))
    assert not np.isfinite(sent[0]).all()
    assert np.isfinite(sent[1]).all()
    assert len(sent[1]) > 0
    assert np.isfinite(groups.state.residual).all()
    assert np.isfinite(groups.state.velocity).all()


def all_sent(groups: GroupCompressor, plan: int, step: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Values that all groups of a plan send in a step, in fp32."""
    return np.concatenate(
        [groups.decoded(groups.compress(number, step)).copy() for number in range(len(PLANS[plan]))]
    )
