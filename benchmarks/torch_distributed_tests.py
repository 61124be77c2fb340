"""PyTorch's own tests of torch.distributed on CPUs, against the backend `taihu`.

    pip install expecttest
    python -m benchmarks.torch_distributed_tests [--ranks 3] [--like 'test_all*'] [--json FILE]
    python -m benchmarks.torch_distributed_tests --cases-of mpi --like 'test_all_to_all*'

The cases are those that PyTorch runs for gloo (torch.testing._internal.distributed.distributed_test), or for MPI, for
which alone it tests transfers from all to all on CPUs. Then the name is replaced, nothing else. Each case runs in
forks of this process. Not in the suite: it takes minutes, and needs what PyTorch's developers install.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import multiprocessing
import os
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

__all__ = ["main"]


class Outcomes(unittest.TestResult):
    """The outcome of each case: passed, skipped or failed, and why; one line is printed for each."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, str]] = []
        self._start = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        """A case begins."""
        super().startTest(test)
        self._start = time.monotonic()

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        """A case has passed."""
        super().addSuccess(test)
        self._add(test, "passed", "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        """A case does not apply."""
        super().addSkip(test, reason)
        self._add(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        """A case has failed."""
        super().addFailure(test, err)
        self._add(test, "failed", str(err[1]))

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        """A case has raised something."""
        super().addError(test, err)
        self._add(test, "failed", str(err[1]))

    def _add(self, test: unittest.TestCase, outcome: str, reason: str) -> None:
        name = test.id().rsplit(".", 1)[-1]
        said = next((line for line in reversed(reason.strip().splitlines()) if line.strip()), "")
        self.rows.append({"case": name, "outcome": outcome, "reason": reason[-2000:]})
        print(f"{outcome:8} {time.monotonic() - self._start:6.1f} s  {name}  {said[:120]}", flush=True)


def main() -> None:
    """Run the cases, and say what came of them."""
    parser = argparse.ArgumentParser(description="PyTorch's own tests against the backend taihu")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--like", default="*", help="names of cases, such as test_all_reduce*")
    parser.add_argument("--backend", default="taihu")
    parser.add_argument("--cases-of", default="gloo", help="the backend whose cases are chosen: gloo or mpi")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cases = _cases(arguments.backend, arguments.cases_of, arguments.ranks, folder)
        outcomes = Outcomes()
        unittest.TestSuite(
            case for case in cases if fnmatch.fnmatch(case.id().rsplit(".", 1)[-1], arguments.like)
        ).run(outcomes)
    counts = {key: sum(row["outcome"] == key for row in outcomes.rows) for key in ("passed", "skipped", "failed")}
    print(counts)
    if arguments.json:
        arguments.json.write_text(json.dumps(outcomes.rows, indent=1) + "\n")


class _Name(str):
    """The name of a backend that takes the part of gloo wherever a case asks for it."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, str(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _cases(backend: str, cases_of: str, ranks: int, folder: str) -> list[unittest.TestCase]:
    # The module reads these when it is imported, and chooses by them what can run.
    os.environ.update(BACKEND=cases_of, WORLD_SIZE=str(ranks), TEMP_DIR=folder, INIT_METHOD=f"file://{folder}/store")
    importlib.import_module("taihu.torch.backend")
    tests: Any = importlib.import_module("torch.testing._internal.distributed.distributed_test")
    tests.BACKEND = _Name(backend)

    def set_up(self: Any) -> None:
        tests.TestDistBackend.setUp(self)
        self._start_processes(multiprocessing.get_context("fork").Process)

    suite = type("Cases", (tests.TestDistBackend, tests.DistributedTest._DistTestBase), {"setUp": set_up})
    return list(unittest.defaultTestLoader.loadTestsFromTestCase(suite))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
