"""Records once what each test of a core runs: which lines of the core's files, in how much CPU time."""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coverage import Coverage

__all__ = ["Recording", "Seen"]


@dataclass(frozen=True)
class Seen:
    """The code that one test ran: `lines` by file of the core, and the CPU time of all of it."""

    seconds: float
    lines: dict[str, list[int]]

    def reaches(self, path: str, lines: Iterable[int] | None) -> bool:
        """Whether it ran one of the lines of a file, or any where `lines` is None."""
        own = self.lines.get(path, [])
        return bool(own) if lines is None else not set(own).isdisjoint(lines)


class Recording:
    """A file that holds it for as long as the core's files, the scenarios and the test's own file stay as they are.

    `files`, `scenarios` and `tests` are paths relative to `root`; tests are named as pytest does.
    """

    def __init__(
        self, file: Path, root: Path, files: Sequence[str], scenarios: Sequence[str], tests: Sequence[str]
    ) -> None:
        self._file, self._root, self._files = file, root, files
        self._core = self._digest([*files, *scenarios])
        self._digests = {test: self._digest([test]) for test in tests}
        self.seen: dict[str, Seen] = {}
        if file.exists():
            rows = json.loads(file.read_text("utf-8"))
            if rows["core"] == self._core:
                known = {name: row for name, row in rows["tests"].items() if row["digest"] == self._digest_of(name)}
                self.seen = {name: Seen(row["seconds"], row["lines"]) for name, row in known.items()}

    @contextmanager
    def recording(self) -> Iterator[Callable[[str, Callable[[], None]], None]]:
        """A function for the time of the block, which runs what it is given under the name of a test."""
        coverage = Coverage(
            data_file=None, config_file=False, include=[str(self._root / file) for file in self._files]
        )
        coverage.set_option("run:disable_warnings", ["no-data-collected"])  # tests of nothing in these files, or none
        seconds: dict[str, float] = {}

        def run(name: str, test: Callable[[], None]) -> None:
            coverage.switch_context(name)
            begun = time.process_time()
            test()
            seconds[name] = time.process_time() - begun

        coverage.start()
        try:
            yield run
        finally:
            coverage.stop()
        data = coverage.get_data()
        lines: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for file in self._files:
            for line, names in data.contexts_by_lineno(str(self._root / file)).items():
                for name in names:
                    lines[name][file].append(line)
        self.seen |= {name: Seen(taken, lines[name]) for name, taken in seconds.items()}

    def save(self) -> None:
        """Write it down."""
        rows = {
            name: {"digest": self._digest_of(name), "seconds": seen.seconds, "lines": seen.lines}
            for name, seen in self.seen.items()
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps({"core": self._core, "tests": rows}), encoding="utf-8")

    def _digest_of(self, name: str) -> str:
        return self._digests.get(name.partition("::")[0], "")

    def _digest(self, files: Sequence[str]) -> str:
        return hashlib.sha256(b"".join((self._root / file).read_bytes() for file in files)).hexdigest()
