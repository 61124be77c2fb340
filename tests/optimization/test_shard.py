from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError, FrameError, ModelError
from taihu.core.job.schedule import learning_rate
from taihu.core.optimization import OptimizerShard, SumShard
from taihu.core.settings import OptimizerSettings
from taihu.core.traits.optimizers import OPTIMIZERS
from taihu.kernels.reduce import sum_in_rank_order

Values = NDArray[np.float32]
quick = settings(deadline=None, max_examples=40)
RULES = [
    OptimizerSettings(momentum=0.0),
    OptimizerSettings(momentum=0.0, weight_decay=0.01),
    OptimizerSettings(weight_decay=0.01, schedule="step", milestones=(4, 9), gamma=0.3),
    OptimizerSettings(nesterov=True, weight_decay=0.01, schedule="cosine", decay_steps=12, warmup_steps=3),
    OptimizerSettings(name=OPTIMIZERS["adam"], learning_rate=0.01, weight_decay=0.02, beta1=0.8, beta2=0.95),
    OptimizerSettings(name=OPTIMIZERS["adamw"], learning_rate=0.01, weight_decay=0.1, epsilon=1e-3, warmup_steps=5),
]
rules = st.sampled_from(RULES)
every_rule = pytest.mark.parametrize(
    "rule", RULES, ids=lambda r: f"{r.name}-{r.momentum}-{r.nesterov}-{r.weight_decay}"
)


def normal(elements: int, *seed: int) -> Values:
    return np.random.default_rng(seed).standard_normal(elements, dtype=np.float32)


def reference(
    rule: OptimizerSettings, start: Values, gradients: Sequence[NDArray[np.floating]]
) -> NDArray[np.float64]:
    """The trajectory's end in double precision, value by value, from the pseudocode of PyTorch's documentation."""
    out = np.empty(len(start))
    for i, value in enumerate(start):
        p, b, m, v = float(value), None, 0.0, 0.0
        for t, gradient in enumerate(gradients, start=1):
            g, lr = float(gradient[i]), learning_rate(rule, t)
            if rule.name.key == "adamw":
                p = p - lr * rule.weight_decay * p
            else:
                g = g + rule.weight_decay * p
            if rule.name.key == "sgd":
                if rule.momentum != 0:
                    b = g if b is None else rule.momentum * b + g
                    g = g + rule.momentum * b if rule.nesterov else b
                p = p - lr * g
            else:
                m = rule.beta1 * m + (1 - rule.beta1) * g
                v = rule.beta2 * v + (1 - rule.beta2) * g**2
                p = p - lr * (m / (1 - rule.beta1**t)) / ((v / (1 - rule.beta2**t)) ** 0.5 + rule.epsilon)
        out[i] = p
    return out


def run(shard: OptimizerShard, elements: int, steps: Iterable[int], cuts: Iterable[tuple[int, int]] = ()) -> None:
    """Take `steps` with the gradients of these steps, in ranges `cuts` or in one."""
    ranges = list(cuts) or [(0, elements)]
    for step in steps:
        gradient = normal(elements, 7, step)
        for start, stop in ranges:
            shard.update(start, stop, gradient[start:stop], step, scale=0.25)


def snapshot(shard: OptimizerShard, parameters: Values) -> dict[str, bytes]:
    return {"parameters": parameters.tobytes()} | {name: array.tobytes() for name, array in shard.state().items()}


@every_rule
@pytest.mark.parametrize("elements", [0, 1, 67])
def test_trajectory_is_that_of_pytorchs_formulas(rule: OptimizerSettings, elements: int) -> None:
    parameters = normal(elements, 1)
    start = parameters.copy()
    run(OptimizerShard(rule, parameters), elements, range(1, 31))
    expected = reference(rule, start, [normal(elements, 7, step) / 4 for step in range(1, 31)])
    np.testing.assert_allclose(parameters, expected, rtol=1e-5, atol=1e-5)


@every_rule
def test_the_mean_of_a_sum_is_fused(rule: OptimizerSettings) -> None:
    frames = [normal(101, 3, rank) for rank in range(3)]
    total = np.empty(101, dtype=np.float32)
    sum_in_rank_order(frames, total)
    parameters = normal(101, 1)
    start = parameters.copy()
    OptimizerShard(rule, parameters).update(0, 101, total, 1, scale=1 / 3)
    expected = reference(rule, start, [np.mean(frames, axis=0, dtype=np.float64)])
    np.testing.assert_allclose(parameters, expected, rtol=1e-5, atol=1e-5)


@quick
@given(rules, st.integers(0, 300), st.lists(st.integers(0, 300), max_size=6), st.randoms(use_true_random=False))
def test_ranges_in_any_order_give_the_bits_of_one_range(
    rule: OptimizerSettings, elements: int, cuts: list[int], rng: random.Random
) -> None:
    bounds = sorted({0, elements, *(min(cut, elements) for cut in cuts)})
    ranges = list(itertools.pairwise(bounds))
    rng.shuffle(ranges)
    whole, parts = normal(elements, 1), normal(elements, 1)
    one, many = OptimizerShard(rule, whole), OptimizerShard(rule, parts)
    run(one, elements, range(1, 5))
    run(many, elements, range(1, 5), ranges)
    assert snapshot(one, whole) == snapshot(many, parts)


@every_rule
def test_threads_on_different_ranges_give_the_bits_of_one_range(rule: OptimizerSettings) -> None:
    elements, ranges = 40_003, [(0, 9_999), (9_999, 10_000), (10_000, 30_001), (30_001, 40_003)]
    whole, parts = normal(elements, 1), normal(elements, 1)
    one, many = OptimizerShard(rule, whole), OptimizerShard(rule, parts)
    run(one, elements, range(1, 6))
    threads = [threading.Thread(target=run, args=(many, elements, range(1, 6), [cut])) for cut in ranges]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert snapshot(one, whole) == snapshot(many, parts)


@every_rule
def test_a_range_leaves_the_rest_alone(rule: OptimizerSettings) -> None:
    parameters = normal(50, 1)
    start = parameters.copy()
    shard = OptimizerShard(rule, parameters)
    shard.update(10, 27, normal(17, 2), 1)
    for array in shard.state().values():
        assert not array[:10].any()
        assert array[10:27].all()
        assert not array[27:].any()
    np.testing.assert_array_equal(parameters[:10], start[:10])
    np.testing.assert_array_equal(parameters[27:], start[27:])
    assert (parameters[10:27] != start[10:27]).all()


@every_rule
def test_saved_state_continues_the_same_trajectory(rule: OptimizerSettings) -> None:
    straight = normal(83, 1)
    uninterrupted = OptimizerShard(rule, straight)
    run(uninterrupted, 83, range(1, 11))

    before = normal(83, 1)
    first = OptimizerShard(rule, before)
    run(first, 83, range(1, 6))
    saved = {name: array.copy() for name, array in first.state().items()}
    at_save = snapshot(first, before)
    after = before.copy()
    second = OptimizerShard(rule, after)
    for name, live in second.state().items():
        live[...] = saved[name]
    run(second, 83, range(6, 11))
    assert all(array.tobytes() == at_save[name] for name, array in saved.items())
    assert snapshot(second, after) == snapshot(uninterrupted, straight)
    run(first, 83, range(6, 11))
    assert snapshot(first, before) == snapshot(second, after)


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        (OptimizerSettings(momentum=0.0), []),
        (OptimizerSettings(), ["momentum"]),
        (OptimizerSettings(name=OPTIMIZERS["adam"], momentum=0.0), ["exp_avg", "exp_avg_sq"]),
        (OptimizerSettings(name=OPTIMIZERS["adamw"]), ["exp_avg", "exp_avg_sq"]),
    ],
)
def test_state_is_what_the_rule_needs_and_live(rule: OptimizerSettings, names: list[str]) -> None:
    shard = OptimizerShard(rule, normal(11, 1))
    state = shard.state()
    assert list(state) == names
    assert shard.state_bytes == 44 * len(names)
    shard.update(0, 11, normal(11, 2), 1)
    assert all(array.any() and array.shape == (11,) and array.dtype == np.float32 for array in state.values())


@pytest.mark.parametrize(
    ("start", "stop", "gradient", "step"),
    [
        (-1, 3, np.ones(4, dtype=np.float32), 1),
        (5, 4, np.ones(0, dtype=np.float32), 1),
        (8, 13, np.ones(5, dtype=np.float32), 1),
        (13, 13, np.ones(0, dtype=np.float32), 1),
        (0, 4, np.ones(5, dtype=np.float32), 1),
        (0, 4, np.ones(3, dtype=np.float32), 1),
        (0, 4, np.ones((4, 1), dtype=np.float32), 1),
        (0, 4, np.ones(4, dtype=np.float64), 1),
        (0, 4, np.ones(4, dtype=np.int32), 1),
        (0, 4, np.ones(4, dtype=np.float32), 0),
    ],
)
@every_rule
def test_a_bad_update_is_refused_and_changes_nothing(
    rule: OptimizerSettings, start: int, stop: int, gradient: Values, step: int
) -> None:
    parameters = normal(12, 1)
    shard = OptimizerShard(rule, parameters)
    shard.update(0, 12, normal(12, 2), 1)
    before = snapshot(shard, parameters)
    with pytest.raises(FrameError, match=r"elements \["):
        shard.update(start, stop, gradient, step)
    assert snapshot(shard, parameters) == before


@pytest.mark.parametrize(
    "parameters",
    [
        np.zeros((2, 3), dtype=np.float32),
        np.zeros(6, dtype=np.float64),
        np.zeros(12, dtype=np.float32)[::2],
        np.frombuffer(bytes(24), dtype=np.float32),
    ],
)
def test_parameters_must_be_one_writable_range(parameters: Values) -> None:
    with pytest.raises(ModelError, match="parameters of an optimizer shard"):
        OptimizerShard(OptimizerSettings(), parameters)


@every_rule
def test_warm_up_changes_nothing(rule: OptimizerSettings) -> None:
    parameters = normal(12, 1)
    shard = OptimizerShard(rule, parameters)
    before = snapshot(shard, parameters)
    shard.warm_up()
    assert snapshot(shard, parameters) == before


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule.name.key != "sgd" or rule.momentum or rule.weight_decay]
)
def test_what_changes_every_parameter_updates_none_alone(rule: OptimizerSettings) -> None:
    parameters = normal(10, 1)
    before = parameters.copy()
    indices, gradient = np.arange(3, dtype=np.int32), np.ones(3, dtype=np.float32)
    with pytest.raises(ConfigError, match=rf"'{rule.name}' with state or weight decay changes every parameter; set"):
        OptimizerShard(rule, parameters).update_sparse(indices, gradient, 1)
    assert (parameters == before).all()


def test_sums_of_chosen_elements_lie_at_their_places() -> None:
    values = normal(10, 2)
    expected = values.copy()
    expected[[2, 7]] = 4.0, -2.0
    SumShard(values).update_sparse(np.array([2, 7], dtype=np.int32), np.array([4.0, -2.0], dtype=np.float32), 1, 0.5)
    assert values.tobytes() == expected.tobytes()


def test_plain_sgd_updates_chosen_elements_alone() -> None:
    parameters = normal(10, 2)
    indices, gradient = np.array([2, 7], dtype=np.int32), np.array([4.0, -2.0], dtype=np.float32)
    expected = parameters.copy()
    expected[indices] -= np.float32(0.1) * np.float32(0.5) * gradient
    rule = OptimizerSettings(momentum=0.0, learning_rate=0.1)
    OptimizerShard(rule, parameters).update_sparse(indices, gradient, 1, scale=0.5)
    np.testing.assert_allclose(parameters, expected, rtol=1e-6)
