"""`taihu dev bench exchange` between real processes: every round takes a part of the command's own time."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from taihu.core.wire.frames.headers import BYTES_PER_VALUE

Taihu = Callable[..., subprocess.CompletedProcess[str]]


def test_rounds_are_timed_and_their_bytes_counted(taihu: Taihu, tmp_path: Path) -> None:
    begin_s = time.monotonic()
    asked = (
        "compression.method=lags",
        "compression.density=0.05",
        "compression.downlink=dense",
        "optimizer.name=adam",
    )
    done = taihu(
        *(
            "dev",
            "bench",
            "exchange",
            "--model",
            "resnet20",
            "--workers",
            "2",
            "--rounds",
            "3",
            "--blobs",
            "--json",
            "r.json",
        ),
        *(word for item in asked for word in ("--set", item)),
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "r.json").read_text())
    seconds = results["seconds_per_round"]
    assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"] < time.monotonic() - begin_s
    assert (results["compression"], results["density"], results["path"]) == ("lags", 0.05, "tcp")
    # A message for each of 19 convolutions, scales and shifts, of a weight and a bias.
    assert results["groups"] == 3 * 19 + 2
    # ResNet-20 for CIFAR-10 has about 0.27 million parameters: all come down, one of twenty goes up with its place.
    size = 270_000 * BYTES_PER_VALUE
    assert results["bytes_received_per_round"] == pytest.approx(size, rel=0.03)
    assert results["bytes_sent_per_round"] == pytest.approx(0.05 * size * (1 + 5.8 / 32), rel=0.1)
