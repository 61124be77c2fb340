"""The examples for PyTorch: three lines of taihu in each, which may be left out, and a short run of both."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    "resnet_fashion": ("--samples", "512", "--epochs", "1"),
    "transformer_text": ("--steps", "20", "--bytes", "100000", "--width", "64"),
    "fine_tuning": ("--epochs", "1"),
}
OURS = re.compile(r"^(?!(?:One|Three|Sparse)).*taihu.*\n", re.MULTILINE)


def source(name: str) -> str:
    return (ROOT / "examples" / "torch" / f"{name}.py").read_text()


def arguments(name: str, folder: Path) -> list[str]:
    """Those of a short run; data that not every machine has are written to `folder`."""
    if name != "resnet_fashion":
        return list(EXAMPLES[name])
    generator = np.random.default_rng(0)
    for part, count in (("train", 512), ("t10k", 64)):
        sizes = np.array([count, 28, 28], dtype=">u4").tobytes()
        images, labels = generator.integers(0, 256, (count, 28, 28)), generator.integers(0, 10, count)
        for kind, header, values in (("images-idx3", sizes, images), ("labels-idx1", sizes[:4], labels)):
            with gzip.open(folder / f"{part}-{kind}-ubyte.gz", "wb") as file:
                file.write(bytes(4) + header + values.astype(np.uint8).tobytes())
    return [*EXAMPLES[name], "--data", str(folder)]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_plain_loop_and_three_lines(name: str, tmp_path: Path) -> None:
    text = source(name)
    assert len(OURS.findall(text)) == 3
    assert text.count("\n") < 120
    plain = tmp_path / "plain.py"
    plain.write_text(OURS.sub("", text))
    subprocess.run([sys.executable, str(plain), *arguments(name, tmp_path)], check=True, timeout=100)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_on_two_workers(name: str, tmp_path: Path) -> None:
    script = ROOT / "examples" / "torch" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "taihu", "run", "--workers", "2", str(script), *arguments(name, tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout


def test_the_page_shows_the_three_lines_of_each() -> None:
    page = (ROOT / "docs" / "torch.md").read_text()
    for name in EXAMPLES:
        for line in OURS.findall(source(name)):
            assert f"+{line}" in page, f"{name}: {line}"
