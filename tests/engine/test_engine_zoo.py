"""The models: their sizes, that they run, and that the small one learns."""

import numpy as np
import pytest

from taihu.core.job import load_job
from taihu.core.model.model_defaults import usual_input
from taihu.core.model.names import MODEL_NAMES
from taihu.core.optimization import OptimizerShard
from taihu.core.planner.model_shapes import TABLES
from taihu.worker.data.batches import Batches
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import MODELS, Model, StepContext, StepHooks, build_model, softmax_cross_entropy

_CIFAR = (32, 32, 3)


def test_the_zoo_has_the_models_that_a_job_can_name() -> None:
    assert tuple(MODELS) == MODEL_NAMES


@pytest.mark.parametrize(
    ("name", "shape", "classes", "elements"),
    [
        # Caffe's: 5*5*3*32+32 + 5*5*32*32+32 + 5*5*32*64+64 + 1024*64+64 + 64*10+10
        ("cifar10_quick", _CIFAR, 10, 145_578),
        # 28 -> 14 -> 7 -> 3 pixels: 3*3*64 instead of 4*4*64 inputs of fc1, and 5*5*32*2 fewer weights of conv1
        ("cifar10_quick", (28, 28, 1), 10, 145_578 - (1024 - 576) * 64 - 5 * 5 * 2 * 32),
        # 3x3 convolutions without bias 3*16 + 6*16*16 + 16*32 + 5*32*32 + 32*64 + 5*64*64 taps (* 9), a scale and
        # shift for each of the 7*16 + 6*32 + 6*64 channels, 64*10+10; option A shortcuts have no parameters
        ("resnet20", _CIFAR, 10, 269_722),
        # VGG-16's convolutions 14,710,464 without bias, batch normalisation 2*4,224, 512*10+10
        ("vgg16_cifar", _CIFAR, 10, 14_724_042),
        # CaffeNet with two groups in conv2, conv4, conv5
        ("alexnet", (227, 227, 3), 1000, 60_965_224),
        ("alexnet", (224, 224, 3), 1000, 60_965_224),
        ("mlp", (20,), 1, 20 * 128 + 128 + 128 * 64 + 64 + 64 + 1),
        ("mlp", (4, 5, 1), 1, 20 * 128 + 128 + 128 * 64 + 64 + 64 + 1),
        # 3*3*16+16 + 3*3*16*32+32 + 4*4*32*64+64 + 64*10+10
        ("small_cnn", (8, 8, 1), 10, 160 + 4_640 + 32_832 + 650),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, ...], classes: int, elements: int) -> None:
    layout = build_model(name, shape, classes).layout
    assert layout.elements == elements
    assert len({layer.name for layer in layout.layers}) == len(layout.layers)


@pytest.mark.parametrize("name", sorted(TABLES.keys() & MODELS.keys()))
def test_a_model_has_the_shapes_of_its_table(name: str) -> None:
    layers = build_model(name, *usual_input(name)).layout.layers
    seen = [[tensor.shape for tensor in layer.tensors] for layer in layers]
    assert seen == [[tensor.shape for tensor in layer.tensors] for layer in TABLES[name].layers]


def test_alexnet_with_response_norms_has_alexnets_parameters() -> None:
    with_norms, without = (build_model(name, (227, 227, 3), 1000).layout for name in ("alexnet_lrn", "alexnet"))
    assert with_norms == without


def test_the_table_of_models_is_read_only() -> None:
    with pytest.raises(TypeError):
        MODELS["mine"] = MODELS["small_cnn"]  # type: ignore[index]


def _bound(name: str, shape: tuple[int, int, int]) -> tuple[Model, np.ndarray, np.ndarray]:
    model = build_model(name, shape, 10)
    parameters, gradients = (np.full(model.layout.elements, np.nan, np.float32) for _ in range(2))
    model.bind(parameters, gradients)
    model.initialize(0)
    return model, parameters, gradients


@pytest.mark.parametrize(("name", "shape"), [("vgg16_cifar", _CIFAR), ("cifar10_quick", (28, 28, 1))])
def test_one_step(name: str, shape: tuple[int, int, int]) -> None:
    model, _, gradients = _bound(name, shape)
    images = np.random.default_rng(0).standard_normal((2, *shape), dtype=np.float32)
    ready: list[int] = []
    logits = model.forward(images, StepContext(True, 0, 0, 0))
    loss, dlogits = softmax_cross_entropy(logits, np.array([1, 7]))
    model.backward(dlogits, ready.append)
    assert np.isfinite(loss)
    assert np.isfinite(gradients).all()
    assert ready == list(range(len(model.layout.layers)))


def test_small_cnn_learns_noisy_patterns() -> None:
    generator = np.random.default_rng(0)
    patterns = generator.random((10, 8, 8, 1), dtype=np.float32)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = generator.integers(0, 10, count)
        noise = generator.standard_normal((count, 8, 8, 1), dtype=np.float32)
        return patterns[labels] + np.float32(0.3) * noise, labels

    model, parameters, gradients = _bound("small_cnn", (8, 8, 1))
    velocity = np.zeros_like(parameters)
    for step in range(150):
        images, labels = draw(32)
        logits = model.forward(images, StepContext(True, 0, step, 0))
        model.backward(softmax_cross_entropy(logits, labels)[1])
        velocity = 0.9 * velocity + gradients
        parameters -= np.float32(0.02) * velocity
    images, labels = draw(500)
    logits = model.forward(images, StepContext(False, 0, 0, 0))
    assert np.mean(logits.argmax(axis=1) == labels) > 0.95


# All models on all data sets, with more steps: python -m benchmarks zoo
@pytest.mark.parametrize(
    ("name", "data", "steps"),
    [
        ("cifar10_quick", "synthetic:3x32x32:samples=48", 10),
        ("cifar10_quick", "digits", 30),
        ("resnet20", "digits", 12),
        ("mlp", "digits", 20),
    ],
)
def test_a_model_learns_by_its_own_defaults(name: str, data: str, steps: int) -> None:
    job = load_job(None, {"model": {"name": name}, "data": {"name": data}})
    dataset = load_dataset(job.data, job.model.name)
    model = build_model(name, dataset.input_shape, dataset.outputs)
    parameters, gradients = (np.zeros(model.layout.elements, np.float32) for _ in range(2))
    model.bind(parameters, gradients)
    model.initialize(1)
    optimizer = OptimizerShard(job.optimizer, parameters)
    batches = Batches(dataset, batch=12, workers=1, rank=0, seed=1)
    losses = []
    for step in range(1, steps + 1):
        losses.append(model.train(*batches.batch(step), StepContext(True, 1, step, 0), StepHooks()))
        optimizer.update(0, len(parameters), gradients, step)
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.02
