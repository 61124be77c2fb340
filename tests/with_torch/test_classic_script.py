"""A script that was never written for taihu, with its three lines: two workers beside one process without."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from support.torch_scripts import SCRIPTS, taihu_run

WITHOUT_TAIHU = MappingProxyType(
    {
        "import taihu.torch\n": "",
        "    optimizer = taihu.torch.DistributedOptimizer(optimizer, model)\n": "",
        "taihu.torch.world_size(), taihu.torch.rank()": "1, 0",
        "rank = taihu.torch.rank()": "rank = 0",
    }
)


def told(folder: Path, rank: int = 0) -> Any:
    return json.loads((folder / f"losses.{rank}").read_text())


def run_plain(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """The script without a word of taihu, in this process."""
    text = (SCRIPTS / "classic.py").read_text()
    for line, other in WITHOUT_TAIHU.items():
        assert text.count(line) == 1
        text = text.replace(line, other)
    assert "taihu.torch" not in text
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["classic.py", *arguments])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    exec(compile(text, "classic.py", "exec"), {"__name__": "__main__"})  # noqa: S102 - a script of ours
    torch.set_num_threads(threads)


def test_two_workers_come_to_the_losses_of_one_process_with_twofold_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    for folder in (alone, together):
        folder.mkdir()
    run_plain(alone, monkeypatch, "--batch-size", "48")
    done = taihu_run(together, script="classic.py", arguments=("--batch-size", "24"), workers=2)
    assert done.returncode == 0, done.stderr
    assert "Train Epoch: 3" in done.stdout

    # DistributedSampler deals one permutation out by turns: two batches of 24 are one of 48.
    expected, first, second = told(alone), told(together), told(together, 1)
    losses = np.mean([first["losses"], second["losses"]], axis=0)
    assert len(losses) == len(expected["losses"]) == 90
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-4)
    assert first["tests"] == second["tests"]
    for (loss, correct), (loss_alone, correct_alone) in zip(first["tests"], expected["tests"], strict=True):
        assert abs(loss - loss_alone) < 1e-4
        assert abs(correct - correct_alone) <= 1
    assert first["tests"][-1][1] > 0.8 * 357

    saved = [torch.load(folder / "digits.pt", weights_only=True) for folder in (alone, together)]
    assert saved[0].keys() == saved[1].keys()
    for name, value in saved[0].items():
        torch.testing.assert_close(saved[1][name], value, rtol=1e-3, atol=1e-4)
