"""The program on a host, without a launcher: its orders by hand, and their end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemons import wait_for

from taihu.core.job.environment import without_settings
from taihu.hosts.frames import FOLDER, SUPERVISOR, Lines, bytes_in, frame

STAYS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdout.write(f"{os.getpid()} {' '.join(sys.argv[1:])}\\n")
sys.stdout.flush()
time.sleep(300)
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "stays.py").write_text(STAYS)
    command = [sys.executable, "-P", "-m", "taihu.hosts.remote"]
    with subprocess.Popen(
        command,
        env={**without_settings(os.environ), "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        yield process
        process.kill()


def order(program: subprocess.Popen[bytes], what: str, /, **words: Any) -> None:
    assert program.stdin is not None
    program.stdin.write(frame({"order": what, **words}))
    program.stdin.flush()


def told(program: subprocess.Popen[bytes], key: str) -> dict[str, Any]:
    """The next words of the program that have `key`."""
    assert program.stdout is not None
    while line := program.stdout.readline():
        for words in Lines().add(line):
            if key in words:
                return words
    raise AssertionError(f"no {key} was told: {program.communicate()[1].decode()}")


def test_processes_that_ignore_signals_end_with_the_orders(program: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Nobody tells it to: its stdin ends, as it does where the launcher or ssh is killed."""
    order(program, "look", folder=str(tmp_path), script="stays.py")
    assert told(program, "facts")["facts"]["has_folder"]
    order(program, "is_there", path="stays.py", answer=7)
    assert told(program, "answer") == {"answer": 7, "value": True}
    order(program, "open", fork=[], variables={}, token=None, lost_after_s=60.0)
    command = ["stays", SUPERVISOR, f"{FOLDER}/x"]
    order(program, "run", name="worker 0", command=command, environment={}, folder=None, is_shown=True)
    pid, supervisor, path = bytes_in(told(program, "output")["data"]).decode().split()
    assert int(supervisor) == program.pid
    assert Path(path).parent.is_dir()
    order(program, "dismiss", name="nobody", answer=8)
    assert told(program, "answer") == {"answer": 8, "value": None}
    assert program.stdin is not None
    program.stdin.close()
    assert program.wait(60) == 1
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the process is left")
    assert not Path(path).parent.exists()


def test_a_folder_that_is_not_there_is_told(program: subprocess.Popen[bytes], tmp_path: Path) -> None:
    order(program, "look", folder=str(tmp_path / "nowhere"), script=str(tmp_path / "stays.py"))
    facts = told(program, "facts")["facts"]
    assert (facts["has_folder"], facts["script"]) == (False, None)
