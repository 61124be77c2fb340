"""Runs by their folders: what is there of them, whole or not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from taihu.core.base.errors import ConfigError
from taihu.local.runs import find_run, logs_of, runs_in

TRAINING = '{"time": "2026-01-02T03:04:05.000+00:00", "step": 0, "event": "training", "workers": 2, "steps": 9}\n'
FAILED = '{"time": "2026-01-02T03:04:06.000+00:00", "step": 2, "event": "failed", "reason": "x"}\n'
HEAD = "step,epoch,worker_0_loss\n"


def run(folder: Path, name: str, **files: str) -> Path:
    """The folder of a run with these files."""
    place = folder / name
    (place / "logs").mkdir(parents=True)
    (place / "settings.toml").write_text("")
    for file, text in files.items():
        (place / file.replace("__", ".")).write_text(text)
    begin(place, 100.0)
    return place


def begin(place: Path, seconds_ago: float) -> None:
    """Let the run have begun so many seconds ago."""
    os.utime(place / "settings.toml", (time.time() - seconds_ago,) * 2)


@pytest.mark.parametrize(
    ("events", "table", "expected"),
    [
        ("", "", ("died", 0, None)),
        (TRAINING, HEAD + "1,1,2.5\n2,1,1.5\n", ("died", 2, 1.5)),
        (TRAINING + FAILED, HEAD + "1,1,2.5\n", ("failed", 1, 2.5)),
        (TRAINING + FAILED + TRAINING, HEAD, ("failed", 0, None)),
        (TRAINING + '{"event": "finis', HEAD + "1,1,2.5\n2,1,0.", ("died", 1, 2.5)),
        (TRAINING + "[]\nno JSON\n", HEAD + "1,1,\n", ("died", 1, None)),
        (TRAINING, HEAD + "x,1,2\n".replace("x", "1") * 9000, ("died", 1, 2.0)),
    ],
)
def test_what_can_be_read_of_a_run_is_told(
    tmp_path: Path, events: str, table: str, expected: tuple[str, int, float | None]
) -> None:
    run(tmp_path, "one", events__jsonl=events, steps__csv=table, results__json="{")
    (tmp_path / "no run").mkdir()
    [found] = runs_in(tmp_path)
    assert (found.state, found.step, found.loss) == expected
    assert found.steps == (9 if events else None)


def test_the_newest_run_is_meant_where_none_is_named(tmp_path: Path) -> None:
    older = run(tmp_path, "b", events__jsonl=TRAINING)
    newest = run(tmp_path, "a", events__jsonl=TRAINING)
    begin(newest, 90.0)
    assert find_run(None, tmp_path) == newest
    assert find_run(Path("b"), tmp_path) == older
    assert find_run(newest, tmp_path / "elsewhere") == newest
    with pytest.raises(ConfigError, match="c: no folder of a run"):
        find_run(Path("c"), tmp_path)


def test_a_run_without_processes_is_being_started_for_a_while(tmp_path: Path) -> None:
    place = run(tmp_path, "one")
    begin(place, 5.0)
    assert [found.state for found in runs_in(tmp_path)] == ["starting"]
    (place / "events.jsonl").write_text(TRAINING)
    assert [found.state for found in runs_in(tmp_path)] == ["died"]


def test_scores_are_the_final_ones_or_the_last(tmp_path: Path) -> None:
    tested = "epoch,step,seconds,train_loss,test_loss,test_accuracy\n1,5,0.1,0.4,0.3,0.75\n"
    place = run(tmp_path, "one", events__jsonl=TRAINING, steps__csv=HEAD + "1,1,2.5\n", epochs__csv=tested)
    [found] = runs_in(tmp_path)
    assert (found.loss, found.accuracy) == (2.5, 0.75)
    (place / "results.json").write_text('{"final_loss": 0.5}')
    [found] = runs_in(tmp_path)
    assert (found.loss, found.accuracy) == (0.5, 0.75)


def test_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run is there"):
        find_run(None, tmp_path)
    with pytest.raises(ConfigError, match="no folder of runs"):
        runs_in(tmp_path / "none")
    with pytest.raises(ConfigError, match="is a run; give the folder that it lies in"):
        runs_in(run(tmp_path, "one"))


def test_logs_are_those_of_members(tmp_path: Path) -> None:
    place = run(tmp_path, "one")
    for name in ("worker-1.log", "server-0.log", "worker-0.log", "other.log", "worker-x.log"):
        (place / "logs" / name).write_text("")
    assert list(logs_of(place)) == ["server 0", "worker 0", "worker 1"]
