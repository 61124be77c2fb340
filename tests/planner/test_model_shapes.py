"""Layer tables against the published parameter counts and against sums worked out another way."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest

from taihu.core.base.errors import ConfigError
from taihu.core.model.layout import Layout
from taihu.core.planner.model_shapes import TABLES, layer_table


@pytest.mark.parametrize(
    ("name", "parameters", "layers"),
    [
        ("alexnet", 60_965_224, 8),
        ("vgg16", 138_357_544, 16),
        ("googlenet", 13_378_280, 3 + 9 * 6 + 1 + 2 * 3),
        ("resnet20", 269_722, 19 * 2 + 1),
        ("resnet50", 25_557_032, 53 * 2 + 1),
        ("cifar10_quick", 145_578, 5),
        ("vgg16_cifar", 14_724_042, 13 * 2 + 1),
    ],
)
def test_published_counts(name: str, parameters: int, layers: int) -> None:
    table = layer_table(name)
    assert table.elements == parameters
    assert len(table.layers) == layers


def test_every_table_is_checked() -> None:
    assert len(TABLES) == 7


@pytest.mark.parametrize("name", TABLES)
def test_layers_are_well_formed(name: str) -> None:
    table = TABLES[name]
    names = [layer.name for layer in table.layers]
    assert len(set(names)) == len(names)
    for layer in table.layers:
        weight, *rest = layer.tensors
        assert weight.name == "weight"
        assert len(weight.shape) in (1, 2, 4)
        assert all(size > 0 for size in weight.shape)
        assert [(bias.name, bias.shape) for bias in rest] in ([], [("bias", weight.shape[-1:])])
        assert rest or len(weight.shape) == 4


@pytest.mark.parametrize("name", TABLES)
def test_backward_order(name: str) -> None:
    """The classifier comes first, the convolution of the 3-channel (RGB) image last."""
    layers = TABLES[name].layers
    assert len(layers[0].tensors[0].shape) == 2
    convolutions = [layer for layer in layers if len(layer.tensors[0].shape) == 4]
    assert convolutions[-1].tensors[0].shape[2] == 3
    assert all(layer.tensors[0].shape[2] > 3 for layer in convolutions[:-1])


@pytest.mark.parametrize("name", ["resnet20", "resnet50", "vgg16_cifar"])
def test_a_batch_norm_fits_its_convolution(name: str) -> None:
    forward = TABLES[name].layers[::-1]
    pairs = list(zip(forward[:-1:2], forward[1::2], strict=True))
    for convolution, norm in pairs:
        (weight,) = convolution.tensors
        assert [tensor.shape for tensor in norm.tensors] == [(weight.shape[3],)] * 2
        assert norm.name == f"{convolution.name}_bn"


def weights(table: Layout) -> int:
    """Values of convolutions and fully connected layers without biases."""
    return sum(t.elements for layer in table.layers for t in layer.tensors if len(t.shape) > 1)


def vectors(table: Layout) -> int:
    """Values of biases, scales and shifts."""
    return table.elements - weights(table)


def test_alexnet_by_layer() -> None:
    sizes = {layer.name: layer.elements for layer in TABLES["alexnet"].layers}
    assert sizes == {
        "fc8": 4_097_000,
        "fc7": 16_781_312,
        "fc6": 37_752_832,
        "conv5": 442_624,
        "conv4": 663_936,
        "conv3": 885_120,
        "conv2": 307_456,
        "conv1": 34_944,
    }


def test_vgg16_by_its_convolutions() -> None:
    convolutions = 14_710_464  # weights, the same with and without batch norm
    channels = 2 * 64 + 2 * 128 + 3 * 256 + 6 * 512
    assert weights(TABLES["vgg16_cifar"]) == convolutions + 512 * 10
    assert vectors(TABLES["vgg16_cifar"]) == 2 * channels + 10
    assert weights(TABLES["vgg16"]) == convolutions + 25_088 * 4096 + 4096 * 4096 + 4096 * 1000
    assert vectors(TABLES["vgg16"]) == channels + 4096 + 4096 + 1000


def test_resnet20_by_stage() -> None:
    stages = sum(9 * (6 * width * width) for width in (16, 32, 64)) - 9 * (32 * 16 + 64 * 32)
    assert weights(TABLES["resnet20"]) == 27 * 16 + stages + 64 * 10
    assert vectors(TABLES["resnet20"]) == 2 * (16 + 6 * (16 + 32 + 64)) + 10


def test_resnet50_by_stage() -> None:
    stages = 0
    channels = 64
    for width, blocks, inputs in ((64, 3, 64), (128, 4, 256), (256, 6, 512), (512, 3, 1024)):
        body = 9 * width**2 + 4 * width**2
        stages += blocks * body + width * inputs + (blocks - 1) * 4 * width**2 + inputs * 4 * width
        channels += blocks * 6 * width + 4 * width
    assert weights(TABLES["resnet50"]) == 147 * 64 + stages + 2048 * 1000
    assert vectors(TABLES["resnet50"]) == 2 * channels + 1000


def test_googlenet_by_the_papers_rows() -> None:
    """Table 1 of the paper prints each module's output channels and its millions of multiplications.

    The multiplications are the weights times the positions. The 54 printed for 5a (51 by its own filters) is the
    one row that does not fit, so it is left out.
    """
    layers = {layer.name: layer.tensors[0] for layer in TABLES["googlenet"].layers}
    operations = {"3a": 128, "3b": 304, "4a": 73, "4b": 88, "4c": 100, "4d": 119, "4e": 170, "5b": 71}
    for module, millions in operations.items():
        positions = {"3": 28, "4": 14, "5": 7}[module[0]] ** 2
        ours = sum(weight.elements for name, weight in layers.items() if name.startswith(f"inception_{module}_"))
        assert math.isclose(ours * positions / 1e6, millions, rel_tol=0.01)
    outputs = [256, 480, 512, 512, 512, 528, 832, 832, 1024]
    kinds = ("1x1", "3x3", "5x5", "pool_projection")
    modules = ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b")
    assert [sum(layers[f"inception_{m}_{k}"].shape[3] for k in kinds) for m in modules] == outputs
    assert [layers[f"inception_{m}_1x1"].shape[2] for m in modules] == [192, *outputs[:-1]]


def test_googlenet_has_a_bias_for_every_output_channel() -> None:
    outputs = 256 + 480 + 512 + 512 + 512 + 528 + 832 + 832 + 1024
    reductions = 112 + 160 + 112 + 136 + 152 + 176 + 192 + 192 + 240
    auxiliary = 2 * (128 + 1024 + 1000)
    assert vectors(TABLES["googlenet"]) == 64 + 64 + 192 + outputs + reductions + auxiliary + 1000


def test_googlenet_with_and_without_its_auxiliary_classifiers() -> None:
    """53.5 MB in 128 blobs with them, 28.0 MB without; each has a convolution and two fully connected layers."""
    table = TABLES["googlenet"]
    sizes = {layer.name: layer.elements for layer in table.layers if layer.name.startswith("auxiliary_")}
    assert sizes == {
        "auxiliary_4d_fc2": 1024 * 1000 + 1000,
        "auxiliary_4d_fc1": 4 * 4 * 128 * 1024 + 1024,
        "auxiliary_4d_1x1": 528 * 128 + 128,
        "auxiliary_4a_fc2": 1024 * 1000 + 1000,
        "auxiliary_4a_fc1": 4 * 4 * 128 * 1024 + 1024,
        "auxiliary_4a_1x1": 512 * 128 + 128,
    }
    assert table.elements - sum(sizes.values()) == 6_998_552
    assert len(table.by_tensor().layers) == 128


def test_the_mapping_is_read_only() -> None:
    with pytest.raises(TypeError):
        cast(dict[str, Any], TABLES)["mine"] = Layout(())


@pytest.mark.parametrize(("name", "near"), [("resnet-50", "resnet50"), ("VGG16", "vgg16"), ("alexent", "alexnet")])
def test_the_nearest_name_is_suggested(name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=rf"^unknown layer table '{name}': did you mean {near}\?; known: alexnet,"):
        layer_table(name)


def test_a_name_near_to_nothing_lists_the_names() -> None:
    with pytest.raises(ConfigError, match=r"^unknown layer table 'qqqq'; known: alexnet, vgg16,"):
        layer_table("qqqq")
