"""`taihu dev bench engine`: real contestants, small models, no PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Taihu

from taihu.cli.bench.engine import engine
from taihu.core.base.errors import ConfigError
from taihu.kernels.nn.peak import multiply_add_rate
from taihu.worker.bench.engine import EngineStep

_MODEL = """
from taihu.worker.engine import Conv2d, Flatten, Linear, MaxPool2d, ReLU, Sequential


def build(input_shape, classes):
    first = [Conv2d(4, 3, 2), ReLU(), Conv2d(6, 3, groups=2), MaxPool2d(4)]
    return Sequential([*first, Flatten(), Linear(classes)])
"""
# Multiplications and additions of an image: 15 x 15 and 13 x 13 positions, and 6 * 3 * 3 features to 10 logits.
_FORWARD = [2 * 15 * 15 * 27 * 4, 2 * 13 * 13 * 18 * 6, 2 * 54 * 10]


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(_MODEL)
    return f"{tmp_path / 'model.py'}:build"


def test_products_are_counted_by_hand(model: str) -> None:
    step = EngineStep(model, 5, 1)
    assert step.flops == 5 * (2 * _FORWARD[0] + 3 * _FORWARD[1] + 3 * _FORWARD[2])
    rows = {row.name: row for row in step.layer_times(2)}
    assert [row.flops for row in rows.values() if row.flops] == [10 * _FORWARD[0], 15 * _FORWARD[1], 15 * _FORWARD[2]]
    assert rows.keys() >= {"conv1", "relu1", "conv2", "pool1", "fc1"}
    assert all(rows[name].forward_seconds > 0 and rows[name].backward_seconds > 0 for name in ("conv1", "fc1"))


def test_steps_train(model: str) -> None:
    step = EngineStep(model, 5, 2)
    losses = [step.step() for _ in range(20)]
    assert losses[-1] < losses[0]
    other = EngineStep(model, 5, 1)
    assert losses == [other.step() for _ in range(20)]


def test_the_command_measures_every_row(taihu: Taihu, model: str, tmp_path: Path) -> None:
    file = tmp_path / "engine.json"
    rows = ("--model", model, "--threads", "1,2", "--batch", "3")
    done = taihu(
        "dev", "bench", "engine", *rows, "--rounds", "2", "--against", "none", "--layers", "--json", str(file)
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(file.read_text())
    assert results["flops_per_second"] > 0
    assert [(row["model"], row["threads"], row["batch"]) for row in results["rows"]] == [(model, 1, 3), (model, 2, 3)]
    for row in results["rows"]:
        assert 0 < row["seconds"]["min"] <= row["seconds"]["median"] <= row["seconds"]["max"]
        assert row["torch_seconds"] is None
        assert row["floor_seconds"] == pytest.approx(row["flops"] / results["flops_per_second"] / row["threads"])
        assert [layer["name"] for layer in row["layers"]] == ["conv1", "relu1", "conv2", "pool1", "flatten1", "fc1"]
    assert "1 thread: " in done.stdout
    assert "2 threads: " in done.stdout


def test_an_unknown_model_is_told_in_one_line(taihu: Taihu) -> None:
    done = taihu("dev", "bench", "engine", "--model", "resnet21", "--against", "none")
    assert done.returncode == 2
    assert "did you mean resnet20?" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("threads", ["", "0", "1,x", "-1"])
def test_threads_are_numbers(threads: str) -> None:
    with pytest.raises(ConfigError, match="expected numbers of at least 1"):
        engine(threads=threads, against="none")


def test_the_rate_is_one_that_a_processor_can_have() -> None:
    assert 1e8 < multiply_add_rate(rounds=1) < 1e13
