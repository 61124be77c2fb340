"""Steps that do not wait for all workers: staleness, throughput, accuracy: `python -m benchmarks consistency --help`.

Two servers and three workers train a small network on Fashion-MNIST, each as long as the others and stopped then. A
step takes 60 ms on two workers, and three times as long on the third, which costs no processor: workers do not take
it from each other. The accuracy is that of the model at the stop. What servers recorded is made again, twice for
`async`: by `taihu dev replay`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.base.rows import load_rows, publish, save_rows
from benchmarks.models.by_worker import STEP_SECONDS

__all__ = ["POLICIES", "measure", "table"]

POLICIES: Final = ("ssp:0", "ssp:1", "ssp:4", "async", "bsp:N-1")
_PAGE: Final = "measured by benchmarks.learning.consistency"
_MODEL: Final = Path(__file__).parents[1] / "models" / "by_worker.py"
_SERVERS: Final = 2
_PACES: Final = (1, 1, 3)
_STEP_S: Final = 0.06
_LONGEST_S: Final = 300.0
_REPLAYS: Final = {"async": 2}
_JOB: Final = (
    *("--model", f"{_MODEL}:build", "--data", "fashion-mnist", "--batch", "32", "--steps", "1000000", "--lr", "0.1"),
    *("--set", "optimizer.momentum=0", "--set", "train.evaluate=false", "--set", "cluster.threads=1"),
    *("--set", "checkpoint.dir=none", "--set", f"cluster.servers={_SERVERS}"),
    *("--set", f"cluster.workers={len(_PACES)}", "--set", "exchange.transport=tcp"),
)


class Daemons:
    """A run of servers and workers of several paces in `folder`; a context manager that ends what is left of it."""

    def __init__(self, folder: Path, policy: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.folder, self.run = folder, folder / "run"
        flags = [*_JOB, "--consistency", policy, "--coordinator", address, "--set", f"run.order={folder / 'order'}"]
        self.processes = [
            self._start("ps_server", index, [*flags, "--bind", address if index == 0 else "127.0.0.1:0"])
            for index in range(_SERVERS)
        ]
        for rank, pace in enumerate(_PACES):
            own = ["--set", f"run.dir={self.run}"] if rank == 0 else []
            self.processes.append(self._start("worker", rank, [*flags, *own], pace))

    def _start(self, module: str, rank: int, flags: Sequence[str], pace: int = 0) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", f"taihu.{module}", "--rank", str(rank), *flags]
        command += ["--json", str(self.folder / f"{module}-{rank}.json"), "--log-format", "json", "--linger", "0"]
        environment = {**os.environ, STEP_SECONDS: str(pace * _STEP_S)}
        with (self.folder / f"{module}-{rank}.log").open("wb") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def has_begun(self) -> bool:
        """Whether steps are told of."""
        steps = self.run / "steps.csv"
        return steps.exists() and len(steps.read_text().splitlines()) > 1

    def stop(self) -> None:
        """End the run in order."""
        self.processes[_SERVERS].send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(_LONGEST_S)

    def __enter__(self) -> Daemons:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def measure(policy: str, seconds: float) -> dict[str, Any]:
    """One row."""
    with tempfile.TemporaryDirectory() as name, Daemons(Path(name), policy) as daemons:
        deadline = time.monotonic() + _LONGEST_S
        while not daemons.has_begun():
            if time.monotonic() > deadline or any(process.poll() is not None for process in daemons.processes):
                raise SystemExit("error: the run does not begin\n" + _logs(daemons.folder))
            time.sleep(0.05)
        start, load = time.monotonic(), os.getloadavg()[0]
        time.sleep(seconds)
        took_s = time.monotonic() - start
        daemons.stop()
        try:
            workers = [_results(daemons.folder / f"worker-{rank}.json") for rank in range(len(_PACES))]
            servers = [_results(daemons.folder / f"ps_server-{index}.json") for index in range(_SERVERS)]
        except OSError:
            raise SystemExit("error: the run has left no results\n" + _logs(daemons.folder)) from None
        counted = [each["staleness"] for each in servers if each["staleness"] is not None]
        row = {
            "policy": policy,
            "seconds": took_s,
            "load": load,
            "steps": [each["steps"] for each in workers],
            "staleness": counted[0]["steps"] if counted else {"0": len(_PACES) * workers[0]["steps"]},
            "dropped": counted[0]["dropped"] if counted else 0,
            "accuracy": _accuracy(daemons.run),
            "sha256": workers[0]["parameters_sha256"],
        }
        return {**row, "replayed": [_replayed(daemons) for _ in range(_REPLAYS.get(policy, 1))] if counted else []}


def _results(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def _logs(folder: Path) -> str:
    return "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in sorted(folder.glob("*.log")))


def _accuracy(run: Path) -> float:
    command = ["evaluate", str(run / "model.safetensors"), "--model", f"{_MODEL}:build", "--json", "-"]
    return float(json.loads(_taihu(*command))["test_accuracy"])


def _replayed(daemons: Daemons) -> str:
    told = daemons.folder / "replayed.json"
    _taihu("dev", "replay", str(daemons.run), "--json", str(told))
    return str(_results(told)["parameters_sha256"])


def _taihu(*arguments: str) -> str:
    command = [sys.executable, "-P", "-m", "taihu", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| consistency | steps of each worker | gradients a second | staleness in steps: share | most | too late "
        "| accuracy | made again |",
        "|" + "---|" * 8,
    ]
    for row in rows:
        entered = sum(row["staleness"].values())
        shares = ", ".join(f"{bound}: {count / entered:.0%}" for bound, count in row["staleness"].items())
        most = max(row["staleness"], key=lambda bound: float("inf") if bound == "more" else int(bound))
        steps = ", ".join(map(str, row["steps"]))
        late = f"{row['dropped'] / (entered + row['dropped']):.0%}"
        same = sum(each == row["sha256"] for each in row["replayed"])
        again = f"{same} of {len(row['replayed'])} the same bits" if row["replayed"] else "-"
        rate, accuracy = f"{entered / row['seconds']:.1f}", f"{row['accuracy']:.2%}"
        cells = (row["policy"], steps, rate, shares, most, late, accuracy, again)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default=",".join(POLICIES), help="separated by commas")
    parser.add_argument("--seconds", type=float, default=40.0, help="of training, for each")
    parser.add_argument("--json", type=Path, help="write the rows, and measure those that it lacks")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    rows = load_rows(options.json)
    for policy in options.policies.split(","):
        if policy not in [row["policy"] for row in rows]:
            rows.append(measure(policy, options.seconds))
            save_rows(options.json, rows)
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
