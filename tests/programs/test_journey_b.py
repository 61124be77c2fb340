"""Journey b of docs/journeys.md: a folder of 2,000 images on three hosts, from an empty folder with the wheel."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mpi_hosts import MpiHosts
from PIL import Image
from support.readme import README, files

CLASSES = ("circle", "cross", "ring", "square")
IMAGES = 2000


def draw(kind: str, rng: np.random.Generator) -> Image.Image:
    """A shape of some colour and size at some place, in noise, on 32x32 pixels."""
    y, x = np.mgrid[:32, :32] - rng.integers(11, 21, 2)[:, None, None]
    radius = rng.integers(6, 10)
    distance = np.hypot(y, x)
    inside = {
        "circle": distance < radius,
        "cross": np.minimum(abs(y), abs(x)) < 2,
        "ring": abs(distance - radius) < 1.5,
        "square": np.maximum(abs(y), abs(x)) < radius,
    }[kind]
    pixels = rng.integers(0, 90, (32, 32, 3))
    pixels[inside] = rng.integers(130, 256, 3)
    return Image.fromarray(pixels.astype(np.uint8))


def write_images(folder: Path) -> None:
    rng = np.random.default_rng(1)
    for number in range(IMAGES):
        kind = CLASSES[number % len(CLASSES)]
        (folder / kind).mkdir(parents=True, exist_ok=True)
        draw(kind, rng).save(folder / kind / f"{number:04}.png")


def install_wheel(folder: Path) -> dict[str, str]:
    """Build and install the wheel into `folder`; returns what the environment needs to run it from there."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder / "wheel"), str(README.parent)]
    subprocess.run(wheel, check=True, capture_output=True)
    [built] = (folder / "wheel").glob("taihu-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "site"), str(built)], check=True)
    return {"PYTHONPATH": str(folder / "site"), "PATH": f"{folder / 'site' / 'bin'}:{os.environ['PATH']}"}


@pytest.mark.timeout(1500)
def test_two_thousand_images_are_learned_on_three_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    installed = install_wheel(tmp_path_factory.mktemp("installed"))
    for name, text in installed.items():
        monkeypatch.setenv(name, text)
    write_images(tmp_path / "shapes")
    (tmp_path / "shapes.toml").write_text(files((README.parent / "docs" / "journeys.md").read_text())["shapes.toml"])
    with MpiHosts(3, tmp_path_factory.mktemp("mpi")) as mpi:
        command = ("taihu", "node", "shapes.toml", "--save", "shapes.safetensors", "--json", "result.json")
        code, output = mpi.run(
            0, tmp_path, "-n", "5", "-H", mpi.hosts([1, 2, 2]), *command, path=installed["PATH"], timeout_s=1000
        )
    assert code == 0, output
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["evaluations"][-1]["test_accuracy"] > 0.85, output
    evaluated = subprocess.run(
        ["taihu", "evaluate", "shapes.safetensors", "--data", "./shapes"],  # noqa: S607
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert evaluated.returncode == 0, evaluated.stderr
    assert result["parameters_sha256"] in evaluated.stdout
    accuracy = re.search(r"test accuracy (\d+\.\d\d)%", evaluated.stdout)
    assert accuracy is not None, evaluated.stdout
    assert accuracy[1] == f"{result['evaluations'][-1]['test_accuracy'] * 100:.2f}"
