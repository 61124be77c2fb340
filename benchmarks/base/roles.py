"""A job whose servers and workers run on hosts of their own, see `base.network`: times of the real loop."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.base.network import ShapedNetwork, run_together
from taihu.cli.planning.link_rate import parse_rate

__all__ = ["run_job"]

_PORT = 7071


def run_job(
    settings: Mapping[str, object],
    rate: str,
    *,
    servers: int,
    workers: int,
    extra: Sequence[str] = (),
    colocated: bool = False,
    worker: Sequence[str] = ("-P", "-m", "taihu.worker"),
) -> list[dict[str, Any]]:
    """Every worker's results; `settings` and `extra`, texts KEY=VALUE, go to all. Without servers, of a ring.

    With `colocated`, server i and worker i share a host and its link. Python runs `worker` as the workers.
    """
    first_worker = 0 if colocated else servers
    hosts = max(servers, first_worker + workers)
    with tempfile.TemporaryDirectory() as name, ShapedNetwork(hosts, parse_rate(rate)) as network:
        address = f"{network.address(0)}:{_PORT}"
        assignments = [*(f"{key}={value}" for key, value in settings.items()), *extra]
        common = [*(f"--set={item}" for item in assignments), "--coordinator", address, "--log-format", "json"]
        commands = [
            network.command(index, sys.executable, "-P", "-m", "taihu.ps_server", *common, "--index", str(index))
            for index in range(servers)
        ]
        files = [Path(name) / f"worker-{rank}.json" for rank in range(workers)]
        for rank, file in enumerate(files):
            command = [sys.executable, *worker, *common, "--rank", str(rank), "--json", str(file)]
            commands.append(network.command(first_worker + rank, *command))
        run_together(commands)
        return [json.loads(file.read_text()) for file in files]
