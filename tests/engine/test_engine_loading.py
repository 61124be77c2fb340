"""Models by name and from the user's own file."""

from pathlib import Path

import numpy as np
import pytest

from taihu.core.base.errors import ModelError
from taihu.worker.engine import StepContext, build_model

_GOOD = """
from dataclasses import dataclass
from taihu.worker.engine import Flatten, Linear, ReLU, Sequential

@dataclass
class Sizes:
    hidden: int = 7

def build(input_shape, classes):
    return Sequential([Flatten(), Linear(Sizes().hidden), ReLU(), Linear(classes)])

def not_a_layer(input_shape, classes):
    return [Flatten(), Linear(classes)]

def fails(input_shape, classes):
    raise RuntimeError("no such\\n  width")

def refuses(input_shape, classes):
    return Sequential([])

def leaf(input_shape, classes):
    return Flatten()

answer = 42
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my:model.py"
    path.write_text(_GOOD)
    return path


def test_a_function_in_a_file_builds_a_model(file: Path) -> None:
    model = build_model(f"{file}:build", (2, 2, 1), 3)
    assert model.layout.elements == 4 * 7 + 7 + 7 * 3 + 3
    parameters = np.zeros(model.layout.elements, np.float32)
    model.bind(parameters, np.zeros_like(parameters))
    model.initialize(0)
    logits = model.forward(np.ones((2, 2, 2, 1), np.float32), StepContext(True, 0, 0, 0))
    assert logits.shape == (2, 3)
    assert build_model(f"{file}:leaf", (2, 2, 1), 4).layout.layers == ()


def test_the_file_is_read_again_for_every_model(file: Path) -> None:
    build_model(f"{file}:build", (2, 2, 1), 3)
    file.write_text(_GOOD.replace("hidden: int = 7", "hidden: int = 1234"))
    assert build_model(f"{file}:build", (2, 2, 1), 3).layout.elements == 4 * 1234 + 1234 + 1234 * 3 + 3


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ModelError) as caught:
        build_model("resnet-20", (32, 32, 3), 10)
    assert str(caught.value) == (
        "unknown model resnet-20; did you mean resnet20? known are small_cnn, cifar10_quick, resnet20, vgg16_cifar, "
        "alexnet, alexnet_lrn, vgg16, googlenet, resnet50, mlp, small_gpt, or give path/to/file.py:function or a "
        "network of Caffe, path/to/net.prototxt"
    )
    with pytest.raises(ModelError, match="unknown model zzz; known are small_cnn"):
        build_model("zzz", (32, 32, 3), 10)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("biuld", "has no function 'biuld' (it has: Sizes, build, not_a_layer, fails, refuses, leaf); give "),
        ("answer", "has no function 'answer'"),
        ("not_a_layer", "expected a Layer, seen list; return Sequential([...])"),
        ("fails", "my:model.py line 16: RuntimeError: no such width"),
        ("refuses", "Sequential: expected at least one layer"),
        ("leaf", "model: expected an output of (3,) for 3 classes or values, seen (4,)"),
    ],
)
def test_every_mistake_in_a_file_has_its_line(file: Path, function: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        build_model(f"{file}:{function}", (2, 2, 1), 3)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.py does not exist; give path/to/file\.py:function"):
        build_model(f"{tmp_path / 'none.py'}:build", (2, 2, 1), 3)
    broken = tmp_path / "broken.py"
    broken.write_text("def build(:\n")
    with pytest.raises(ModelError, match=r"broken\.py line 1: SyntaxError: "):
        build_model(f"{broken}:build", (2, 2, 1), 3)
    broken.write_text("import no_such_package\n")
    with pytest.raises(
        ModelError, match=r"broken\.py line 1: ModuleNotFoundError: No module named 'no_such_package'"
    ):
        build_model(f"{broken}:build", (2, 2, 1), 3)
    text = tmp_path / "model.txt"
    text.write_text(_GOOD)
    with pytest.raises(ModelError, match=r"model\.txt is not a Python file"):
        build_model(f"{text}:build", (2, 2, 1), 3)
