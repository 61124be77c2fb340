"""`taihu dev bench fc` between real processes: rows for every setting, with the lean volumes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from taihu.core.wire.frames.format import HEADER_BYTES

Taihu = Callable[..., subprocess.CompletedProcess[str]]


def test_exchanges_of_layers_are_timed_and_counted(taihu: Taihu, tmp_path: Path) -> None:
    sizes = ("--layers", "3000x600,200x90", "--batches", "1,7")
    done = taihu("dev", "bench", "fc", *sizes, "--ranks", "3", "--rounds", "1", "--json", "fc.json")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "fc.json").read_text())["rows"]
    assert [(row["inputs"], row["outputs"], row["batch"]) for row in rows] == [
        (3000, 600, 1),
        (3000, 600, 7),
        (200, 90, 1),
        (200, 90, 7),
    ]
    for row in rows:
        # All columns divide evenly, so that every rank sends what the formula says, and four headers to two others.
        assert row["bytes_sent"] == row["lean_bytes"] + 4 * 2 * HEADER_BYTES
        assert row["winner"] in ("data", "shard")
        assert f"{row['inputs']}x{row['outputs']}" in done.stdout.replace(" ", "")


def test_schemes_are_compared_with_modelled_products_and_traced(taihu: Taihu, tmp_path: Path) -> None:
    sizes = ("--layers", "300x60", "--batches", "8")
    model = ("--compute", "--gflops", "0.1", "--rounds", "1")
    done = taihu("dev", "bench", "fc", *sizes, *model, "--json", "fc.json", "--trace", "trace.json")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "fc.json").read_text())["rows"]
    assert [row["scheme"] for row in rows] == ["gather", "turns", "slices"]
    assert all(row["gflops"] == 0.1 and row["products_seconds"] > 0 for row in rows)
    names = {event.get("name") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert {"gather", "regather", "scatter", "pass 0", "pass 1", "weight gradients"} <= names


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--layers", "big"), "--layers big: expected inputs and outputs"),
        (("--batches", "0"), "--batches 0: expected numbers of examples"),
        (("--gflops", "5"), "--gflops is of products: give --compute too"),
    ],
)
def test_a_mistake_is_one_line(taihu: Taihu, arguments: tuple[str, ...], words: str) -> None:
    done = taihu("dev", "bench", "fc", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
