"""Locks that are taken out of the project on purpose are missed within some seeds, and no others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_PROGRAM = Path(__file__).with_name("missing_locks.py")


def test_each_lock_that_is_taken_out_is_missed_and_no_other() -> None:
    done = subprocess.run([sys.executable, _PROGRAM, "24"], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = {(line["world"], line["missing"]): line["wrong"] for line in lines}
    assert len(found) == 14
    assert [world for (world, is_missing), wrong in found.items() if is_missing and wrong is None] == []
    assert [(world, wrong) for (world, is_missing), wrong in found.items() if not is_missing and wrong] == []
