"""Layers of transformers: gradients, an oracle in NumPy, the table that is shared, and what is refused."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError, DataError, ModelError
from taihu.worker.engine import (
    GELU,
    CausalAttention,
    CheckOptions,
    Embedding,
    Flatten,
    Layer,
    LayerNorm,
    Linear,
    Model,
    PositionEmbedding,
    Sequential,
    StepContext,
    StepHooks,
    TiedLinear,
    TokenCrossEntropy,
    build_from_definition,
    build_model,
    check_gradients,
    make_loss,
    softmax_cross_entropy,
    transformer,
)
from taihu.worker.engine.model_check import CheckedModel

_EXAMPLES = settings(deadline=None, max_examples=12)
_SIZES = st.integers(1, 5)
_FEW = CheckOptions(elements=6)
_CONTEXT = StepContext(training=True, seed=1, step=1, first_sample=0)


@_EXAMPLES
@given(st.data())
def test_gradients_of_each_layer(data: st.DataObject) -> None:
    time, width, units = data.draw(_SIZES), data.draw(_SIZES), data.draw(_SIZES)
    heads, shape = data.draw(st.integers(1, 3)), (time, width)
    kind: Literal["none", "tanh"] = data.draw(st.sampled_from(["none", "tanh"]))
    # One value alone is normalised to 0 whatever it is.
    layers: list[tuple[Callable[[], Layer], tuple[int, ...]]] = [
        (lambda: Embedding(units, width), (time,)),
        (PositionEmbedding, shape),
        (lambda: LayerNorm(0.1), (*shape[:1], width + 1)),
        (lambda: GELU(kind), shape),
        (lambda: CausalAttention(heads), (time, 3 * heads * width)),
        (lambda: Linear(units, bias=kind == "none"), shape),
    ]
    for make, its_shape in layers:
        check_gradients(make(), its_shape, _FEW)


@settings(_EXAMPLES, max_examples=5)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2), st.booleans())
def test_gradients_of_the_whole(time: int, heads: int, size: int, blocks: int, tied: bool) -> None:
    root = transformer(5, blocks=blocks, width=heads * size * 2, heads=heads, dropout=0.2, tied=tied)
    check_gradients(Model(root, (time,), 5), options=CheckOptions(elements=3))


def _bound(root: Layer, shape: tuple[int, ...], outputs: int, kind: Any = np.float64) -> tuple[Model, Any, Any]:
    model = Model(root, shape, outputs)
    parameters, gradients = np.full((2, model.layout.elements), np.nan, kind)
    model.bind(parameters, gradients)
    model.initialize(3)
    return model, parameters, gradients


def _normal(x: NDArray[Any], values: dict[str, Any], name: str) -> NDArray[Any]:
    spread = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    made: NDArray[Any] = (x - x.mean(axis=-1, keepdims=True)) / spread * values[f"{name}/scale"] + values[
        f"{name}/shift"
    ]
    return made


def _linear(x: NDArray[Any], values: dict[str, Any], name: str) -> NDArray[Any]:
    made: NDArray[Any] = x @ values[f"{name}/weight"] + values[f"{name}/bias"]
    return made


def _forward(values: dict[str, Any], tokens: NDArray[np.int64], heads: int, blocks: int) -> NDArray[Any]:
    """The transformer, place by place and head by head."""
    x = values["embedding1/weight"][tokens] + values["position1/weight"]
    width = x.shape[-1]
    size = width // heads
    for block in range(blocks):
        name = f"residual{2 * block + 1}.body"
        joint = _linear(_normal(x, values, f"{name}.layernorm1"), values, f"{name}.fc1")
        seen = np.zeros_like(x)
        for sample, head, t in itertools.product(range(len(x)), range(heads), range(x.shape[1])):
            own = slice(head * size, (head + 1) * size)
            query, keys, past = (joint[sample, :, part * width :][..., own] for part in range(3))
            scores = np.array([query[t] @ keys[s] / math.sqrt(size) for s in range(t + 1)])
            chances = np.exp(scores) / np.exp(scores).sum()
            seen[sample, t, own] = sum(chances[s] * past[s] for s in range(t + 1))
        x = x + _linear(seen, values, f"{name}.fc2")
        name = f"residual{2 * block + 2}.body"
        up = _linear(_normal(x, values, f"{name}.layernorm1"), values, f"{name}.fc1")
        share = (1 + np.vectorize(math.erf)(up / math.sqrt(2))) / 2
        x = x + _linear(up * share, values, f"{name}.fc2")
    made: NDArray[Any] = _normal(x, values, "layernorm1") @ values["embedding1/weight"].T
    return made


@_EXAMPLES
@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 3), st.integers(0, 2**31))
def test_forward_is_that_of_a_loop(batch: int, time: int, heads: int, seed: int) -> None:
    model, parameters, _ = _bound(transformer(7, blocks=2, width=4 * heads, heads=heads), (time,), 7)
    rng = np.random.default_rng(seed)
    parameters += 0.3 * rng.standard_normal(parameters.shape)
    tokens = rng.integers(0, 7, (batch, time))
    expected = _forward(model.parameters_by_name(), tokens, heads, 2)
    np.testing.assert_allclose(model.forward(tokens.astype(np.float64), _CONTEXT), expected, atol=1e-10)
    answers = model.forward(tokens.astype(np.float64), StepContext(False, 0, 0, 0)).copy()
    np.testing.assert_allclose(answers, expected, atol=1e-10)
    # No place sees a later one.
    cut = int(rng.integers(0, time))
    tokens[:, cut + 1 :] = rng.integers(0, 7, (batch, time - cut - 1))
    again = model.forward(tokens.astype(np.float64), StepContext(False, 0, 0, 0))
    np.testing.assert_allclose(again[:, : cut + 1], answers[:, : cut + 1], atol=1e-12)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(threads: int) -> None:
    tokens = np.random.default_rng(1).integers(0, 9, (5, 130)).astype(np.float32)
    labels = np.random.default_rng(2).integers(0, 9, (5, 130))
    seen = []
    for count in (1, threads):
        model, _, gradients = _bound(transformer(9, blocks=1, width=48, heads=4), (130,), 9, np.float32)
        model.use_threads(count)
        loss = model.train(tokens, labels, _CONTEXT, StepHooks())
        seen.append((loss, gradients.tobytes()))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("recompute", [None, (2, False), (3, True)])
def test_gradients_of_both_uses_are_summed_before_the_layer_is_ready(recompute: tuple[int, bool] | None) -> None:
    model, _, gradients = _bound(transformer(6, blocks=2, width=8, heads=2), (5,), 6)
    apart, _, _ = _bound(transformer(6, blocks=2, width=8, heads=2, tied=False), (5,), 6)
    table = model.parameters_by_name()["embedding1/weight"]
    for name, values in apart.parameters_by_name().items():
        values[...] = table.T if name == "fc1/weight" else model.parameters_by_name()[name]
    if recompute is not None:
        model.recompute(recompute[0], spill=recompute[1])
    tokens, labels = np.random.default_rng(1).integers(0, 6, (2, 3, 5))
    ready: list[int] = []
    for step in (1, 2):
        gradients[:] = np.nan
        ready.clear()
        hooks = StepHooks(gradient_ready=ready.append)
        loss = model.train(tokens.astype(np.float64), labels, StepContext(True, 1, step, 0), hooks)
        assert ready == list(range(len(model.layout.layers)))
    assert loss == pytest.approx(apart.train(tokens.astype(np.float64), labels, _CONTEXT, StepHooks()))
    own = {f"{layer.name}/{name}": each for layer in apart.parameter_layers for name, each in layer.gradients.items()}
    for layer in model.parameter_layers:
        for name, gradient in layer.gradients.items():
            expected = own[f"{layer.name}/{name}"]
            if layer.name == "embedding1":
                expected = expected + own["fc1/weight"].T
            np.testing.assert_allclose(gradient, expected, atol=1e-12)


def test_the_table_is_read_where_it_is_used() -> None:
    model, _, _ = _bound(transformer(6, blocks=1, width=8, heads=2), (5,), 6)
    read: list[int] = []
    hooks = StepHooks(before_layer=read.append)
    tokens, labels = np.zeros((2, 5)), np.zeros((2, 5), np.int64)
    model.train(tokens, labels, _CONTEXT, hooks)
    last = len(model.layout.layers) - 1
    assert tuple(read) == model.reading_order == (*reversed(range(last + 1)), last)
    again: list[int] = []
    model.forward(tokens, _CONTEXT)
    model.backward(np.zeros((2, 5, 6)), before_recompute=again.append)
    assert again == [last]


def test_nothing_is_allocated_in_later_steps() -> None:
    model, _, _ = _bound(transformer(6, blocks=1, width=8, heads=2), (5,), 6, np.float32)
    tokens, labels = np.zeros((4, 5), np.float32), np.zeros((4, 5), np.int64)
    model.train(tokens, labels, _CONTEXT, StepHooks())
    held = model.held_bytes
    model.train(tokens[:3], labels[:3], _CONTEXT, StepHooks())
    model.train(tokens, labels, _CONTEXT, StepHooks())
    assert model.held_bytes == held


def test_it_survives_a_file_of_definitions() -> None:
    root = transformer(6, blocks=1, width=8, heads=2, dropout=0.1)
    definition = root.definition()
    assert definition is not None
    again = build_from_definition(definition)
    assert Model(again, (5,), 6).layout == Model(root, (5,), 6).layout
    assert again.definition() == definition


@pytest.mark.parametrize("tied", [True, False])
def test_each_layer_of_a_model_is_checked_alone(tied: bool) -> None:
    checked = CheckedModel(lambda: transformer(5, blocks=1, width=4, heads=2, tied=tied), (3,), 5)
    options = CheckOptions(elements=4)
    assert [fault for index in range(len(checked.layers)) for fault in checked.layer_faults(index, options)] == []
    assert checked.model_faults(options) == ()


@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (lambda: Embedding(0, 3), (4,), "Embedding: expected at least 1 token"),
        (lambda: Embedding(3, 3), (4, 2), r"layer1: expected an input of \(time,\) tokens, seen \(4, 2\)"),
        (PositionEmbedding, (4,), r"position1: expected an input of \(time, features\), seen \(4,\)"),
        (lambda: LayerNorm(0.0), (4,), "LayerNorm: expected an epsilon above 0, seen 0.0"),
        (lambda: LayerNorm(math.nan), (4,), "LayerNorm: expected an epsilon above 0, seen nan"),
        (lambda: GELU("erf"), (4,), "GELU: expected approximate to be 'none' or 'tanh', seen 'erf'"),  # type: ignore[arg-type]
        (lambda: CausalAttention(0), (4, 3), "CausalAttention: expected at least 1 head, seen 0"),
        (lambda: CausalAttention(2), (4, 9), "layer1: expected an input of .* a multiple of 6 features"),
        (lambda: TiedLinear(0), (4, 3), "TiedLinear: expected at least 1 unit"),
        (lambda: TiedLinear(3), (4,), r"tied1: expected an input of \(time, features\)"),
        (lambda: Linear(3), (4, 4, 3), r"layer1: expected an input of \(features,\), seen \(4, 4, 3\); put Flatten"),
        (lambda: Sequential([Embedding(5, 2), TiedLinear(3)]), (4,), "tied1: expected embedding1 to have a table of"),
        (lambda: Sequential([Linear(2), LayerNorm()]), (4,), "expected an output of"),
        (
            lambda: Sequential([Embedding(3, 2), TiedLinear(3, "fc1")]),
            (4,),
            "tied1: expected weights to name an Embedding of the model, seen 'fc1'; it has embedding1",
        ),
        (
            lambda: Sequential([Embedding(3, 2), TiedLinear(3), Linear(2), TiedLinear(3)]),
            (4,),
            "tied2: tied1 shares the weights of embedding1 already",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], Layer], shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Model(make(), shape, 3) if len(shape) == 1 else make().build("layer1", shape)


@pytest.mark.parametrize("token", [5.0, -1.0, 2.5, math.nan])
def test_what_is_no_token_is_named(token: float) -> None:
    model, _, _ = _bound(transformer(5, blocks=1, width=4, heads=2), (3,), 5)
    with pytest.raises(ModelError, match=r"embedding1: expected tokens, whole numbers of 0 to 4, seen"):
        model.forward(np.array([[0.0, token, 1.0]]), _CONTEXT)


def test_the_loss_is_that_of_all_places() -> None:
    rng = np.random.default_rng(1)
    outputs, targets = rng.standard_normal((3, 4, 5)), rng.integers(0, 5, (3, 4))
    loss, slope = TokenCrossEntropy()(outputs, targets)
    expected, flat = softmax_cross_entropy(outputs.reshape(12, 5), targets.ravel())
    assert loss == expected
    assert np.array_equal(slope, flat.reshape(3, 4, 5))
    tally = TokenCrossEntropy(0.1).tally()
    tally.add(outputs[:1], targets[:1])
    tally.add(outputs[1:], targets[1:])
    assert tally.metrics() == {
        "bits_per_token": pytest.approx(expected / math.log(2)), "perplexity": pytest.approx(math.exp(expected))
    }  # fmt: skip
    with pytest.raises(DataError, match=r"expected one integer label for each of \(3, 4\) places"):
        TokenCrossEntropy()(outputs, targets[:, :3])


def test_losses_and_models_that_do_not_fit_each_other() -> None:
    tokens = make_loss("auto", "tokens", 256, 0.1)
    assert tokens == TokenCrossEntropy(0.1)
    with pytest.raises(ConfigError, match=r"train.loss 'mse': the data set is text, whose tokens are classes"):
        make_loss("mse", "tokens", 256)
    with pytest.raises(ModelError, match="expected 3 outputs at every place of a sequence, seen 3 for a"):
        Model(Linear(3), (4,), 3).use_loss(tokens)
    with pytest.raises(ModelError, match=r"expected an output of \(3,\) for a sample, seen \(4, 3\); train"):
        Model(Sequential([Embedding(3, 2), TiedLinear(3)]), (4,), 3).use_loss(make_loss("auto", "classes", 3))
    Model(Sequential([Embedding(3, 2), Flatten(), Linear(3)]), (4,), 3).use_loss(make_loss("auto", "classes", 3))
    with pytest.raises(ModelError, match="model small_gpt: expected text, the data set has images"):
        build_model("small_gpt", (8, 8, 1), 10)
