"""Real daemons in simulated worlds: the same seed, the same story; and some hundred seeds of a few kinds of job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from taihu.explore.campaign.campaign import explored
from taihu.explore.campaign.work import Work

JOBS = (0, 1, 5, 8, 10, 15, 26, 42, 60, 77)
"""Jobs of 600; each is run without faults once, and by as many seeds as `PER_JOB`."""

PER_JOB = 10


def test_seeds_are_judged_right() -> None:
    seeds = [job + 600 * again for job in JOBS for again in range(PER_JOB)]
    found = explored(Work(picked=seeds))
    assert len(found) == len(seeds)
    told = [line for each in found if each.problems for line in (*each.case, *each.problems)]
    assert not told, "\n".join(told)
    assert sum(bool(each.done) for each in found) > len(seeds) / 2


def test_seeds_whose_workers_agents_run_are_judged_right() -> None:
    found = explored(Work(picked=[job + 600 * again for job in (0, 5, 10) for again in range(4)], agents=True))
    told = [line for each in found if each.problems for line in (*each.case, *each.problems)]
    assert not told, "\n".join(told)
    assert sum(" agent " in line for each in found for line in each.done) >= 4
    assert "agents come after" in "".join(found[0].case)


def test_a_seed_is_the_same_story_in_whatever_company(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = explored(Work(26, tells=True))[0]
    later = explored(Work(25, 2, tells=True))[1]
    monkeypatch.setenv("PYTHONHASHSEED", "77")
    carried = explored(Work(26, tells=True, carrier="threads"))[0]
    assert len(alone.story) > 100
    for other in (later, carried):
        assert (other.digest, other.case, other.story) == (alone.digest, alone.case, alone.story)


def test_a_seed_is_the_same_run_where_threads_are_held_up_between_lines() -> None:
    first, _, again = explored(Work(picked=[10, 8, 10], carrier="threads", between_lines=True))
    assert "lines of" in "".join(first.case)
    assert (again.digest, again.case, again.problems) == (first.digest, first.case, [])
    assert explored(Work(10))[0].digest != first.digest


@pytest.mark.parametrize("send", [os.killpg, os.kill], ids=["to all", "to one"])
def test_a_ctrl_c_ends_exploring_with_its_summary(send: Callable[[int, int], None]) -> None:
    """It comes to all processes of a terminal, whatever task of a simulated world runs in them; or to one."""
    command = [sys.executable, "-P", "-m", "taihu", "dev", "explore", "--first", "0", "--processes", "2"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert process.stdout is not None
    told = ""
    while "virtual hours\n" not in told:
        told += process.stdout.readline()
        assert process.poll() is None, told
    send(process.pid, signal.SIGINT)
    summary = process.communicate(timeout=60)[0]
    assert process.returncode == 0, summary
    assert " 0 failed; " in summary
    assert "pairs of " in summary
    assert "Traceback" not in told + summary
