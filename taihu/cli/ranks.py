"""Benches between ranks: all of them processes of this machine, or this process one of them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from taihu.local.display import waiting
from taihu.local.processes import LocalProcesses
from taihu.results import read_json
from taihu.words import counted

__all__ = ["measure_here", "wait_for_all"]


def wait_for_all(processes: LocalProcesses, what: str) -> None:
    """Return when all of them have ended well, and say `what` is done meanwhile.

    Raises:
        DaemonFailedError: one has not.
    """
    with waiting(what):
        while not processes.check():
            time.sleep(0.1)


def measure_here(bench: str, ranks: int, arguments: Sequence[str], *, trace: Path | None = None) -> dict[str, Any]:
    """Run `taihu bench BENCH` with `arguments` as `ranks` processes on this machine; returns rank 0's results."""
    common = ["bench", bench, *arguments, "--bind", "127.0.0.1:0"]
    with (
        tempfile.TemporaryDirectory(prefix="taihu-bench-") as name,
        LocalProcesses(Path(name), fork=True) as processes,
    ):
        result = Path(name) / "rank-0.json"
        own = ["--rank", "0", "--json", str(result)]
        if trace is not None:
            own += ["--trace", str(trace.absolute())]
        address = processes.start_listening("rank 0", "taihu", [*common, *own])
        for rank in range(1, ranks):
            processes.start(f"rank {rank}", "taihu", [*common, "--rank", str(rank), "--coordinator", address])
        wait_for_all(processes, f"measuring between {counted(ranks, 'rank')}")
        results: dict[str, Any] = read_json(result)
    return results
