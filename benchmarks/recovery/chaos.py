"""Processes of one run killed at random, again and again: `python -m benchmarks chaos --help`.

`taihu train` of each kind runs on this machine, and every few seconds one of its processes, drawn by a seed over all
servers (the coordinator is server 0, in a ring worker 0) and workers, gets SIGKILL, whatever it does: it starts, or
takes a step, or writes a checkpoint. When so many have been killed, the run is left alone until it ends: it needs
enough steps for that. Then the same job runs undisturbed. What counts is whether both end with the same parameters,
to the bit. With `--hosts` each process of the disturbed run has a host of its own, links between them, and memory
that nobody else sees; a process that was killed is started again on its host. That needs root and iproute2.

Rows that the file of --json holds are not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

import numpy as np

from benchmarks.base.rows import load_rows, publish, save_rows
from benchmarks.recovery.on_hosts import OnHosts
from taihu.core.base.words import parse_rate

__all__ = ["KINDS", "daemons_of", "disturbed", "table"]

_PAGE: Final = "measured by benchmarks.recovery.chaos"
_MODEL: Final = ("--model", "cifar10_quick", "--data", "synthetic:3x32x32:samples=2048", "--batch", "8")
_WORLD: Final = ("--workers", "3", "--set", "cluster.threads=1", "--set", "train.evaluate=false")
_SERVERS: Final = ("--servers", "2")
KINDS: Final = MappingProxyType(
    {
        "servers": _SERVERS,
        "ring": ("--exchange", "ring"),
        "dlgs by a named plan": (
            *(*_SERVERS, "--compression", "dlgs", "--density", "0.01"),
            *("--set", "exchange.plan=bucket:100kB", "--set", "compression.threshold=group"),
        ),
        "Adam + bf16 + stage 3": (*_SERVERS, "--optimizer", "adam", "--precision", "bf16", "--zero", "3"),
        "spread layers + Adam": (
            *_SERVERS,
            "--fc",
            "shard",
            "--optimizer",
            "adam",
            "--set",
            "exchange.fc_inputs=own",
        ),
        "spread layers in a ring + stage 3": ("--exchange", "ring", "--fc", "shard", "--zero", "3"),
    }
)
"""Flags of the runs by what they are."""


def disturbed(
    flags: Sequence[str], *, kills: int, every_s: float, seed: int, folder: Path, rate_bits: float | None = None
) -> dict[str, Any]:
    """One run of which so many processes are killed, `every_s` apart in the mean; its results and what was killed.

    Each has a host of its own where these have links of `rate_bits`.
    """
    generator = np.random.default_rng(seed)
    victims: Counter[str] = Counter()
    killed_s: list[float] = []
    start = time.monotonic()
    with _on_hosts(folder, flags, rate_bits) if rate_bits else _OnOneHost(folder, flags) as run:
        while run.poll() is None and sum(victims.values()) < kills:
            time.sleep(generator.exponential(every_s))
            daemons = run.daemons()
            if daemons and run.poll() is None:
                name = str(generator.choice(sorted(daemons)))
                try:
                    os.kill(daemons[name], signal.SIGKILL)
                except ProcessLookupError:
                    continue
                victims[name] += 1
                killed_s.append(time.time())
        code = run.wait()
    if code:
        raise SystemExit(f"error: the run ended with exit code {code} after {sum(victims.values())} kills")
    events = [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]
    resumed = [datetime.fromisoformat(each["time"]).timestamp() for each in events if each["event"] == "resumed"]
    return {
        "kills": dict(sorted(victims.items())),
        "generations": 1 + sum(each["event"] == "training" for each in events[1:]),
        "recovery_seconds": recoveries(killed_s, resumed),
        "made_again": sum(each.get("made_again", 0) for each in events if each["event"] == "resumed"),
        "seconds": time.monotonic() - start,
        **_results(folder),
    }


def recoveries(killed_s: Sequence[float], resumed_s: Sequence[float]) -> list[float]:
    """Seconds from each kill to the first step after it, of kills between which and that step there was no other."""
    found = []
    for killed, following in zip(killed_s, [*killed_s[1:], math.inf], strict=True):
        first = min((each for each in resumed_s if each > killed), default=math.inf)
        if first < following:
            found.append(round(first - killed, 3))
    return found


class _OnOneHost:
    """A run of `taihu train`; a context manager."""

    def __init__(self, folder: Path, flags: Sequence[str]) -> None:
        self._process = _training(folder, flags)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.wait()

    def daemons(self) -> dict[str, int]:
        return daemons_of(self._process.pid)

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self) -> int:
        return self._process.wait()


def _on_hosts(folder: Path, flags: Sequence[str], rate_bits: float) -> OnHosts:
    servers = 0 if "ring" in flags else int(flags[flags.index("--servers") + 1])
    workers = int(_WORLD[_WORLD.index("--workers") + 1])
    members = [f"server {index}" for index in range(servers)] + [f"worker {rank}" for rank in range(workers)]
    return OnHosts(folder, (*_MODEL, *_WORLD, *flags), members, rate_bits)


def _training(folder: Path, flags: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "taihu", "train", *_MODEL, *_WORLD, *flags]
    command += ["--run-dir", str(folder / "run"), "--json", str(folder / "results.json"), "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def daemons_of(pid: int) -> dict[str, int]:
    """The pids of a run's processes by name."""
    found: dict[str, int] = {}
    for child in sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
        words = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode().split()
        for module, role in (("taihu.ps_server", "server"), ("taihu.worker", "worker")):
            if module in words and "--rank" in words:
                found[f"{role} {words[words.index('--rank') + 1]}"] = child
    return found


def _results(folder: Path) -> dict[str, Any]:
    results = json.loads((folder / "results.json").read_text())
    return {"steps": results["steps"], "sha256": results["parameters_sha256"]}


def measure(
    kind: str, *, kills: int, every_s: float, seed: int, steps: int, kept: int | None, hosts: str
) -> dict[str, Any]:
    """One row: the disturbed run of a kind, and whether the undisturbed one ends with the same parameters."""
    common = (*KINDS[kind], "--steps", str(steps))
    every = () if kept is None else ("--set", f"checkpoint.every_steps={kept}")
    keeping = ("--set", f"checkpoint.restarts={10 * kills}", *every)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "a").mkdir()
        (folder / "b").mkdir()
        row = disturbed(
            (*common, *keeping),
            kills=kills,
            every_s=every_s,
            seed=seed,
            folder=folder / "a",
            rate_bits=parse_rate(hosts) if hosts else None,
        )
        start = time.monotonic()
        if _training(folder / "b", common).wait():
            raise SystemExit("error: the undisturbed run failed")
        undisturbed = time.monotonic() - start
        same = _results(folder / "b")["sha256"] == row["sha256"]
    named = {"kind": _named(kind, hosts), "seed": seed, "every_steps": kept}
    return {**named, **row, "undisturbed_s": undisturbed, "same": same}


def _named(kind: str, hosts: str) -> str:
    return f"{kind}, on hosts of their own, {hosts}" if hosts else kind


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown, by the hosts that their processes had."""
    lines = [
        "| processes | runs | killed | steps made again | kill to next step, s: median, 95 %, most | same bits |",
        "|---|---:|---:|---:|---|---|",
    ]
    for place in dict.fromkeys(map(_place, rows)):
        alike = [row for row in rows if _place(row) == place]
        seconds = [each for row in alike for each in row["recovery_seconds"]]
        took = np.quantile(seconds, (0.5, 0.95, 1.0)) if seconds else ()
        shown = f"{', '.join(f'{each:.2f}' for each in took)} of {len(seconds)}" if seconds else "none alone"
        killed = sum(sum(row["kills"].values()) for row in alike)
        again, same = sum(row["made_again"] for row in alike), sum(row["same"] for row in alike)
        lines.append(f"| {place} | {len(alike)} | {killed} | {again} | {shown} | {same} of {len(alike)} |")
    return "\n".join(lines)


def _place(row: dict[str, Any]) -> str:
    """The hosts of a run's processes, as its name has them."""
    return str(row["kind"]).partition(", ")[2] or "on one host"


def main() -> None:
    """Measure what is asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS", help="from kill to kill, in the mean")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument(
        "--kept", type=int, metavar="STEPS", help="from checkpoint to checkpoint (default: a minute, as of any run)"
    )
    parser.add_argument("--hosts", default="", metavar="RATE", help="each process has one, with links such as 1gbit")
    parser.add_argument("--json", type=Path, help="write the rows, and measure those that it lacks")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    rows = load_rows(options.json)
    for kind in options.kinds.split(","):
        if _named(kind, options.hosts) not in [row["kind"] for row in rows]:
            own = {"kills": options.kills, "every_s": options.every, "seed": options.seed}
            rows.append(measure(kind, **own, steps=options.steps, kept=options.kept, hosts=options.hosts))
            save_rows(options.json, rows)
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
