"""Runs whose containers are lost in turn: the job, the first step after a loss, and the table."""

from __future__ import annotations

import tomllib

import pytest
from support.tests_deploy import DEPLOY

from benchmarks.recovery.containers import WAYS, drill_job, first_after, table

EVENTS = [
    {"time": "2026-11-23T19:00:00+00:00", "event": "training"},
    {"time": "2026-11-23T19:00:10+00:00", "event": "resumed"},
    {"time": "2026-11-23T19:00:12+00:00", "event": "planned"},
    {"time": "2026-11-23T19:00:20+00:00", "event": "resumed"},
]
START = 1795460400.0  # the first of these times


def test_the_job_is_the_one_of_deploy_but_for_its_length_and_checkpoints() -> None:
    text = (DEPLOY / "job.toml").read_text()
    job, given = tomllib.loads(drill_job(text, steps=7, kept=3)), tomllib.loads(text)
    assert job.pop("checkpoint") == {"every_steps": 3, "restarts": 1000}
    assert job["train"].pop("steps") == 7
    del given["train"]["steps"]
    assert job == given


@pytest.mark.parametrize(("lost", "gone_on"), [(1, 10), (10, 20), (15, 20), (20, None)])
def test_the_first_step_after_a_loss_is_that_of_the_next_generation(lost: float, gone_on: float | None) -> None:
    assert first_after(EVENTS, START + lost) == (0 if gone_on is None else START + gone_on)


def test_a_run_that_ends_before_all_were_lost_is_told() -> None:
    with pytest.raises(SystemExit, match="the run has finished, and not all containers were lost; give more --steps"):
        first_after([*EVENTS, {"time": "2026-11-23T19:00:30+00:00", "event": "finished"}], START + 25)


def test_the_table_has_a_line_for_each_way_and_says_whether_bits_are_the_same() -> None:
    losses = [
        {"member": member, "how": how, "seconds": 10 * i + j}
        for i, member in enumerate(("server 0", "worker 0"))
        for j, how in enumerate(WAYS)
    ]
    rows = [
        {"engine": "compose", "losses": losses, "sha256": "a", "local": "a"},
        {"engine": "pods", "losses": losses, "sha256": "b", "local": "a"},
    ]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(rows).splitlines()]
    assert lines[0] == ["lost", "compose", "pods"]
    assert [line[0] for line in lines[2:]] == [*WAYS, "parameters"]
    assert lines[3][1:] == ["6.0 s, 1.0 to 11.0"] * 2
    assert lines[5][1:] == ["the same bits", "**differ**"]
