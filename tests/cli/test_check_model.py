"""`taihu check-model`: a table of layers, and a line for each that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taihu.cli.main import make_app
from taihu.core.process.entry import run_app

_RIGHT = """
from taihu.worker.engine import Conv2d, Flatten, Linear, ReLU, Sequential

def build(input_shape, outputs):
    return Sequential([Conv2d(2, 3), ReLU(), Flatten(), Linear(outputs)])

def table(input_shape, outputs):
    return Linear(outputs)
"""
_WRONG = """
import numpy as np
from taihu.worker.engine import Flatten, Layer, Linear, Sequential

class Half(Layer):
    def build(self, name, input_shape):
        self.name = name
        return input_shape

    def forward(self, x, run):
        return x / 2

    def backward(self, dy, run):
        return dy

class Broken(Half):
    def forward(self, x, run):
        return x @ np.zeros((3, 3))

def build(input_shape, outputs):
    return Sequential([Flatten(), Half(), Linear(outputs), Broken()])
"""


def check_model(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        run_app(make_app(), ["check-model", *arguments])
    written = capsys.readouterr()
    return int(str(ended.value.code)), written.out, written.err


def test_a_right_model_is_a_plain_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, result = tmp_path / "mine.py", tmp_path / "result.json"
    file.write_text(_RIGHT)
    arguments = ("--input-shape", "1x5x4", "--outputs", "3", "--json", str(result))
    code, out, err = check_model(capsys, f"{file}:build", *arguments)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "layer  kind  output  parameters  gradients",
        "conv1  conv  3x2x2  20  ok",
        "relu1  relu  3x2x2  0  ok",
        "flatten1  flatten  12  0  ok",
        "fc1  fc  3  39  ok",
        f"model {file}:build: 4 layers, 59 parameters, inputs (5, 4, 1), outputs (3,)",
        "all gradients agree with central differences",
    ]
    written = json.loads(result.read_text())
    assert (written["parameters"], written["faults"]) == (59, [])
    assert written["layers"][0]["output_shape"] == [3, 2, 2]


def test_rows_of_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(_RIGHT)
    code, out, _ = check_model(capsys, f"{tmp_path}/mine.py:table", "--input-shape", "4", "--outputs", "1")
    assert code == 0
    assert "fc1  fc  1  5  ok" in out


def test_every_wrong_layer_has_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(_WRONG)
    code, out, err = check_model(capsys, f"{file}:build", "--input-shape", "6", "--outputs", "2")
    assert code == 1
    assert "half1  half  6  0  wrong" in out
    assert "fc1  fc  2  14  ok" in out
    second, first = err.splitlines()
    assert first.startswith("error: half1: gradient of the input[")
    assert "by central differences, seen" in first
    assert first.endswith("(2 faults in all)")
    assert second.startswith(f"fault: broken1: {file} line 18: ValueError: matmul")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["small_cnn", "--input-shape", "3x8"],
            "--input-shape 3x8: expected channels, height and width, for example",
        ),
        (["small_cnn", "--input-shape", "20"], "model small_cnn: expected images of (height, width, channels), the"),
        (["alexnet"], "model alexnet: expected images of at least 55 x 55 pixels, seen 32 x 32; set data.resize"),
        (["resnet21"], "unknown model resnet21; did you mean resnet20?"),
        (["none.py:build"], "model file none.py does not exist"),
    ],
)
def test_what_cannot_be_checked_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = check_model(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert len(err.splitlines()) == 1
