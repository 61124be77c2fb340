"""`taihu dev explore`."""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from taihu.core.base.errors import RunError
from taihu.core.base.words import counted
from taihu.core.process.results import write_json
from taihu.core.system.chance import random_below
from taihu.explore.campaign.campaign import Summary, explore, explored
from taihu.explore.campaign.shrinking import shrunk
from taihu.explore.campaign.work import Found, Smaller, Work
from taihu.explore.carriers import CARRIERS
from taihu.explore.coverage import table_of
from taihu.local.display.progress import Progress

_ENDLESS: Final = 10**9


def explore_command(
    *,
    seed: Annotated[int | None, typer.Option(min=0, help="Run this seed alone, and tell what it is.")] = None,
    first: Annotated[int | None, typer.Option(min=0, help="The first seed; drawn by default.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many; until Ctrl-C by default.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="With --seed: tell its story.")] = False,
    shrink: Annotated[bool, typer.Option("--shrink", help="With --seed: make it smaller.")] = False,
    carrier: Annotated[str, typer.Option(metavar="|".join(CARRIERS), help="What carries threads.")] = "greenlets",
    agents: Annotated[
        bool | None,
        typer.Option("--agents/--no-agents", help="Agents run the workers; by default in one run of six."),
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Hold threads up between lines, too: for missing locks. Slower.")
    ] = False,
    processes: Annotated[int, typer.Option(min=0, help="How many explore at a time; 0: one on each core.")] = 0,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Go on after a seed that fails.")] = False,
    changes: Annotated[
        Path | None, typer.Option("--changes", metavar="FILE", help="Explore with these wrong changes to the code.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here.")] = None,
) -> None:
    """Run the real daemons in a simulated world, with faults, and judge every run: the same seed, the same run.

    Servers, workers and whoever starts them run in one process: threads are tasks of a seeded scheduler, time is
    virtual, network and disk are in memory. A seed draws the job, the order of threads, and faults. Its run is right
    if its bits are those of the run without faults, or it ended with an error that names who is to blame. Ends with
    exit code 1 at the first seed that is not.

    \b
    Examples:
      taihu dev explore
      taihu dev explore --first 0 --seeds 2000
      taihu dev explore --seed 1066 --trace           its story
      taihu dev explore --seed 1066 --shrink          as small a case as fails
      taihu dev explore --agents                      machines that come and go
      taihu dev explore --lines                       missing locks, too
    """  # noqa: D301
    carrier = "threads" if lines else carrier
    changed = [] if changes is None else _changes_in(changes)
    work = Work(0, 1, carrier=carrier, between_lines=lines, changes=changed, agents=agents)
    if seed is not None:
        _one(seed, replace(work, agents=bool(agents)), trace=trace, shrink=shrink)
        return
    begin = random_below(2**40) if first is None else first
    many = replace(work, first=begin, count=seeds or _ENDLESS)
    summary = _many(many, processes, keep_going=keep_going)
    if json_file is not None:
        write_json(json_file, _figures(summary, begin))
    if summary.failed:
        found = summary.failed[0]
        more = f" ({counted(len(summary.failed) - 1, 'more seed')} failed)" if len(summary.failed) > 1 else ""
        raise RunError(f"seed {found.seed}: {found.problems[0].splitlines()[0]}{more}; see {_flags(found)} --trace")


def _one(seed: int, work: Work, *, trace: bool, shrink: bool) -> None:
    own = replace(work, first=seed, tells=trace)
    found = explored(own)[0]
    if shrink and found.problems:
        found = explored(replace(own, smaller=_shrunk(own, found)))[0]
    for line in (*found.case, *found.story, *_end(found)):
        typer.echo(line)
    if found.problems:
        raise RunError(f"seed {seed}: {found.problems[0].splitlines()[0]}")


def _shrunk(work: Work, found: Found) -> Smaller:
    """The smallest case that fails as `found` did."""
    progress, tried = Progress(), 0

    def fails(smaller: Smaller) -> bool:
        nonlocal tried
        tried += 1
        progress(f"{counted(tried, 'case')} tried: {smaller}")
        try:
            return bool(explored(replace(work, smaller=smaller, tells=False))[0].problems)
        except RunError:  # its settings do not go together
            return False

    assert found.drawn is not None  # noqa: S101
    return shrunk(found.drawn, fails)


def _changes_in(file: Path) -> list[tuple[str, str, str]]:
    """The changes in a TOML file: tables `[[change]]` with module, old and new."""
    return [(each["module"], each["old"], each["new"]) for each in tomllib.loads(file.read_text())["change"]]


def _end(found: Found) -> list[str]:
    told = "all ended well" if found.ended_well else "it ended otherwise"
    return [
        *(f"happened: {line}" for line in found.done),
        *(f"PROBLEM: {line}" for line in found.problems),
        f"{told}; {found.virtual_s:.6f} virtual seconds, {found.switches:,} switches, digest {found.digest}",
    ]


def _many(work: Work, processes: int, *, keep_going: bool) -> Summary:
    summary, progress = Summary(), Progress()

    def each(found: Found) -> bool:
        summary.add(found)
        progress(_line(summary))
        if found.problems:
            typer.echo(f"{_flags(found)} failed: {found.problems[0]}")
        return keep_going or not found.problems

    try:
        explore(work, processes or len(os.sched_getaffinity(0)), each)
    except KeyboardInterrupt:
        typer.echo("", err=True)
    typer.echo(_line(summary))
    for kind, count in sorted(summary.faults.items()):
        typer.echo(f"  {kind:<16}{count:>10,}")
    for line in table_of(summary.reached):
        typer.echo(line)
    return summary


def _flags(found: Found) -> str:
    """The flags by which a case is run again."""
    return f"--seed {found.seed}{' --agents' if found.agents else ''}"


def _line(summary: Summary) -> str:
    return (
        f"{counted(summary.seeds, 'seed')}, {summary.faults.total():,} faults, {len(summary.failed)} failed; "
        f"{summary.per_hour:,.0f} an hour; {summary.switches:,} switches, "
        f"{summary.virtual_s / 3600:,.1f} virtual hours"
    )


def _figures(summary: Summary, first: int) -> dict[str, object]:
    return {
        "first": first,
        "seeds": summary.seeds,
        "failed": [found.seed for found in summary.failed],
        "ended_well": summary.ended_well,
        "faults": dict(sorted(summary.faults.items())),
        "reached": sorted(summary.reached),
        "switches": summary.switches,
        "virtual_hours": summary.virtual_s / 3600,
        "seeds_per_hour": summary.per_hour,
    }
