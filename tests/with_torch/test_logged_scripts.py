"""Loggers of a script's run: what every run logs, and the script's own values."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from support.own_loggers import installed
from support.torch_scripts import taihu_run

import taihu.torch
from taihu.core.base.errors import ConfigError

STEPS, KILLED = 60, 30


def test_a_script_that_is_killed_has_each_step_once_in_its_loggers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(installed(tmp_path / "installed")))
    flags = ("--run-dir", "run", "--set", "run.loggers=lines,failing")
    done = taihu_run(tmp_path, *flags, script="logs.py", workers=2)
    assert done.returncode == 0, done.stderr
    assert "UserWarning" not in done.stderr
    log = (tmp_path / "logs" / "worker-0.log").read_text()
    assert "run.loggers: failing: the service has gone; the run goes on without it" in log
    told = [json.loads(line) for line in (tmp_path / "run" / "loggers" / "lines" / "lines").read_text().splitlines()]
    assert [line[1] for line in told if line[0] == "step"] == list(range(1, STEPS + 1))
    assert told[0][3]["taihu.script"] == "logs.py"
    assert told[-1] == ["end", "finished"]
    own = [line for line in told if line[0] == "own"]
    assert own[0] == ["own", 0, {"begins": 1.0}]
    steps = [step for _, step, values in own if "loss" in values]
    assert steps == sorted(set(steps))
    assert set(range(KILLED + 1, STEPS + 1)) <= set(steps)  # a kill may lose those of the second before it
    assert all(values["double"] == pytest.approx(2 * values["loss"]) for _, _, values in own if "loss" in values)


def test_a_value_that_is_no_number_is_refused_by_its_name() -> None:
    words = "log(loss=...): expected a number or a tensor of one element, got tensor([0., 0.])"
    taihu.torch.init({})
    with pytest.raises(ConfigError, match=re.escape(words)):
        taihu.torch.log(loss=torch.zeros(2))
