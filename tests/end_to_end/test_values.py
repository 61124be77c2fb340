"""A run whose targets are values: what is minimised, shown and kept is about values, and nothing about classes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Taihu = Callable[..., subprocess.CompletedProcess[str]]


def test_rows_with_values_are_learned_and_tested_by_their_deviations(taihu: Taihu, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 6)).astype(np.float32)
    y = (2 * x[:, 0] + np.abs(x[:, 1])).astype(np.float32)
    np.savez(tmp_path / "values.npz", x_train=x[:480], y_train=y[:480], x_test=x[480:], y_test=y[480:])
    small = ("--servers", "1", "--workers", "2", "--epochs", "3", "--json", "r.json", "--save", "m.safetensors")
    done = taihu("train", "--data", "values.npz", "--model", "mlp", *small)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "r.json").read_text())
    scores = results["test_metrics"]
    assert (results["test_accuracy"], list(scores)) == (None, ["rmse", "mae", "r2"])
    assert results["evaluations"][-1]["test_metrics"] == scores
    # without noise: most of the variance, 4 + 1 - 2 / pi, is explained
    assert scores["r2"] > 0.6
    assert results["evaluations"][-1]["test_loss"] == pytest.approx(scores["rmse"] ** 2, rel=1e-5)
    assert f"test rmse       {scores['rmse']:.4g}" in done.stdout
    evaluated = taihu("evaluate", "m.safetensors", "--data", "values.npz", "--json", "e.json")
    assert evaluated.returncode == 0, evaluated.stderr
    # A BLAS may add a row's products in another order where it is given another number of rows: two workers had half.
    assert json.loads((tmp_path / "e.json").read_text())["test_metrics"] == pytest.approx(scores, rel=1e-6)
