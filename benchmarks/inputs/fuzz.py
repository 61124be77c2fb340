"""Parsers that are given anything: `python -m benchmarks fuzz`.

Inputs that the parsers take are changed at random, and given to them: each ends as it is documented, within a time,
without taking memory that grows, and without changing what a refused input must not. The targets are those of the
tests. Each gets --inputs of them, a million by default, or as many as --seconds allow. With --coverage, where
atheris is installed, inputs are those by which code is reached that no other has reached. What ends otherwise is
written into tests/testdata/fuzz with --keep, and is a test then. Prints a row for each target.

Examples:
  python -m benchmarks fuzz --seconds 60
  python -m benchmarks fuzz --only frame,sections --inputs 1000000
  python -m benchmarks fuzz --only model --coverage --seconds 600
"""

from __future__ import annotations

import argparse
import hashlib
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Final

from benchmarks.inputs.fuzzing.edits import LARGEST, drawn, edited
from benchmarks.inputs.fuzzing.table import CORPUS, TARGETS, corpus_of
from benchmarks.inputs.fuzzing.target import Target

__all__ = ["main"]

_LONGEST_S: Final = 10
"""The processor's time that one input may take."""
_LONGEST_WAIT_S: Final = 120
"""The time that one input may take, waits included; what else the machine does can hold it up."""
_MOST_GROWTH: Final = 64 << 20
"""The bytes by which the process may grow in a target's run, once it has seen a thousand inputs."""
_WARM: Final = 1000
_HEAD: Final = "target               inputs      taken  µs/input  growth MB  found"


class HangError(Exception):
    """An input takes too long."""


@contextmanager
def _bounded() -> Iterator[None]:
    def ring(number: int, _: FrameType | None) -> None:
        raise HangError(f"more than {_LONGEST_S if number == signal.SIGPROF else _LONGEST_WAIT_S} s")

    before = {number: signal.signal(number, ring) for number in (signal.SIGALRM, signal.SIGPROF)}
    try:
        yield
    finally:
        _allow(0, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _allow(busy_s: float, wait_s: float) -> None:
    """End what takes longer from now on; 0 for no end."""
    signal.setitimer(signal.ITIMER_PROF, busy_s)
    signal.setitimer(signal.ITIMER_REAL, wait_s)


def _folder() -> Path | None:
    """Memory, where there is some for files: on a disk most of the time would go into making them."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it
    return memory if memory.is_dir() else None


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Run:
    """A target's run: counts, and what was found."""

    def __init__(self, target: Target, folder: Path, keep: bool) -> None:
        self.target = target
        self.found: dict[str, bytes] = {}
        self._call = target.make(folder)
        self._keep = keep
        self.inputs = self.taken = 0
        self._resident = 0
        self._begun_s = time.monotonic()

    def give(self, data: bytes) -> None:
        """Give an input to the target, and note how it ends."""
        self.inputs += 1
        _allow(_LONGEST_S, _LONGEST_WAIT_S)
        try:
            self.taken += self.target.takes(self._call, data)
        except Exception as error:
            self._note(error, data)
        finally:
            _allow(0, 0)
        if self.inputs == _WARM:
            self._resident = _resident_bytes()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._begun_s

    @property
    def growth(self) -> int:
        """Bytes by which the process has grown."""
        return max(0, _resident_bytes() - self._resident) if self._resident else 0

    def row(self) -> str:
        """The row of the table."""
        grown = self.growth
        problem = f"grew by more than {_MOST_GROWTH >> 20} MB " if grown > _MOST_GROWTH else ""
        return (
            f"{self.target.name:18} {self.inputs:8,} {self.taken:10,} "
            f"{1e6 * self.seconds / max(1, self.inputs):9.0f} "
            f"{grown / 1e6:10.1f}  {problem}{', '.join(self.found) or 'nothing'}"
        )

    def _note(self, error: BaseException, data: bytes) -> None:
        key = f"{type(error).__name__}: {' '.join(str(error).split())[:80]}"
        if key in self.found:
            return
        self.found[key] = data
        print(f"  {self.target.name}: {error!r}\n    {data[:200]!r}", file=sys.stderr)
        if self._keep:
            folder = CORPUS / self.target.name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{hashlib.sha256(data).hexdigest()[:16]}.bin").write_bytes(data)


def _at_random(run: Run, inputs: int, seconds: float, seed: int) -> None:
    seeds = [*run.target.seeds, *corpus_of(run.target.name)]
    random_ = random.Random(seed)  # noqa: S311 - no secret
    for data in seeds:
        run.give(data)
    while run.inputs < inputs and run.seconds < seconds:
        run.give(edited(random_.choice(seeds), drawn(random_), random_.choice(seeds)))


def _by_coverage(run: Run, inputs: int, seconds: float) -> None:
    """Runs libFuzzer, which ends the process."""
    atheris: Any = import_module("atheris")

    give: Callable[[bytes], None] = run.give
    with TemporaryDirectory() as corpus:
        for number, data in enumerate((*run.target.seeds, *corpus_of(run.target.name))):
            (Path(corpus) / str(number)).write_bytes(data)
        limits = [f"-runs={inputs}", f"-max_total_time={int(seconds)}", f"-max_len={LARGEST}", "-rss_limit_mb=4096"]
        atheris.Setup([sys.argv[0], *limits, corpus], give)
        try:
            atheris.Fuzz()
        finally:
            print(run.row())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the number of targets of which something was found."""
    text = __doc__ or ""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of targets, with commas; default: all")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of each target")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of each target at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--coverage", action="store_true", help="by atheris; one target")
    parser.add_argument("--keep", action="store_true", help="keep what is found as tests")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if options.coverage and len(names) != 1:
        parser.error("--coverage takes one target, by --only")
    found = 0
    print(_HEAD)
    for name in names:
        with TemporaryDirectory(dir=_folder()) as folder, _bounded():
            run = Run(TARGETS[name], Path(folder), options.keep)
            if options.coverage:
                _by_coverage(run, options.inputs, min(options.seconds, 1e6))
            else:
                _at_random(run, options.inputs, options.seconds, options.seed)
                print(run.row(), flush=True)
            found += bool(run.found) or run.growth > _MOST_GROWTH
    return found


if __name__ == "__main__":
    sys.exit(main())
