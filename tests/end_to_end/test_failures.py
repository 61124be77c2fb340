"""Whatever dies or is interrupted: the run ends with the cause in one line, and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Taihu
from support.commands import PATIENCE_S, Command
from support.daemons import wait_for

# Its first test is told at once, what comes without one after seconds.
ENDLESS = ("--steps", "1000000")
ONE_LIFE = ("--set", "checkpoint.restarts=0")


@contextmanager
def endless_training(folder: Path) -> Iterator[Command]:
    """A run that is under way: every worker has made a step. Its run folder is in `folder`."""
    process = Command("taihu", "train", *ENDLESS, *ONE_LIFE, folder=folder, environment={"TMPDIR": str(folder)})
    try:
        while (line := process.stdout.readline()) and "step " not in line:
            pass
        assert line, "the run ended before its first step"
        yield process
    finally:
        process.kill()
        process.communicate()


def children(process: Command) -> dict[int, str]:
    """The daemons by pid, with their command lines."""
    pids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in pids}


def wait_until_gone(pids: list[int]) -> None:
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "daemons are still there")


@pytest.mark.parametrize("victim", ["worker", "ps_server"])
def test_a_killed_daemon_ends_the_run_and_is_named(tmp_path: Path, victim: str) -> None:
    with endless_training(tmp_path) as process:
        daemons = children(process)
        assert len(daemons) == 5
        pid = next(pid for pid, command in daemons.items() if f"-m taihu.{victim} " in command)
        os.kill(pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1
        assert errors.count("\n") == 1
        assert "was killed by SIGKILL" in errors
        assert victim.removeprefix("ps_") in errors
        log = tmp_path / errors.strip().partition("log: ")[2]
        assert log.is_file()
        assert log.parent.name == "logs"
        assert (log.parents[1] / "settings.toml").is_file()
        last = json.loads((log.parents[1] / "events.jsonl").read_text().splitlines()[-1])
        assert last["event"] == "failed"
        wait_until_gone(list(daemons))


def test_ctrl_c_saves_what_there_is_and_says_where(tmp_path: Path, taihu: Taihu) -> None:
    with endless_training(tmp_path) as process:
        daemons = list(children(process))
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
        assert not errors
        wait_until_gone(daemons)
    told = dict(line.split(maxsplit=1) for line in output.splitlines())
    assert told["stopping"] == "after the next steps and saving; press Ctrl-C again to end at once"
    steps = int(told["stopped"].removeprefix("after step ").split(" of 1000000, ")[0])
    assert steps >= 3
    assert "interrupted by SIGINT" in told["stopped"]
    tested = taihu("evaluate", told["saved"])
    assert tested.stdout.startswith(f"small_cnn after {steps} steps on digits: ")
    assert told["sha256"] in tested.stdout


def test_a_second_signal_ends_all_daemons_at_once(tmp_path: Path) -> None:
    with endless_training(tmp_path) as process:
        daemons = children(process)
        stuck = next(pid for pid, command in daemons.items() if "-m taihu.worker " in command)
        os.kill(stuck, signal.SIGSTOP)  # so that none of them can end in order
        process.send_signal(signal.SIGINT)
        while "stopping" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGTERM)
        os.kill(stuck, signal.SIGCONT)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
        assert errors == "error: interrupted by SIGTERM\n"
        wait_until_gone(list(daemons))


def test_daemons_do_not_outlive_the_process_that_started_them(tmp_path: Path) -> None:
    with endless_training(tmp_path) as process:
        daemons = list(children(process))
        process.kill()
        process.wait()
        wait_until_gone(daemons)


def test_a_gradient_that_is_not_finite_ends_the_run_and_names_layer_and_step(taihu: Taihu) -> None:
    done = taihu("train", "--steps", "500", "--set", "optimizer.learning_rate=1e4")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "optimizer.learning_rate" in done.stderr
    assert " step " in done.stderr
    assert done.stderr.count("\n") == 1
