"""A run of daemons, one of which is asked to end: all end in order, and worker 0 saves the model."""

from __future__ import annotations

import json
from pathlib import Path

from support.daemons import Start, listening, wait_for

from taihu.core.coordination.status import fetch_status
from taihu.worker.saved.reading import load_model

FLAGS = (
    *("--servers", "1", "--workers", "2", "--steps", "1000000", "--data", "synthetic:1x8x8"),
    *("--set", "train.evaluate=false", "--set", "cluster.threads=1", "--set", "name='lake'"),
)


def test_sigterm_to_the_server_alone_stops_all_of_the_run(start: Start, tmp_path: Path) -> None:
    # Hours of lingering and holding are over at once.
    server = start("taihu.ps_server", *FLAGS, "--bind", "127.0.0.1:0", "--hold", "--linger", "9999")
    address, _ = listening(server)
    joining = ("--coordinator", address, "--linger", "9999")
    workers = [
        start("taihu.worker", *FLAGS, "--rank", str(rank), *joining, "--json", f"{rank}.json", "--log-format", "json")
        for rank in range(2)
    ]
    wait_for(lambda: any(member.progress.step > 3 for member in fetch_status(address, 600).members), "no steps")
    server.terminate()
    assert [process.wait(timeout=600) for process in (server, *workers)] == [130, 130, 130]

    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["stopped"]
    assert first["stop_reason"] == "server 0: interrupted by SIGTERM"
    assert (first["steps"], first["parameters_sha256"]) == (second["steps"], second["parameters_sha256"])
    path = tmp_path / f"lake-step-{first['steps']}.safetensors"
    assert first["saved"] == str(path)
    assert load_model(path).model.layout.elements
    assert f'"saved": "{path}"' in (tmp_path / "1.log").read_text()
