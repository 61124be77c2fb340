"""PyTorch's own tests of torch.distributed on CPUs, against the backend `taihu`.

    pip install expecttest
    python -m benchmarks torch_distributed_tests --all --json FILE --docs docs/torch_backend.md
    python -m benchmarks torch_distributed_tests [--ranks 3] [--like 'test_all*'] [--json FILE]
    python -m benchmarks torch_distributed_tests --cases-of mpi --like 'test_all_to_all*'

The cases are those that PyTorch runs for gloo (torch.testing._internal.distributed.distributed_test), or for MPI, for
which alone it tests transfers from all to all on CPUs. Then the name is replaced, nothing else. Each case runs in
forks of this process. Not in the suite: it takes minutes, and needs what PyTorch's developers install.

--all runs Gloo's cases with 4 ranks, those that want more with 8, and MPI's of all_to_all. --docs makes the table of
the file of --json, with which nothing runs if it is there.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from benchmarks.base.rows import in_page, load_rows, save_rows

__all__ = ["main", "table"]

Rows = list[dict[str, str]]

_PAGE: Final = "run by benchmarks.backend.torch_distributed_tests"
_SMALL: Final = "small world size"
# Words of cases' names, in lower case: the first line that has one of them says what a case is of.
_SUBJECTS: Final = MappingProxyType(
    {
        "DistributedDataParallel and its averagers": (
            *("ddp", "dataparallel", "data_parallel", "no_sync", "sync_bn", "syncbatchnorm", "_graph", "averag"),
            *("localsgd", "unused", "bucket", "grad_parity", "verify_model"),
        ),
        "all_to_all": ("all_to_all",),
        "all_gather": ("all_gather",),
        "reduce_scatter": ("reduce_scatter",),
        "all_reduce": ("all_reduce",),
        "reduce": ("reduce",),
        "broadcast": ("broadcast",),
        "gather": ("gather",),
        "scatter": ("scatter",),
        "barrier": ("barrier",),
        "send, recv": ("send", "recv"),
        "groups and the rest": ("",),
    }
)
# Words of what PyTorch says when it skips a case, and the column that they belong to.
_REASONS: Final = MappingProxyType(
    {"CUDA or NCCL": ("cuda", "nccl"), "torchvision": ("torchvision",), "turned off by PyTorch": ("",)}
)
_PASSED, _FAILED = "passed", "failed"
_ERROR: Final = re.compile(r"\S*Error: ")


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
        lines = [line.strip() for line in reason.splitlines() if line.strip()]
        said = ([""] + lines[-1:] + [line for line in lines if _ERROR.match(line)])[-1]
        self.rows.append({"case": name, "outcome": outcome, "reason": said})
        print(f"{outcome:8} {time.monotonic() - self._start:6.1f} s  {name}  {said[:120]}", flush=True)


def table(rows: Iterable[dict[str, str]]) -> str:
    """Markdown of the outcomes by subjects; a case that runs in several ways has passed if it has in one of them."""
    last: dict[str, dict[str, str]] = {}
    for row in rows:
        if last.get(row["case"], {}).get("outcome") != _PASSED:
            last[row["case"]] = row
    columns = (_PASSED, _FAILED, *_REASONS)
    counts = {subject: Counter[str]() for subject in (*_SUBJECTS, "all")}
    for row in last.values():
        column = row["outcome"] if row["outcome"] in columns else _first(_REASONS, row["reason"].lower())
        counts[_first(_SUBJECTS, row["case"].lower())][column] += 1
        counts["all"][column] += 1
    skipped = [f"skipped: {why}" for why in _REASONS]
    lines = [f"| PyTorch's cases of | {' | '.join(('cases', _PASSED, _FAILED, *skipped))} |"]
    lines.append("|---" * (len(columns) + 2) + "|")
    for subject, found in counts.items():
        if found:
            lines.append(
                f"| {subject} | {found.total()} | " + " | ".join(str(found[each]) for each in columns) + " |"
            )
    return "\n".join(lines)


def _first(lines: MappingProxyType[str, tuple[str, ...]], text: str) -> str:
    return next(name for name, words in lines.items() if any(word in text for word in words))


def main() -> None:
    """Run the cases, and say what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all cases, each in the ways that it can run")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--like", nargs="+", default=["*"], help="names of cases, such as test_all_reduce*")
    parser.add_argument("--backend", default="taihu")
    parser.add_argument("--cases-of", default="gloo", help="the backend whose cases are chosen: gloo or mpi")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    arguments = parser.parse_args()
    rows: Rows = load_rows(arguments.json) if arguments.docs is not None else []
    if not rows:
        ways = (arguments.backend, arguments.cases_of, arguments.ranks, arguments.like)
        rows = _run_all(arguments.backend) if arguments.all else _run(*ways)
    save_rows(arguments.json, rows)
    print(table(rows))
    if arguments.docs is not None:
        arguments.docs.write_text(in_page(arguments.docs.read_text(), _PAGE, table(rows)))


def _run(backend: str, cases_of: str, ranks: int, like: Sequence[str]) -> Rows:
    with tempfile.TemporaryDirectory() as folder:
        cases = _cases(backend, cases_of, ranks, folder)
        outcomes = Outcomes()
        named = [(case, case.id().rsplit(".", 1)[-1]) for case in cases]
        unittest.TestSuite(case for case, name in named if any(fnmatch.fnmatch(name, each) for each in like)).run(
            outcomes
        )
    return outcomes.rows


def _run_all(backend: str) -> Rows:
    """Each in a process of its own, as PyTorch chooses its cases when it is imported."""
    rows = _apart("--backend", backend, "--ranks", "4")
    small = [row["case"] for row in rows if _SMALL in row["reason"]]
    rows += _apart("--backend", backend, "--ranks", "8", "--like", *small)
    return rows + _apart("--backend", backend, "--cases-of", "mpi", "--like", "test_all_to_all*")


def _apart(*arguments: str) -> Rows:
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        command = [
            sys.executable,
            "-m",
            "benchmarks.backend.torch_distributed_tests",
            *arguments,
            "--json",
            str(rows),
        ]
        subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
        return load_rows(rows)


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
