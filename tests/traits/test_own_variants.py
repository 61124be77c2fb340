"""Variants that an installed package brings, each in one file: `own/`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from support.commands import PATIENCE_S

from taihu.core.base.errors import ConfigError
from taihu.core.compression import Compressor, Unit
from taihu.core.job import Job, load_job
from taihu.core.job.environment import without_settings
from taihu.core.optimization import OptimizerShard
from taihu.core.settings import OptimizerSettings

pytestmark = pytest.mark.xdist_group("own_variants")

OWN: Final = Path(__file__).with_name("own")
POINTS: Final = """\
[taihu.methods]
random-k = random_k:METHOD
wrong = lion:OPTIMIZER
[taihu.optimizers]
lion = lion:OPTIMIZER
[taihu.stages]
between = stage:STAGE
"""
SPARSE: Final = ("--compression", "random-k", "--density", "0.1", "--optimizer", "lion")
STAGE: Final = ("--precision", "bf16", "--zero", "4")
Taihu = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the package is installed into."""
    folder = tmp_path_factory.mktemp("installed")
    for file in OWN.glob("*.py"):
        (folder / file.name).write_text(file.read_text())
    metadata = folder / "own-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(POINTS)
    return folder


@pytest.fixture
def taihu(package: Path, tmp_path: Path) -> Taihu:
    """The command where the package is installed."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "taihu", *arguments],
            env={**without_settings(os.environ), "PYTHONPATH": str(package)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    return run


def train(taihu: Taihu, folder: Path, name: str, *flags: str) -> str:
    """The hash of the parameters of a run whose plan is computed, and which keeps a checkpoint on its way."""
    common = ("--workers", "2", "--steps", "12", "--batch", "8", "--model", "mlp")
    planned = ("--set", "exchange.calibration_steps=4", "--set", "checkpoint.every_steps=6")
    own = ("--run-dir", f"runs/{name}", "--json", f"{name}.json")
    done = taihu("train", *common, *planned, *own, *flags)
    assert done.returncode == 0, done.stderr
    return str(json.loads((folder / f"{name}.json").read_text())["parameters_sha256"])


def resumed(taihu: Taihu, folder: Path, *flags: str) -> str:
    """The hash of a run that goes on from the middle of `whole`."""
    [half] = (folder / "runs" / "whole").rglob("step-000006")
    return train(taihu, folder, "resumed", *flags, "--resume", str(half))


def test_a_job_trains_plans_and_goes_on_with_a_method_and_an_optimizer(taihu: Taihu, tmp_path: Path) -> None:
    whole = train(taihu, tmp_path, "whole", *SPARSE)
    assert resumed(taihu, tmp_path, *SPARSE) == whole
    planned = taihu("plan", "step", "whole.json")
    assert planned.returncode == 0, planned.stderr
    assert "random-k, density 0.1" in planned.stdout


def test_a_job_trains_and_goes_on_with_a_stage(taihu: Taihu, tmp_path: Path) -> None:
    """Parameters that are fetched a second time are those that stage 2 keeps."""
    whole = train(taihu, tmp_path, "whole", *STAGE)
    assert resumed(taihu, tmp_path, *STAGE) == whole
    assert train(taihu, tmp_path, "kept", *STAGE, "--zero", "2") == whole


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        ("compression", {"method": "random"}, "entry point wrong of taihu.methods: expected a Method, got Optimizer"),
        ("exchange", {"zero": 5}, "exchange.zero: expected an integer from 0 to 3, got 5"),
        ("exchange", {"zero": "between"}, "exchange.zero: expected an integer from 0 to 3, got 'between'"),
    ],
)
def test_a_variant_that_nobody_brings_is_told_in_one_line(
    package: Path, monkeypatch: pytest.MonkeyPatch, section: str, values: dict[str, object], words: str
) -> None:
    monkeypatch.syspath_prepend(str(package))
    with pytest.raises(ConfigError) as caught:
        load_job(None, {section: values})
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files can be imported by their names, as those of an installed package."""
    monkeypatch.syspath_prepend(str(OWN))


@pytest.mark.usefixtures("on_path")
def test_random_k_sends_its_share_and_holds_the_rest_back() -> None:
    rng = np.random.default_rng(3)
    units = (Unit(0, 40, 0), Unit(40, 47, 0), Unit(47, 100, 1))
    compressor = Compressor(import_module("random_k").METHOD, 0.1)
    state, total, sent = compressor.init(100, units), np.zeros(100), np.zeros(100)
    indices, values = np.empty(100, dtype=np.int32), np.empty(100, dtype=np.float32)
    seen = set()
    for step in range(1, 30):
        gradient = rng.integers(-8, 8, 100).astype(np.float32)  # whole numbers: sums are exact
        total += gradient
        for own in (range(2), range(2, 3)):
            outcome = compressor.update(
                state, own, step, gradient=gradient, parameters=gradient, indices=indices, values=values
            )
            count = int(outcome.selected.sum())
            assert list(outcome.selected) == [{40: 4, 7: 1, 53: 6}[unit.elements] for unit in outcome.units]
            assert list(indices[:count]) == sorted(set(indices[:count].tolist()))
            sent[indices[:count]] += values[:count]
            seen |= set(indices[:count].tolist())
    np.testing.assert_array_equal(sent + state.residual, total)
    assert len(seen) > 80


@pytest.mark.usefixtures("on_path")
def test_lion_moves_by_signs() -> None:
    """The algorithm in fp64, with numbers far from where a sign changes."""
    rng = np.random.default_rng(4)
    lion = import_module("lion").OPTIMIZER
    settings = OptimizerSettings(name=lion, learning_rate=0.01, beta1=0.9, beta2=0.99, weight_decay=0.1)
    start = rng.normal(size=50).astype(np.float32)
    parameters, expected, average = start.copy(), start.astype(np.float64), np.zeros(50)
    shard = OptimizerShard(settings, parameters)
    assert list(shard.state()) == ["exp_avg"]
    for step in range(1, 8):
        gradient = rng.normal(size=50).astype(np.float32)
        shard.update(0, 50, gradient, step, scale=0.5)
        expected -= 0.01 * (np.sign(0.9 * average + 0.1 * gradient * 0.5) + 0.1 * expected)
        average = 0.99 * average + 0.01 * gradient * 0.5
    np.testing.assert_allclose(parameters, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("on_path")
def test_a_job_takes_a_variant_itself_and_writes_its_key() -> None:
    method = import_module("random_k").METHOD
    job = Job.model_validate({"compression": {"method": method}})
    assert job.compression.method is method
    assert re.search('"method":"random-k"', job.model_dump_json())


def test_the_page_on_methods_of_ones_own_shows_this_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "own_methods.md").read_text()
    assert f"```python\n{(OWN / 'random_k.py').read_text()}```\n" in page
