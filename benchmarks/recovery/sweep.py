"""One fault at one named point of one member, for all of them: `python -m benchmarks sweep --help`.

Each cell is a small run by `taihu train` on this machine whose job asks for one fault (docs/chaos.md): SIGKILL,
SIGSTOP with SIGCONT after a minute, SIGTERM, or all connections cut. Within 2 x lost_after_s everybody has to have
gone on, or to have ended with an error that names the member; a run that went on ends with the parameters of the
undisturbed one; and nothing of it stays behind.

Cells that the file of --json holds are not measured again, unless --only names them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from benchmarks.base.rows import load_rows, publish, save_rows
from benchmarks.recovery.chaos import daemons_of
from taihu.core.chaos.memory import ChaosMemory
from taihu.core.chaos.points import Point

__all__ = ["Cell", "cells", "judged", "table"]

_PAGE: Final = "measured by benchmarks.recovery.sweep"
_LOST_AFTER_S: Final = 10.0
_GIVEN_UP_S: Final = 200.0
_LOOK_S: Final = 0.1
_MARK: Final = "SWEEP_CELL"
_FAULTS: Final = MappingProxyType(
    {"kill": "SIGKILL", "stop": "SIGSTOP, SIGCONT after 60 s", "terminate": "SIGTERM", "drop": "connections cut"}
)
_RUNS: Final = MappingProxyType(
    {
        "servers": ("--servers", "2", "--workers", "2", "--set", "exchange.transport=tcp"),
        "ring": ("--exchange", "ring", "--workers", "2", "--set", "exchange.transport=tcp"),
    }
)
_JOB: Final = (
    *("--model", "mlp", "--steps", "40", "--set", "cluster.threads=1", "--set", "checkpoint.every_steps=10"),
    *("--set", f"cluster.lost_after_s={_LOST_AFTER_S}", "--set", "cluster.heartbeat_s=0.2"),
)
_MEMBERS: Final = MappingProxyType(
    {"servers": ("server 0", "server 1", "worker 0", "worker 1"), "ring": ("worker 0", "worker 1")}
)
_STEP: Final = 12
_OF_STEPS: Final = frozenset(
    {Point.PUSH, Point.SUM, Point.UPDATE, Point.FETCH, Point.CHECKPOINT_WRITE, Point.CHECKPOINT_RENAME}
)
_OF_WORKERS: Final = frozenset({Point.EVALUATION, Point.SAVE})
_OF_SERVERS: Final = frozenset({Point.SUM, Point.UPDATE})


@dataclass(frozen=True)
class Cell:
    """One fault in one run."""

    run: str
    fault: str
    member: str
    point: str

    @property
    def name(self) -> str:
        """The words that --only takes."""
        return f"{self.run}: {self.fault} {self.member} at {self.point}"

    @property
    def asked(self) -> str:
        """The fault as the job has it."""
        after = f" after step {_STEP}" if self.point in _OF_STEPS else ""
        lasts = " for 60 s" if self.fault == "stop" else ""
        return f"{self.fault} {self.member} at {self.point}{after}{lasts}"


def cells() -> Iterator[Cell]:
    """All cells; whether a member keeps a part of checkpoints shows when it runs."""
    for run, members in _MEMBERS.items():
        for point in Point:
            for member in members:
                is_server = member.startswith("server")
                passes_not = point in (_OF_WORKERS if is_server else _OF_SERVERS if run == "servers" else ())
                for fault in () if passes_not else _FAULTS:
                    yield Cell(run, fault, member, point.value)


def measure(cell: Cell, whole: dict[str, str]) -> dict[str, Any]:
    """The row of a cell; `whole` are the parameters of the undisturbed runs."""
    with tempfile.TemporaryDirectory() as name:
        row = _observed(Path(name), cell.asked, cell.run, cell.name)
    row["same"] = row["sha256"] == whole[cell.run]
    return {**asdict(cell), **row, "problems": judged(cell, row)}


def judged(cell: Cell, row: dict[str, Any]) -> list[str]:
    """Everything that did not hold in a cell, in words."""
    if row["fault_s"] is None:
        return [] if row["code"] == 0 else [f"exit code {row['code']} without the fault: {row['words']}"]
    found = [f"{what} left: {', '.join(names)}" for what, names in row["left"].items() if names]
    if row["code"] is None:
        return [row["words"]]
    within = 2 * _LOST_AFTER_S
    if row["seconds"] > within:
        found.append(f"{row['seconds']:.1f} s until all had gone on or ended, not {within:g} s")
    if row["code"] == 0 and not row["same"]:
        found.append("other parameters than the undisturbed run's")
    if row["code"] == 130 and cell.fault != "terminate":
        found.append("the run was stopped")
    if row["code"] and cell.member not in row["words"]:
        found.append(f"the error names not {cell.member}: {row['words']}")
    return found


def _observed(folder: Path, fault: str, run: str, mark: str) -> dict[str, Any]:
    """One run and what stayed of it; its seconds are from the fault to the first step after it, or to the end."""
    before, own = _shared_memory(), set[int]()
    mark = f"{mark} {folder.name}"
    process = _training(folder, fault, run, mark)
    deadline = time.monotonic() + _GIVEN_UP_S
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        with suppress(OSError):  # it has just ended
            own.update(daemons_of(process.pid).values())
    ended_s = time.time()
    if process.poll() is None:
        return {**_given_up(process, mark), "left": {}}
    # Helpers and streams that close behind the end are given a moment.
    _wait_while(lambda: bool(_processes(mark)), 2.0)
    left = {
        "processes": _processes(mark),
        "files": _stray_files(folder),
        "shared memory": [name for name in _shared_memory() - before if int(name.split("-")[2]) in own],
    }
    _end(mark)
    told = ChaosMemory(folder / "run" / "chaos").happened()
    at = min((each["time"] for each in told.values()), default=None)
    resumed = [each for each in _resumed(folder / "run") if at is not None and each > at]
    return {
        "code": process.returncode,
        "words": _last_line(folder / "errors") or _result(folder / "results.json", "stop_reason"),
        "fault_s": at,
        "seconds": 0.0 if at is None else round(min([ended_s, *resumed]) - at, 2),
        "went_on": bool(resumed),
        "sha256": _result(folder / "results.json", "parameters_sha256"),
        "left": left,
    }


def _training(folder: Path, fault: str, run: str, mark: str) -> subprocess.Popen[bytes]:
    (folder / "tmp").mkdir()
    command = [sys.executable, "-P", "-m", "taihu", "train", *_JOB, *_RUNS[run]]
    if fault:
        command += ["--set", f"chaos.faults={json.dumps([fault])}"]
    command += ["--run-dir", str(folder / "run"), "--json", str(folder / "results.json"), "--quiet"]
    with (folder / "errors").open("wb") as errors:
        return subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, _MARK: mark, "TMPDIR": str(folder / "tmp")},
        )


def _given_up(process: subprocess.Popen[bytes], mark: str) -> dict[str, Any]:
    """The row of a run that did not end; all of it is ended."""
    words = f"it still ran after {_GIVEN_UP_S:g} s"
    process.kill()
    _end(mark)
    process.wait()
    return {
        "code": None,
        "words": words,
        "fault_s": 0.0,
        "seconds": _GIVEN_UP_S,
        "went_on": False,
        "sha256": "",
    }


def _processes(mark: str) -> list[str]:
    """The command lines of living processes that a run started."""
    found, variable = [], f"{_MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended since, or another user's
            if variable in (folder / "environ").read_bytes().split(b"\0"):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                found.append(f"{folder.name}: {b' '.join(words[:8]).decode(errors='replace')}")
    return found


def _end(mark: str) -> None:
    for each in _processes(mark):
        with suppress(ProcessLookupError):
            os.kill(int(each.partition(":")[0]), signal.SIGKILL)


def _wait_while(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while condition() and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def _stray_files(folder: Path) -> list[str]:
    """Temporary files, and files of the run's folder that are not whole."""
    # What a run that failed has begun of a checkpoint is removed by the next one in that folder.
    whole = (folder / "results.json").exists()
    strays = [*(folder / "tmp").rglob("*"), *((folder / "run").rglob("*.partial") if whole else ())]
    return sorted(str(path.relative_to(folder)) for path in strays)


def _shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("taihu-*")}  # noqa: S108 - looked at


def _resumed(run: Path) -> list[float]:
    """The times of the first steps behind a checkpoint."""
    path = run / "events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [datetime.fromisoformat(each["time"]).timestamp() for each in events if each["event"] == "resumed"]


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _result(path: Path, key: str) -> str:
    return str(json.loads(path.read_text())[key] or "") if path.exists() else ""


def undisturbed(run: str) -> str:
    """The hash of the parameters of a run without a fault."""
    with tempfile.TemporaryDirectory() as name:
        row = _observed(Path(name), "", run, f"{run}: undisturbed")
    if row["code"] != 0:
        raise SystemExit(f"error: the undisturbed run of {run} failed: {row['words']}")
    return str(row["sha256"])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown: a line for each fault, and below one for each cell that did not hold."""
    happened = [row for row in rows if row["fault_s"] is not None]
    lines = ["| fault | went on, the longest | ended, the longest |", "|---|---|---|"]
    for fault, words in _FAULTS.items():
        own = [row for row in happened if row["fault"] == fault]
        if own:
            shown = (_longest([row for row in own if (row["code"] == 0) is well]) for well in (True, False))
            lines.append(f"| {words} | {' | '.join(shown)} |")
    failed = [row for row in rows if row["problems"]]
    lines += ["", f"{len(happened) - len(failed)} of {len(happened)} cells hold."]
    if failed:
        lines += [
            "",
            *(f"- {_cell_of(row).name}: {'; '.join(row['problems'])}" for row in failed),
        ]
    return "\n".join(lines)


def _cell_of(row: dict[str, Any]) -> Cell:
    return Cell(row["run"], row["fault"], row["member"], row["point"])


def _longest(rows: Sequence[dict[str, Any]]) -> str:
    """The number of these cells, and which of them took longest."""
    if not rows:
        return "-"
    longest = max(rows, key=lambda row: row["seconds"])
    failed = sum(bool(row["problems"]) for row in rows)
    told = f"{len(rows)}: {longest['seconds']:.1f} s, {longest['run']} at {longest['point']}"
    return f"{told}; **{failed} failed**" if failed else told


def main() -> None:
    """Measure the cells that are asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="WORDS", help="cells whose name has these words, measured again")
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time")
    parser.add_argument("--json", type=Path, help="write the rows, and measure those that it lacks")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    rows = load_rows(options.json)
    wanted = [cell for cell in cells() if options.only is None or options.only in cell.name]
    if options.only is not None:
        again = {cell.name for cell in wanted}
        rows = [row for row in rows if _cell_of(row).name not in again]
    known = {_cell_of(row) for row in rows}
    missing = [cell for cell in wanted if cell not in known]
    whole = {run: undisturbed(run) for run in _RUNS if any(cell.run == run for cell in missing)}
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(partial(measure, whole=whole), missing):
            rows.append(row)
            save_rows(options.json, rows)
            took = "not passed" if row["fault_s"] is None else f"exit {row['code']} after {row['seconds']:.1f} s"
            name = _cell_of(row).name
            print(f"{name}: {took}{''.join(f'; {each}' for each in row['problems'])}", flush=True)
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
