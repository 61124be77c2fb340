"""A process ends with its supervisor, whoever else holds the pipe between them, and whatever it does."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Starts a process that it supervises, and forks one that holds the pipe to that, too; then it waits.
SUPERVISOR = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], stdin=subprocess.PIPE)
if os.fork() == 0:
    print("forked", os.getpid(), flush=True)
time.sleep(600)
"""
SUPERVISED = """
import atexit, os, signal, sys, time
from taihu.core.process.entry import Interrupts
from taihu.core.process.supervised import end_with_supervisor
{before}
end_with_supervisor(int(sys.argv[1]), {end}, grace_s=0.3)
{life}
"""
SLEEP = 'print("runs", os.getpid(), flush=True); time.sleep(600)'
SWALLOW = """
interrupts = Interrupts()
interrupts.install()
"""
WAITS_IN_LIBC = """
import ctypes
libc = ctypes.CDLL(None)
libc.on_exit(ctypes.cast(libc.pause, ctypes.c_void_p), None)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
"""
LIVES = {
    "as it is told": ("", "lambda: os.kill(os.getpid(), signal.SIGTERM)", SLEEP, ""),
    "swallowed": (
        SWALLOW,
        "interrupts.end_at_once",
        # Whoever reads that it runs ends it at once.
        f"try:\n    {SLEEP}\nexcept Exception:\n    time.sleep(600)",
        "error: its supervisor has ended, and this process not within 0.3 s",
    ),
    "never at its end": (
        "atexit.register(time.sleep, 600)",
        "lambda: os.kill(os.getpid(), signal.SIGINT)",
        SLEEP,
        "error: its supervisor has ended, and this process not within 0.3 s",
    ),
    "after Python has ended": (
        WAITS_IN_LIBC,
        "lambda: os.kill(os.getpid(), signal.SIGTERM)",
        SLEEP,
        "",
    ),
}


@pytest.mark.parametrize("life", LIVES)
def test_a_process_ends_with_its_supervisor(life: str, tmp_path: Path) -> None:
    before, end, alive, said = LIVES[life]
    program = SUPERVISED.format(before=before, end=end, life=alive)
    begun = [sys.executable, "-c", SUPERVISOR, program]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(begun, stdout=subprocess.PIPE, stderr=log) as process:
        assert process.stdout is not None
        pids = {name: int(pid) for name, pid in (process.stdout.readline().split() for _ in range(2))}
        ended = os.pidfd_open(pids[b"runs"])
        try:
            process.kill()
            assert select.select([ended], [], [], 600)[0]
        finally:
            os.close(ended)
            os.kill(pids[b"forked"], signal.SIGKILL)
    assert (tmp_path / "log").read_text().strip().rpartition("\n")[2] == said
