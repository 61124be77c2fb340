"""Memory that simulated processes share: sums, what a killed process leaves, and memory that is full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROGRAM = Path(__file__).with_name("sharing_memory.py")


def test_ranks_sum_in_memory_that_they_share_at_any_order() -> None:
    done = subprocess.run([sys.executable, _PROGRAM, "0", "30"], capture_output=True, text=True, check=True)
    assert done.stdout == ""
