"""A question is answered in a process of its own, and what goes wrong there is told here."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

ASKS = """
import json, os, signal, sys, threading
from taihu.core.base.errors import ConfigError, DataError, TaihuError
from taihu.core.process.aside import asked_aside

class OwnError(ConfigError):
    pass

def answer():
    import decimal
    open_for_good = os.open(sys.executable, os.O_RDONLY)
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return [os.getpid(), "wörds"]

def wrong():
    raise OwnError("three is no ' number\\n of rows")

def outcome(question):
    try:
        return asked_aside(question, "it counted")
    except TaihuError as error:
        return [type(error).__name__, str(error)]

told = {
    "pid": os.getpid(),
    "answer": outcome(answer),
    "wrong": outcome(wrong),
    "killed": outcome(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "left": outcome(lambda: sys.exit(3)),
    "bug": outcome(lambda: 1 / 0),
    "threads": threading.active_count(),
    "files": sorted(os.listdir("/proc/self/fd")),
    "modules": "decimal" in sys.modules,
}
threading.Thread(target=threading.Event().wait, daemon=True).start()
told["here"] = outcome(os.getpid)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """The outcome of each question."""
    done = subprocess.run([sys.executable, "-c", ASKS], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
    return dict(json.loads(done.stdout))


def test_the_answer_is_of_another_process_and_leaves_nothing_here(told: dict[str, Any]) -> None:
    pid, words = told["answer"]
    assert pid != told["pid"]
    assert words == "wörds"
    assert told["threads"] == 1
    assert told["files"] == ["0", "1", "2", "3"]  # the last is that of the list
    assert told["modules"] is False


def test_errors_are_told_here(told: dict[str, Any]) -> None:
    assert told["wrong"] == ["ConfigError", "three is no ' number\n of rows"]
    assert told["killed"] == ["RunError", "a process of taihu was killed by SIGKILL while it counted"]
    assert told["left"] == ["RunError", "a process of taihu ended with exit code 3 while it counted"]
    assert told["bug"] == ["RunError", "a process of taihu ended with exit code 1 while it counted"]


def test_where_there_are_other_threads_it_is_answered_here(told: dict[str, Any]) -> None:
    assert told["here"] == told["pid"]
