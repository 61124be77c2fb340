"""A job beside strangers who send what nobody can read.

Starts server 0 and two workers on this machine. While they train, strangers send --calls undecodable requests to all
methods, and then some hundred of each other kind: streams whose second message is none, methods that there are not,
messages too large or swollen or badly compressed, floods of headers, broken frames of HTTP/2, other protocols,
handshakes that come to nothing (with --tls), calls that are given up. Slow connections, and watchers that take
nothing of what they are told, are there all the time. Somebody else asks for the state of the run ten times a second.

Prints a line of JSON for each kind: the calls by how they ended, and the memory of server 0 before and after. Then
the run is stopped, and runs again as far, alone. Exits with 1 where memory has grown by more than 20 MB in all,
another caller was not served, or the hashes differ.

With --tls, strangers have the certificate of a worker: those without one do not get as far as a call.

Examples:
  python -m benchmarks strangers --calls 20000          # about two minutes
  python -m benchmarks strangers --calls 20000 --tls
  python -m benchmarks strangers --calls 500 --others 50
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.base.rows import save_rows
from benchmarks.inputs.strangers import calls, raw
from benchmarks.inputs.strangers.kinds import Kind, counted_kinds
from benchmarks.inputs.strangers.run import Job, Others, Run, started
from taihu.core.process.programs.preparation import allow_open_files

__all__ = ["main"]

_ENDLESS: Final = 10_000_000
_WARM_STEPS: Final = 300
_MOST_MB: Final = 20.0
_HELD: Final = 40
_QUIET_S: Final = 3.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job beside them, and alone; 0 where all is as it should be."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks strangers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--calls", type=int, default=20_000, help="undecodable calls (default: 20000)")
    parser.add_argument("--others", type=int, default=400, help="calls of each other kind (default: 400)")
    parser.add_argument("--tls", action="store_true", help="under TLS, by somebody with a worker's certificate")
    parser.add_argument("--json", type=Path, help="write the lines as JSON there")
    options = parser.parse_args(arguments)
    allow_open_files()
    with tempfile.TemporaryDirectory() as name:
        rows, complaints = measure(Path(name), options.calls, options.others, encrypts=options.tls)
    save_rows(options.json, rows)
    for complaint in complaints:
        print(f"error: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def measure(folder: Path, count: int, others: int, *, encrypts: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """The row of each kind, and what is not as it should be."""
    job = Job(folder, encrypts)
    if encrypts:
        job.certify()
    counts: dict[str, tuple[Kind, int]] = {"undecodable": (calls.undecodable, count)}
    counts |= counted_kinds(others)
    if encrypts:
        counts["handshakes"] = (raw.handshakes, max(1, others // 5))
    with started(job, _ENDLESS) as run:
        rows, complaints = _beside(run, counts)
        run.stop()
        ended = run.results()
    with started(job, int(ended["steps"])) as alone:
        expected = alone.results()["parameters_sha256"]
    if ended["parameters_sha256"] != expected:
        complaints.append(f"after {ended['steps']} steps the hash is another one than without strangers")
    _tell(rows, {"kind": "end", "steps": ended["steps"], "sha256": ended["parameters_sha256"], "alone": expected})
    return rows, complaints


def _beside(run: Run, counts: Mapping[str, tuple[Kind, int]]) -> tuple[list[dict[str, Any]], list[str]]:
    target, rows = run.job.target(run.address), list[dict[str, Any]]()
    while run.step < _WARM_STEPS:
        time.sleep(0.1)
    with ExitStack() as stack:
        begun_mb = run.memory_mb
        others = stack.enter_context(Others(run.address, run.security))
        one_more = stack.enter_context(raw.slow(target, _HELD))
        stack.enter_context(raw.taking_nothing(target, _HELD))
        for name, (kind, count) in counts.items():
            before, begun_s = run.memory_mb, time.monotonic()
            ends = kind(target, count)
            one_more()
            row = {"kind": name, "calls": sum(ends.values()), "ends": dict(ends), "before_mb": before}
            _tell(rows, {**row, "after_mb": run.memory_mb, "seconds": round(time.monotonic() - begun_s, 1)})
    time.sleep(_QUIET_S)
    grown_mb = run.memory_mb - begun_mb
    seen = {"grown_mb": round(grown_mb, 1), "threads": run.threads, "open_files": run.open_files, "step": run.step}
    _tell(rows, {"kind": "all", **seen, "others": others.summary()})
    complaints = [f"another caller was not served: {each}" for each in others.failures[:3]]
    if grown_mb > _MOST_MB:
        complaints.append(f"the memory of server 0 has grown by {grown_mb:.1f} MB, more than {_MOST_MB:g}")
    return rows, complaints


def _tell(rows: list[dict[str, Any]], row: dict[str, Any]) -> None:
    rows.append(row)
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
