"""A program's exit code is known to its exit handlers where `sys.exit`, `exit` or `quit` ends it."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGINNING = """
import atexit, sys, threading
from taihu.core.process.ending import known_exit_code
from taihu.core.process.exit_codes import note_exit_codes
note_exit_codes()
note_exit_codes()
threading._register_atexit(lambda: print(known_exit_code(), flush=True))
def caught(code):
    try:
        sys.exit(code)
    except SystemExit as ended:
        return ended
"""
ENDS = {
    "sys.exit(3)": (3, "3"),
    "sys.exit()": (0, "0"),
    "exit(4)": (4, "4"),
    "quit(5)": (5, "5"),
    "sys.exit('why')": (1, "1"),
    "pass": (0, "None"),
    "caught(7)": (0, "None"),
    "caught(7); sys.exit(8)": (8, "8"),
    "kept = caught(7)": (0, "None"),
    "kept = caught(7); raise kept": (7, "None"),
    "import os; raise SystemExit(9)": (9, "None"),
    "each = threading.Thread(target=sys.exit, args=(7,)); each.start(); each.join()": (0, "None"),
    "[caught(7) for _ in range(3)]; raise ValueError": (1, "None"),
}


@pytest.mark.parametrize("end", ENDS)
def test_exit_handlers_know_what_the_process_ends_with(end: str) -> None:
    code, known = ENDS[end]
    done = subprocess.run(
        [sys.executable, "-c", f"{BEGINNING}\n{end}\n"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (code, f"{known}\n")
