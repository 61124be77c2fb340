"""Births of the rows that a command writes into files of benchmarks/results, which it names."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.births.birth import RESULTS, UNKNOWN, Birth, after_a_run, births_of, save_births
from benchmarks.births.code import Checkout
from benchmarks.births.paths import measured_paths

__all__ = ["named_results", "recorded"]


def named_results(arguments: Sequence[str], folder: Path = RESULTS) -> list[Path]:
    """The files of results that a command names, which it may write."""
    paths = (Path(word.rpartition("=")[2]).resolve() for word in arguments if word.endswith(".json"))
    return list(dict.fromkeys(path for path in paths if path.parent == folder.resolve()))


@contextmanager
def recorded(command: Sequence[str]) -> Iterator[None]:
    """Rows that are new behind the body are born of `command`, also where it is broken off.

    Raises:
        SystemExit: nobody has said which paths such a result measures.
    """
    results, known = named_results(command), measured_paths()
    for result in results:
        if result.stem not in known:
            raise SystemExit(
                f"error: {result.stem}: benchmarks/results/paths.toml does not say which paths it measures"
            )
    begun = [(result, _rows(result), _this_run(command, known[result.stem])) for result in results]
    try:
        yield
    finally:
        for result, before, run in begun:
            after = _rows(result)
            if after != before:
                save_births(result, after_a_run(births_of(result), before, after, run))


def _rows(result: Path) -> Any:
    return json.loads(result.read_text()) if result.exists() else []


def _this_run(command: Sequence[str], paths: Sequence[str]) -> Birth:
    checkout = Checkout(RESULTS.parents[1])
    return Birth(
        command=shlex.join(command),
        commit=checkout.head() or UNKNOWN,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        processor=_processor(),
        load=round(os.getloadavg()[0], 2),
        told_by="run",
        uncommitted=checkout.uncommitted(paths),
    )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), UNKNOWN)
    return f"{name}, {len(os.sched_getaffinity(0))} cores"
