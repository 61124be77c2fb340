"""Containers with agents that are killed for good, added and stopped while a run goes on, under compose.

    python -m benchmarks scaled --image localhost/taihu:latest       (as root; podman, and podman-compose in the PATH)

Three containers share the workers of deploy/job.toml. One is killed by the engine, and nobody starts it again; two
more come by `--scale`; one is stopped. Then the run ends by itself. What counts is whether it ends with the
parameters of the same job file under `taihu train`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.base.rows import publish, save_rows
from benchmarks.recovery.containers import drill_job, events_of, gone_on, local_hash, output, steps_of, until, volume

__all__ = ["table"]

_ROOT: Final = Path(__file__).parents[2]
_COMPOSE: Final = (
    "podman-compose",
    "-f",
    str(_ROOT / "deploy" / "compose.yaml"),
    "-f",
    str(_ROOT / "deploy" / "compose.agents.yaml"),
)
_SERVICES: Final = ("certs", "server", "worker")
_PAGE: Final = "measured by benchmarks.recovery.scaled"
_BEHIND: Final = 200
_KEPT: Final = 100


@contextmanager
def agents(job: Path, image: str, workers: int) -> Iterator[dict[str, str]]:
    """The job with three agents; the environment of compose. Nothing of it is left at the end."""
    environment = {
        **os.environ,
        "TAIHU_JOB": str(job),
        "TAIHU_IMAGE": image,
        "TAIHU_LINGER": "0",
        "TAIHU_WORKERS": str(workers),
    }
    try:
        _compose(environment, "up", "-d", *_SERVICES)
        yield environment
    finally:
        _compose(environment, "down", "--volumes", "--timeout", "5")


def _compose(environment: dict[str, str], *arguments: str) -> None:
    subprocess.run([*_COMPOSE, *arguments], check=True, capture_output=True, env=environment)


def come_and_go(environment: dict[str, str]) -> list[dict[str, Any]]:
    """Kill one, add two, stop one; seconds to the next step of each."""
    folder = volume("taihu_runs") / "run"
    until(lambda: steps_of(folder) > _BEHIND, "the run did not begin")
    acts: dict[str, Callable[[], object]] = {
        "`podman kill`, nobody starts it again": partial(output, "podman", "kill", "taihu_worker_2"),
        "`--scale worker=5`": partial(
            _compose, environment, "up", "-d", "--no-recreate", "--scale", "worker=5", *_SERVICES
        ),
        "`podman stop`": partial(output, "podman", "stop", "--time", "60", "taihu_worker_1"),
    }
    rows = []
    for what, act in acts.items():
        start = time.time()
        act()
        seconds = until(partial(gone_on, folder, start), f"{what}: no step since") - start
        again = [each.get("made_again", 0) for each in events_of(folder) if each["event"] == "resumed"][-1]
        rows.append({"what": what, "seconds": round(seconds, 2), "made_again": again})
        before = steps_of(folder)
        until(lambda: steps_of(folder) > before + _BEHIND, "no steps since")  # noqa: B023 - called at once
    return rows


def measure(image: str, steps: int, workers: int) -> dict[str, Any]:
    """Run it; the row."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # containers read the job as another user
        job = folder / "drill.toml"
        text = drill_job((_ROOT / "deploy" / "job.toml").read_text(), steps=steps, kept=_KEPT)
        job.write_text(text.replace("[cluster]", f"[cluster]\nworkers = {workers}"))
        local = local_hash(job, folder)
        with agents(job, image, workers) as environment:
            rows = come_and_go(environment)
            run = volume("taihu_runs") / "run"
            until(lambda: any(event["event"] == "finished" for event in events_of(run)), "the run did not finish")
            results = json.loads((run / "results.json").read_text())
    return {"steps": steps, "workers": workers, "acts": rows, "same": results["parameters_sha256"] == local}


def table(row: dict[str, Any]) -> str:
    """The row as Markdown."""
    lines = ["| | steps made again | to the next step, s |", "|---|---|---|"]
    lines += [f"| {each['what']} | {each['made_again']} | {each['seconds']:.1f} |" for each in row["acts"]]
    same = "the same bits" if row["same"] else "**differ**"
    return "\n".join((*lines, f"| parameters after {row['steps']:,} steps | {same} | |"))


def main() -> int:
    """Run it; returns 0 when both runs end with the same parameters."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default="localhost/taihu:latest")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--json", type=Path, help="write the row")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    row = measure(options.image, options.steps, options.workers)
    save_rows(options.json, [row])
    print(table(row))
    publish(table(row), _PAGE, options.docs)
    return int(not row["same"])


if __name__ == "__main__":
    sys.exit(main())
