"""Signals reach the scripts of `taihu run`, which may save; the run ends by its code and in one line."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Two ranks that go on until they are told to end; rank 0 says when.
SCRIPT = """
import os, signal, sys, time
import taihu.torch
how = sys.argv[1]
told = []
if how != "raises":
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: told.append(number))
rank = taihu.torch.rank()
open(f"ready.{rank}", "w").close()
while not os.path.exists("ready.1"):
    time.sleep(0.02)
print("going", flush=True)
try:
    while not told or how == "ignores":
        time.sleep(0.02)
        if told and how == "ignores" and rank == 0:
            print("told", flush=True)
            told.clear()
except KeyboardInterrupt:
    open(f"saved.{rank}", "w").write("by Ctrl-C")
    raise
open(f"saved.{rank}", "w").write(str(int(told[0])))
"""


@pytest.mark.parametrize(
    ("how", "number", "code", "saved"),
    [
        ("handles", signal.SIGTERM, 143, "15"),
        ("raises", signal.SIGINT, 130, "by Ctrl-C"),
        ("ignores", signal.SIGTERM, 130, None),
    ],
)
def test_a_signal_is_passed_to_all_processes_of_a_script(
    how: str, number: signal.Signals, code: int, saved: str | None, tmp_path: Path
) -> None:
    """A second one ends them at once."""
    again = how == "ignores"
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-P", "-m", "taihu", "run", "--workers", "2", "--quiet", "--run-dir", "none"]
    with subprocess.Popen(
        [*command, "script.py", how], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == "going\n"
        run.send_signal(number)
        if again:
            assert run.stdout.readline() == "told\n"
            run.send_signal(signal.SIGINT)
        run.stdout.read()
        said = run.stderr.read()
        assert run.wait(60) == code
    name = signal.SIGINT.name if again else number.name
    assert said.startswith(f"error: interrupted by {name}")
    assert len(said.splitlines()) == 1
    if saved is None:
        assert not list(tmp_path.glob("saved.*"))
    else:
        assert (tmp_path / "saved.0").read_text() == saved
