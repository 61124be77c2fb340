"""`python -m mutants`: makes small wrong changes to the pure cores, and counts how many the tests notice."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mutants.cores import CORES
from mutants.tallying import Tally, say, tally


def main(
    cores: Annotated[list[str] | None, typer.Argument(help="Some of the cores; all when none is named.")] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Judge so many mutants of each core, not all.")] = None,
    seed: Annotated[int, typer.Option(help="Which ones the sample holds.")] = 0,
    at: Annotated[str, typer.Option(metavar="FILE[:LINE]", help="Only the mutants of this file, or line.")] = "",
    afresh: Annotated[bool, typer.Option("--afresh", help="Forget what earlier runs found out.")] = False,
    least: Annotated[float, typer.Option(min=0, max=1, help="Fail where a smaller share is noticed.")] = 0.9,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results there.")] = None,
) -> None:
    """Make small wrong changes to the pure cores, one at a time, and count how many the tests notice."""
    unknown = sorted({*(cores or [])} - {*CORES})
    if unknown:
        say(f"core {', '.join(unknown)}: expected some of {', '.join(CORES)}")
        raise typer.Exit(2)
    names = cores or list(CORES)
    # Each core has a process of its own: pytest runs once in one.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        try:
            judged = [pool.submit(tally, name, sample, seed, at, afresh=afresh) for name in names]
            tallies = [each.result() for each in judged]
        except RuntimeError as error:
            say(str(error))
            raise typer.Exit(2) from None
    _show(tallies)
    if json_file:
        json_file.write_text(json.dumps([_row(each) for each in tallies], indent=1) + "\n", encoding="utf-8")
    raise typer.Exit(any(each.ratio < least for each in tallies))


def _show(tallies: list[Tally]) -> None:
    table = Table("core", "mutants", "of", "equivalent", "noticed", "ratio")
    for each in tallies:
        numbers = (each.mutants, each.possible, each.equivalent, each.noticed)
        table.add_row(each.core, *map(str, numbers), f"{each.ratio:.1%}")
    Console().print(table)


def _row(each: Tally) -> dict[str, object]:
    survivors = [
        {"path": s.path, "line": s.line, "place": s.place, "was": s.change.was, "becomes": s.change.becomes}
        for s in each.survivors
    ]
    numbers = {"possible": each.possible, "mutants": each.mutants, "noticed": each.noticed, "ratio": each.ratio}
    return {"core": each.core, **numbers, "equivalent": each.equivalent, "survivors": survivors}


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
