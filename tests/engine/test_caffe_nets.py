"""Networks of Caffe's text form become the layers that the zoo has of the same networks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import caffe_nets
from support.commands import run_command

from taihu.core.base.errors import ModelError
from taihu.core.model.caffe_net import notes_on_model
from taihu.worker.engine import build_model
from taihu.worker.engine.models.loading import build_layers
from taihu.worker.engine.models.zoo import MODELS

INITIAL = ("gain", "deviation", "bias_value")
NETS = {
    "cifar10_quick": (caffe_nets.cifar10_quick(), (32, 32, 3), 10),
    "alexnet_lrn": (caffe_nets.alexnet(), (227, 227, 3), 1000),
    "googlenet": (caffe_nets.googlenet(), (224, 224, 3), 1000),
}


def saved(folder: Path, text: str) -> str:
    path = folder / "net.prototxt"
    path.write_text(text)
    return str(path)


def flat(definition: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, object]]]:
    """The leaves of a definition in forward order, without initial values; of containers their kind."""
    own = {key: value for key, value in definition.items() if key not in (*INITIAL, "layer", "layers", "branches")}
    if definition["layer"] == "Auxiliary":
        yield "Auxiliary", {"weight": definition["weight"]}
        yield from flat(definition["head"])
    elif definition["layer"] in ("Sequential", "Concat"):
        if definition["layer"] == "Concat":
            yield "Concat", {}
        for each in definition.get("layers") or definition.get("branches") or ():
            yield from flat(each)
    else:
        yield definition["layer"], own


@pytest.mark.parametrize("name", NETS)
def test_the_papers_networks_are_those_of_the_zoo(tmp_path: Path, name: str) -> None:
    text, shape, outputs = NETS[name]
    file = saved(tmp_path, text)
    own, zoo = build_layers(file, shape, outputs).definition(), MODELS[name](shape, outputs).definition()
    assert own is not None
    assert zoo is not None
    ours, theirs = list(flat(own)), list(flat(zoo))
    if name == "googlenet":  # The mean of 7 x 7 values is that of all, and (1, 1, C) is flattened.
        kinds = [kind for kind, _ in ours]
        place = len(kinds) - 1 - kinds[::-1].index("AvgPool2d")
        assert kinds[place : place + 4] == ["AvgPool2d", "Dropout", "Flatten", "Linear"]
        ours = [*ours[:place], ("GlobalAvgPool", {}), ours[place + 1], ours[place + 3]]
    assert [kind for kind, _ in ours] == [kind for kind, _ in theirs]
    for (kind, mine), (_, other) in zip(ours, theirs, strict=True):
        # Windows of stride 1 reach over no edge, nor do those of 5 x 5 by 3 on 14 x 14 values.
        is_even = mine.get("stride") == 1 or (mine.get("kernel"), mine.get("stride")) == (5, 3)
        keys = mine.keys() - ({"ceil_mode"} if is_even else set())
        assert {key: mine[key] for key in keys} == pytest.approx({key: other[key] for key in keys}), kind
    one, another = (build_model(each, shape, outputs) for each in (file, name))
    assert [layer.tensors for layer in one.layout.layers] == [layer.tensors for layer in another.layout.layers]


def test_weights_begin_as_its_fillers_say(tmp_path: Path) -> None:
    model = build_model(saved(tmp_path, caffe_nets.alexnet(7)), (227, 227, 3), 7)
    parameters = np.empty(model.layout.elements, dtype=np.float32)
    model.bind(parameters, np.empty_like(parameters))
    model.initialize(3)
    deviations = {"conv1": 0.01, "conv2": 0.01, "fc1": 0.005, "fc3": 0.01}
    biases = {"conv1": 0.0, "conv2": 0.1, "conv3": 0.0, "fc1": 0.1, "fc3": 0.0}
    for layer, start, stop in zip(model.layout.layers, model.layout.offsets, model.layout.offsets[1:], strict=False):
        weight, bias = np.split(parameters[start:stop], [layer.tensors[0].elements])
        if layer.name in deviations:
            assert weight.std() == pytest.approx(deviations[layer.name], rel=0.02), layer.name
        if layer.name in biases:
            assert set(bias.tolist()) == {float(np.float32(biases[layer.name]))}, layer.name


RESIDUAL = """
layer { name: "data" type: "Input" top: "data" }
layer { name: "stem" type: "Convolution" bottom: "data" top: "stem"
        convolution_param { num_output: 6 kernel_h: 3 kernel_w: 3 pad: 1 bias_term: false
                            weight_filler { type: "msra" } } }
layer { name: "bn" type: "BatchNorm" bottom: "stem" top: "stem" batch_norm_param { eps: 0.001 } }
layer { name: "sc" type: "Scale" bottom: "stem" top: "stem" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "stem" top: "stem" }
layer { name: "body" type: "Convolution" bottom: "stem" top: "body"
        convolution_param { num_output: 6 kernel_size: 3 pad: 1 } }
layer { name: "sum" type: "Eltwise" bottom: "stem" bottom: "body" top: "sum" }
layer { name: "pool" type: "Pooling" bottom: "sum" top: "pool" pooling_param { pool: AVE global_pooling: true } }
layer { name: "fc" type: "InnerProduct" bottom: "pool" top: "fc" inner_product_param { num_output: 4 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""


def test_sums_and_normalised_layers_are_one_here(tmp_path: Path) -> None:
    definition = build_layers(saved(tmp_path, RESIDUAL), (8, 8, 3), 4).definition()
    assert definition is not None
    kinds = [each["layer"] for each in definition["layers"]]
    assert kinds == ["Conv2d", "BatchNorm", "ReLU", "Residual", "GlobalAvgPool", "Linear"]
    assert definition["layers"][0] | {"bias": False, "padding": 1, "gain": 2.0} == definition["layers"][0]
    assert definition["layers"][1]["epsilon"] == 0.001
    assert definition["layers"][3]["shortcut"] is None
    assert [each["layer"] for each in definition["layers"][3]["body"]["layers"]] == ["Conv2d"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"Softmax"', '"Power"', "prob (Power): this engine has none of that type; it has BatchNorm, Concat"),
        ("num_output: 4", "num_output: 5", "fc (InnerProduct): it has 5 outputs, the data need 4"),
        ("kernel_w: 3", "kernel_w: 5", "stem (Convolution): expected the same kernel_size both ways, seen 3 and 5"),
        ('bottom: "stem" bottom: "body"', 'bottom: "no"', "sum (Eltwise): no layer before it makes 'no'"),
        ('type: "Scale"', 'type: "ReLU"', "bn (BatchNorm): expected a layer Scale behind it"),
        ('type: "BatchNorm"', 'type: "ReLU"', "sc (Scale): expected BatchNorm before it"),
        ("pool: AVE", "pool: MAX", "pool (Pooling): global_pooling is of AVE here, seen MAX"),
        ("kernel_size: 3", "kernel_size: 3 dilation: 2", "body (Convolution): dilation is not known here"),
        ('top: "sum" }', 'top: "sum" eltwise_param { operation: MAX } }', "sum (Eltwise): expected the sum of two"),
        ('{ type: "msra" }', '{ type: "bilinear" }', "weights of bilinear around something else than 0"),
        ('name: "prob"', 'name "prob"', "expected a network of Caffe as text"),
        ("layer {", "layers {", "upgrade_net_proto_text makes this one"),
        ('type: "Softmax" bottom: "fc"', 'type: "Silence" bottom: "fc"', "expected a loss at the end of all layers"),
        ('type: "Input" top', 'type: "ReLU" bottom: "no" top', "data (ReLU): no layer before it makes 'no'"),
        ('layer { name: "data"', 'input: "x" layer { name: "data"', "expected one layer of data in training, seen 2"),
    ],
)
def test_a_mistake_is_told_with_its_layer(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in RESIDUAL
    file = saved(tmp_path, RESIDUAL.replace(old, new))
    with pytest.raises(ModelError) as caught:
        build_model(file, (8, 8, 3), 4)
    told = str(caught.value)
    assert told.startswith(f"model {file}: ")
    assert words in told
    assert len(told.splitlines()) == 1


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    assert notes_on_model(saved(tmp_path, RESIDUAL)) == ()
    file = saved(tmp_path, caffe_nets.cifar10_quick())
    [line] = notes_on_model(file)
    assert line == f"{file}: 3 layers have lr_mult or decay_mult; all parameters have the rate of the job"
    assert notes_on_model("resnet20") == ()


def test_a_network_trains_by_the_command_that_users_type(tmp_path: Path) -> None:
    saved(tmp_path, caffe_nets.cifar10_quick())
    flags = ("--model", "net.prototxt", "--data", "synthetic:3x32x32", "--steps", "4", "--workers", "2")
    done = run_command("taihu", "train", *flags, "--save", "model.safetensors", "--json", "a.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "a.json").read_text())["steps"] == 4
    assert "3 layers have lr_mult or decay_mult" in done.stderr
    tested = run_command("taihu", "evaluate", "model.safetensors", "--data", "synthetic:3x32x32", folder=tmp_path)
    assert tested.returncode == 0, tested.stderr
    missing = run_command("taihu", "train", "--model", "no.prototxt", folder=tmp_path)
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "model file no.prototxt does not exist" in missing.stderr
