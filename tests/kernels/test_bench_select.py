from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pytest

from taihu.cli.bench.select import select
from taihu.core.base.errors import ConfigError


@pytest.mark.parametrize(
    ("elements", "density", "threads"), [(5000, 0.01, 1), (5000, 0.1, 3), (1, 1.0, 2), (777, 1.0, 1)]
)
def test_the_results_say_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], elements: int, density: float, threads: int
) -> None:
    file = tmp_path / "select.json"
    select(elements=elements, density=density, rounds=3, threads=threads, against="none", json_file=file)
    results = json.loads(file.read_text())
    assert results.keys() == {
        "elements",
        "density",
        "threads",
        "selected",
        "seconds",
        "topk_seconds",
        "pass_seconds",
        "refresh_seconds",
    }
    assert results["selected"] == math.ceil(density * elements)
    assert (results["elements"], results["density"], results["threads"]) == (elements, density, threads)
    assert results["topk_seconds"] is None
    for key in ("seconds", "pass_seconds", "refresh_seconds"):
        assert 0 < results[key]["min"] <= results[key]["median"] <= results[key]["max"]
    table = capsys.readouterr().out
    assert f"{results['selected']} of {elements} elements selected" in table
    assert [line[:16].strip() for line in table.splitlines()[2:]] == [
        "one pass",
        "reused threshold",
        "exact threshold",
    ]


@pytest.mark.parametrize("density", [0.0, -0.1, 1.5, math.nan])
def test_a_density_outside_its_range_is_refused(density: float) -> None:
    with pytest.raises(ConfigError, match="expected a share above 0 and up to 1"):
        select(elements=100, density=density)


def test_torch_is_measured_or_its_absence_told(tmp_path: Path) -> None:
    file = tmp_path / "select.json"
    if importlib.util.find_spec("torch") is None:
        with pytest.raises(ConfigError, match=r"torch is not installed; pip install taihu\[torch\]"):
            select(elements=100, against="torch", rounds=1, json_file=file)
        assert not file.exists()
    else:
        select(elements=1000, against="torch", rounds=1, json_file=file)
        assert json.loads(file.read_text())["topk_seconds"]["median"] > 0


def test_an_unwritable_result_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder that can be written"):
        select(elements=100, rounds=1, json_file=tmp_path / "nowhere" / "select.json")
