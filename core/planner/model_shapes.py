"""The exact parameter shapes of well-known models, for benches and planning (docs/methods.md section 7).

Every convolution, fully connected layer and batch norm is a layer of its own. Weights of convolutions are
(KH, KW, C / groups, F), of fully connected layers (K, N); biases, scales and shifts are (F,) or (N,). Convolutions
that a batch norm follows have no bias: the norm's shift takes its place.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from taihu.core.base.errors import ConfigError
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec

# Szegedy et al., Going Deeper with Convolutions, table 1: the filters of 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5
# and pool projection. The two reduce convolutions feed 3x3 and 5x5; the other four make up a module's output.
_INCEPTION = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
# Section 5 there: the modules behind which an auxiliary classifier stands in training.
_CLASSIFIED = ("4a", "4d")
# Simonyan and Zisserman, table 1, configuration D: the filters of the 3x3 convolutions between two poolings.
_VGG16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def layer_table(name: str) -> Layout:
    """Return the layout of model `name`, in backward order; see `TABLES` for the names.

    Raises:
        ConfigError: there is no such table; the nearest name is suggested.
    """
    if name in TABLES:
        return TABLES[name]
    near = difflib.get_close_matches(name.lower(), TABLES, n=1, cutoff=0.5)
    suggestion = f": did you mean {near[0]}?" if near else ""
    raise ConfigError(f"unknown layer table {name!r}{suggestion}; known: {', '.join(TABLES)}")


def _conv(name: str, kernel: int, inputs: int, filters: int, *, groups: int = 1, bias: bool = True) -> LayerSpec:
    weight = TensorSpec("weight", (kernel, kernel, inputs // groups, filters))
    return LayerSpec(name, (weight, TensorSpec("bias", (filters,))) if bias else (weight,))


def _fc(name: str, inputs: int, outputs: int) -> LayerSpec:
    return LayerSpec(name, (TensorSpec("weight", (inputs, outputs)), TensorSpec("bias", (outputs,))))


def _conv_bn(name: str, kernel: int, inputs: int, filters: int) -> Iterator[LayerSpec]:
    yield _conv(name, kernel, inputs, filters, bias=False)
    yield LayerSpec(f"{name}_bn", (TensorSpec("weight", (filters,)), TensorSpec("bias", (filters,))))


def _alexnet() -> Iterator[LayerSpec]:
    """AlexNet with the two groups of its two GPUs, as in CaffeNet; 227x227 images."""
    yield _conv("conv1", 11, 3, 96)
    yield _conv("conv2", 5, 96, 256, groups=2)
    yield _conv("conv3", 3, 256, 384)
    yield _conv("conv4", 3, 384, 384, groups=2)
    yield _conv("conv5", 3, 384, 256, groups=2)
    yield _fc("fc6", 6 * 6 * 256, 4096)
    yield _fc("fc7", 4096, 4096)
    yield _fc("fc8", 4096, 1000)


def _vgg16_convolutions() -> Iterator[tuple[str, int, int]]:
    """Name, input channels and filters of the convolutions of VGG-16."""
    inputs = 3
    for stage, filters in enumerate(_VGG16, start=1):
        for number, outputs in enumerate(filters, start=1):
            yield f"conv{stage}_{number}", inputs, outputs
            inputs = outputs


def _vgg16() -> Iterator[LayerSpec]:
    """VGG-16 (configuration D) for 224x224 images."""
    for name, inputs, filters in _vgg16_convolutions():
        yield _conv(name, 3, inputs, filters)
    yield _fc("fc6", 7 * 7 * 512, 4096)
    yield _fc("fc7", 4096, 4096)
    yield _fc("fc8", 4096, 1000)


def _vgg16_cifar() -> Iterator[LayerSpec]:
    """VGG-16's convolutions with batch norm, and one fully connected layer, for 32x32 images."""
    for name, inputs, filters in _vgg16_convolutions():
        yield from _conv_bn(name, 3, inputs, filters)
    yield _fc("fc", 512, 10)


def _googlenet() -> Iterator[LayerSpec]:
    """GoogLeNet (Inception v1) with its two auxiliary classifiers and with biases, for 224x224 images."""
    yield _conv("conv1", 7, 3, 64)
    yield _conv("conv2_reduce", 1, 64, 64)
    yield _conv("conv2", 3, 64, 192)
    inputs = 192
    for module, (one, reduce3, three, reduce5, five, projection) in _INCEPTION.items():
        yield _conv(f"inception_{module}_1x1", 1, inputs, one)
        yield _conv(f"inception_{module}_3x3_reduce", 1, inputs, reduce3)
        yield _conv(f"inception_{module}_3x3", 3, reduce3, three)
        yield _conv(f"inception_{module}_5x5_reduce", 1, inputs, reduce5)
        yield _conv(f"inception_{module}_5x5", 5, reduce5, five)
        yield _conv(f"inception_{module}_pool_projection", 1, inputs, projection)
        inputs = one + three + five + projection
        if module in _CLASSIFIED:
            yield _conv(f"auxiliary_{module}_1x1", 1, inputs, 128)
            yield _fc(f"auxiliary_{module}_fc1", 4 * 4 * 128, 1024)
            yield _fc(f"auxiliary_{module}_fc2", 1024, 1000)
    yield _fc("fc", inputs, 1000)


def _resnet20() -> Iterator[LayerSpec]:
    """ResNet-20 for CIFAR-10 (He et al., section 4.2); its shortcuts (option A) have no parameters."""
    yield from _conv_bn("conv1", 3, 3, 16)
    inputs = 16
    for stage, filters in enumerate((16, 32, 64), start=1):
        for block in range(1, 4):
            yield from _conv_bn(f"stage{stage}_block{block}_conv1", 3, inputs, filters)
            yield from _conv_bn(f"stage{stage}_block{block}_conv2", 3, filters, filters)
            inputs = filters
    yield _fc("fc", 64, 10)


def _resnet50() -> Iterator[LayerSpec]:
    """ResNet-50 (He et al., table 1) with projections where a stage begins (option B); 224x224 images."""
    yield from _conv_bn("conv1", 7, 3, 64)
    inputs = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
        for block in range(1, blocks + 1):
            name = f"stage{stage}_block{block}"
            yield from _conv_bn(f"{name}_conv1", 1, inputs, width)
            yield from _conv_bn(f"{name}_conv2", 3, width, width)
            yield from _conv_bn(f"{name}_conv3", 1, width, 4 * width)
            if block == 1:
                yield from _conv_bn(f"{name}_projection", 1, inputs, 4 * width)
            inputs = 4 * width
    yield _fc("fc", 2048, 1000)


def _cifar10_quick() -> Iterator[LayerSpec]:
    """Caffe's CIFAR10_quick for 32x32 images."""
    yield _conv("conv1", 5, 3, 32)
    yield _conv("conv2", 5, 32, 32)
    yield _conv("conv3", 5, 32, 64)
    yield _fc("fc1", 4 * 4 * 64, 64)
    yield _fc("fc2", 64, 10)


def _backward(layers: Iterable[LayerSpec]) -> Layout:
    return Layout(tuple(layers)[::-1])


TABLES: Final[Mapping[str, Layout]] = MappingProxyType(
    {
        "alexnet": _backward(_alexnet()),
        "vgg16": _backward(_vgg16()),
        "googlenet": _backward(_googlenet()),
        "resnet20": _backward(_resnet20()),
        "resnet50": _backward(_resnet50()),
        "cifar10_quick": _backward(_cifar10_quick()),
        "vgg16_cifar": _backward(_vgg16_cifar()),
    }
)
"""Layouts by model name: parameters 60,965,224; 138,357,544; 13,378,280; 269,722; 25,557,032; 145,578; 14,724,042."""
