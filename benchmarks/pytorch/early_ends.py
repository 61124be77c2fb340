"""Early ends of workers, by the way in which they end: `python -m benchmarks early_ends --help`.

Each run has one worker that ends otherwise than the others, by the script of the tests: a row tells how the run
ended, and the seconds from that worker's end, or from the last thing it did as the others do, to the end of all.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

__all__ = ["WAYS", "Row", "row_of"]

SCRIPT: Final = Path(__file__).parents[2] / "tests" / "with_torch" / "scripts" / "ends.py"
WAYS: Final = (
    "sys.exit(3)",
    "os._exit(3)",
    "SIGKILL",
    "returns",
    "no_sync",
    "calls",
    "closures",
    "never begins",
)
_LIMIT_S: Final = 120.0


@dataclass(frozen=True)
class Row:
    """A run: its exit code, None where it did not end, seconds from the odd worker's turn on, and its last line."""

    way: str
    servers: int
    workers: int
    who: int
    code: int | None
    seconds: float
    line: str

    def __str__(self) -> str:
        through = f"{self.servers} server" if self.servers else "ring"
        code = "hangs" if self.code is None else str(self.code)
        return f"| {self.way} | {through} | {self.workers} | {self.who} | {code} | {self.seconds:.1f} | {self.line} |"


def row_of(way: str, servers: int, workers: int, who: int) -> Row:
    """Run the script through `servers`, or around a ring, with worker `who` ending its `way`."""
    through = ["--servers", str(servers)] if servers else []
    with tempfile.TemporaryDirectory() as name:
        mark = Path(name) / "turn"
        command = [sys.executable, "-P", "-m", "taihu", "run", "--workers", str(workers), "--quiet", *through]
        code: int | None = None
        said = ""
        try:
            done = subprocess.run(
                [*command, "--run-dir", "none", "--logs", f"{name}/logs", str(SCRIPT), way, str(who)],
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
                cwd=name,
                env={**os.environ, "MARK": str(mark)},
            )
            code, said = done.returncode, done.stderr
        except subprocess.TimeoutExpired:
            pass
        seconds = time.time() - mark.stat().st_mtime if mark.exists() else float("nan")
    last = said.strip().splitlines()[-1:] or [""]
    return Row(way, servers, workers, who, code, seconds, last[0].partition("; log: ")[0])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table; exit with 1 where a run hangs, or ends well."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks early_ends", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ways", nargs="*", default=WAYS, choices=WAYS, metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--workers", nargs="*", type=int, default=[2, 3], help="numbers of workers (2 3)")
    parser.add_argument(
        "--servers", nargs="*", type=int, default=[0, 1], help="numbers of servers, 0 for a ring (0 1)"
    )
    options = parser.parse_args(arguments)
    print("| way | through | workers | who | exit code | seconds | last line |\n|---|---|---|---|---|---|---|")
    is_good = True
    for way, servers, workers in product(options.ways, options.servers, options.workers):
        for who in sorted({0, workers - 1}):
            row = row_of(way, servers, workers, who)
            print(row, flush=True)
            is_good = is_good and row.code not in (None, 0)
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
