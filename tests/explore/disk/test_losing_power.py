"""Files that were said to be on disk are there when the power has failed, and none by half."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

_PROGRAM = Path(__file__).with_name("losing_power.py")


def test_checkpoints_and_files_outlive_a_failure_of_the_machine() -> None:
    """And each synchronization that is taken out is missed."""
    done = subprocess.run([sys.executable, _PROGRAM, "150", "30"], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line for line in lines if not line["change"]] == []
    assert {
        each: count >= 5 for each, count in Counter((line["change"], line["kind"]) for line in lines).items()
    } == {
        ("files are not synchronized", "files"): True,
        ("names of files are not synchronized", "files"): True,
        ("names of folders are not synchronized", "checkpoints"): True,
        ("parts are not synchronized", "checkpoints"): True,
    }
