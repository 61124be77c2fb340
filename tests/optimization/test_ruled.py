"""A shard by the rules of a script: parameter groups of their own, and rates that all workers bring alike."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.core.base.errors import FrameError, GivenUpError
from taihu.core.job.update_rules import UpdateRules
from taihu.core.optimization import OptimizerShard, RuledShard, StepRates
from taihu.core.settings import OptimizerSettings
from taihu.core.traits.optimizers import OPTIMIZERS

RULES = {
    "sgd": OptimizerSettings(momentum=0.0),
    "momentum": OptimizerSettings(momentum=0.9, nesterov=True),
    "adam": OptimizerSettings(name=OPTIMIZERS["adam"], beta1=0.8),
    "adamw": OptimizerSettings(name=OPTIMIZERS["adamw"], epsilon=1e-6),
}
RATES = st.floats(0.001, 1.0)


@settings(max_examples=30)
@given(st.sampled_from(sorted(RULES)), st.data())
def test_each_parameter_group_is_a_shard_of_its_own(rule: str, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(sum))
    groups = data.draw(st.lists(st.integers(0, 2), min_size=len(sizes), max_size=len(sizes)))
    decays = (0.0, 0.1, 0.02)
    offsets = [0, *np.cumsum(sizes).tolist()]
    drawn = np.random.default_rng(5)
    parameters = drawn.standard_normal(offsets[-1], dtype=np.float32)
    alone = parameters.copy()
    rates = StepRates(3)
    shard = RuledShard(UpdateRules((RULES[rule],), decays, tuple(groups), (0, 0, 0)), offsets, parameters, rates)
    # A shard for each layer and step: its schedule is the rate that this step has.
    shards = [alone[start:stop] for start, stop in pairwise(offsets)]
    states: list[dict[str, Any]] = [{} for _ in sizes]
    for step in range(1, 4):
        of_step = tuple(data.draw(RATES) for _ in range(3))
        rates.bring(0, step, 0, of_step)
        gradient = drawn.standard_normal(offsets[-1], dtype=np.float32)
        cuts = sorted({0, offsets[-1], *data.draw(st.lists(st.integers(0, offsets[-1]), max_size=3))})
        for start, stop in pairwise(cuts):
            shard.update(start, stop, gradient[start:stop], step, 0.5)
        for layer, (group, own) in enumerate(zip(groups, shards, strict=True)):
            own_settings = RULES[rule].model_copy(
                update={"learning_rate": of_step[group], "weight_decay": decays[group]}
            )
            one = OptimizerShard(own_settings, own)
            for name, kept in states[layer].items():
                one.state()[name][...] = kept
            one.update(0, len(own), gradient[offsets[layer] : offsets[layer + 1]], step, 0.5)
            states[layer] = {name: values.copy() for name, values in one.state().items()}
    assert parameters.tobytes() == alone.tobytes()


@settings(max_examples=30)
@given(st.lists(st.sampled_from(sorted(RULES)), min_size=2, max_size=3), st.data())
def test_each_optimizer_is_a_shard_of_its_own_that_counts_its_own_steps(
    kinds: list[str], data: st.DataObject
) -> None:
    size = 4
    rules = UpdateRules.joined([UpdateRules((RULES[kind],), (0.1,), (0,), (0,)) for kind in kinds])
    order = data.draw(st.permutations(range(len(kinds))))
    drawn = np.random.default_rng(6)
    parameters = drawn.standard_normal(size * len(kinds), dtype=np.float32)
    alone = [parameters[layer * size :][:size].copy() for layer in range(len(kinds))]
    rates = StepRates(len(kinds))
    offsets = [layer * size for layer in range(len(kinds) + 1)]
    shard = RuledShard(rules.in_order(order), offsets, parameters, rates)
    own = {"learning_rate": 0.5, "weight_decay": 0.1}
    shards = [
        OptimizerShard(RULES[kinds[number]].model_copy(update=own), values)
        for number, values in zip(order, alone, strict=True)
    ]
    made = [0] * len(kinds)
    for step in range(1, 6):
        rates.bring(0, step, 0, (0.5,) * len(kinds))
        for layer in data.draw(st.lists(st.integers(0, len(kinds) - 1), unique=True)):
            made[layer] += 1
            gradient = drawn.standard_normal(size, dtype=np.float32)
            for start, stop in ((0, 1), (1, size)):
                shard.update(offsets[layer] + start, offsets[layer] + stop, gradient[start:stop], step)
            shards[layer].update(0, size, gradient, made[layer])
    assert parameters.tobytes() == np.concatenate(alone).tobytes()
    assert shard.state_bytes == sum(each.state_bytes for each in shards)


def test_a_worker_with_another_rate_is_named() -> None:
    rates = StepRates(2)
    rates.bring(2, 7, 0, (0.1, 0.2))
    rates.bring(0, 7, 0, ())
    with pytest.raises(FrameError, match=r"worker 1 has learning rate 0\.25 for parameter group 1 at step 7"):
        rates.bring(1, 7, 0, (0.1, 0.25))
    with pytest.raises(FrameError, match="worker 1 pushed gradients of step 7 before their learning rates"):
        rates.check(1, 7, 0)
    rates.bring(1, 7, 0, (0.1, 0.2))
    rates.check(1, 7, 0)
    assert rates.of(7) == (0.1, 0.2)


@pytest.mark.parametrize("wrong", [(0.1,), (0.1, float("nan")), (0.1, -1.0), (0.1, float("inf"))])
def test_rates_that_make_no_sense_are_refused(wrong: tuple[float, ...]) -> None:
    with pytest.raises(FrameError, match="worker 1 brings learning rates"):
        StepRates(2).bring(1, 1, 0, wrong)


def test_a_higher_attempt_has_rates_of_its_own() -> None:
    rates = StepRates(1)
    rates.bring(0, 3, 0, (0.5,))
    rates.bring(0, 3, 1, (0.25,))
    with pytest.raises(GivenUpError):
        rates.bring(1, 3, 0, (0.5,))
    with pytest.raises(FrameError, match="before their learning rates"):
        rates.check(1, 3, 1)
    assert rates.of(3) == (0.25,)
    rates.forget()
    rates.bring(1, 2, 1, (0.75,))
    assert rates.of(2) == (0.75,)


def test_a_step_that_nobody_has_rates_for_is_not_made() -> None:
    rates = StepRates(1)
    rates.bring(0, 1, 0, ())
    parameters = np.ones(2, dtype=np.float32)
    shard = RuledShard(UpdateRules((RULES["sgd"],), (0.0,), (0,), (0,)), (0, 2), parameters, rates)
    with pytest.raises(FrameError, match="no worker brought any"):
        shard.update(0, 2, parameters.copy(), 1)
    assert parameters.tolist() == [1.0, 1.0]
