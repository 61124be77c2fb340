"""`taihu bench exchange` between real processes: every round takes a part of the command's own time."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from taihu.wire.codec import BYTES_PER_VALUE

Taihu = Callable[..., subprocess.CompletedProcess[str]]


def test_rounds_are_timed_and_their_bytes_counted(taihu: Taihu, tmp_path: Path) -> None:
    begin_s = time.monotonic()
    tcp = ("--set", "exchange.transport=tcp")
    done = taihu(
        "bench", "exchange", "--model", "resnet20", "--workers", "2", "--rounds", "3", "--json", "r.json", *tcp
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "r.json").read_text())
    seconds = results["seconds_per_round"]
    assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"] < time.monotonic() - begin_s
    # ResNet-20 for CIFAR-10 has about 0.27 million parameters, which go up and come down once in a round.
    for way in ("sent", "received"):
        assert results[f"bytes_{way}_per_round"] == pytest.approx(270_000 * BYTES_PER_VALUE, rel=0.03)
