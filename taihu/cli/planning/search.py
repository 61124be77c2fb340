"""`taihu plan search`: the fastest way to run a job on given machines, told and written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer

from taihu.cli.planning.search_memory import HostMemory
from taihu.cli.planning.search_tables import Answer, as_json, described, notes
from taihu.cli.simulation.inputs import machines_of, work_of
from taihu.core.base.errors import ConfigError
from taihu.core.base.whole_file import write_text
from taihu.core.job import Job
from taihu.core.job.advice import advice
from taihu.core.process.results import check_writable, write_json
from taihu.local.display.progress import Progress
from taihu.search.floors import Floor
from taihu.search.job_file import job_file
from taihu.search.search import ALIKE, Found, Search, ranked
from taihu.search.steps import Costs, Steps
from taihu.search.ways import Candidate, allowed_for, candidates_of
from taihu.simulation.placement import Placement


@dataclass(frozen=True)
class AskedSearch:
    """The options of the search beside those of the job.

    Attributes:
        machines: a name or a file; None for those of the profile's run.
        profile: results of a run, for what it measured.
        min_density: no less of a gradient is sent; None for what the job itself sends.
        precisions: that are tried, with commas; None for the job's and fp32.
        best: ways that are ranked.
        min_bits: no value of a compressed gradient has fewer; None for the job's.
        write: where the winner's job file goes.
        json_file: where the results go.
    """

    machines: str | None = None
    profile: Path | None = None
    min_density: float | None = None
    precisions: str | None = None
    best: int = 10
    write: Path | None = None
    json_file: Path | None = None
    min_bits: int | None = None


def plan_search(job: Job, asked: AskedSearch) -> None:
    """Search, print, and write what is asked for.

    Raises:
        ConfigError: something asked for is wrong, or the job fits nowhere.
    """
    check_writable(asked.write, asked.json_file)
    for line in advice(job):
        typer.echo(f"warning: {line}", err=True)
    answer = searched(job, asked, Progress())
    for line in described(answer):
        typer.echo(line)
    if asked.write is not None:
        winner = answer.ranking[0].candidate
        write_text(asked.write, job_file(winner, notes(answer)))
        typer.echo(f"written         {asked.write}")
    if asked.json_file is not None:
        write_json(asked.json_file, as_json(answer))


def searched(job: Job, asked: AskedSearch, tell: Callable[[str], None] = lambda _: None) -> Answer:
    """The answer for a job; `tell` hears now and then how far the search is.

    Raises:
        ConfigError: something asked for is wrong, or the job fits nowhere.
    """
    work = work_of(job, asked.profile)
    network, machines = machines_of(asked.machines, work, option="--machines")
    placement = Placement(network, machines, seed=job.train.seed)
    precisions = None if asked.precisions is None else asked.precisions.split(",")
    allowed = allowed_for(job, machines.hosts, asked.min_density, precisions, asked.min_bits)
    run_again = partial(work.run_again, segments=job.train.recompute_segments)
    steps = Steps(Costs(work.layout, work.compute, work.profile, run_again), placement)
    memory = HostMemory(job, machines.memory_bytes)
    candidates = []
    for candidate in candidates_of(job, allowed, memory.fits, steps.spread):
        candidates.append(candidate)
        tell(f"{len(candidates):,} ways to run the job so far")
    fitting = [candidate for candidate in candidates if memory.fits(candidate)]
    if not fitting:
        raise ConfigError(memory.complaint(candidates))
    search, refused = _driven(fitting, steps, asked.best, tell)
    ranking = ranked(search.found)[: asked.best]
    return Answer(
        job=job,
        allowed=allowed,
        placement=placement,
        compute=work.compute.source,
        ranking=ranking,
        terms=_terms(ranking, steps, of_all=asked.json_file is not None),
        as_it_is=_as_it_is(fitting[0], search, steps),
        found=len(search.found),
        passed=search.passed,
        too_large=[(each, memory.host_bytes(each) or 0) for each in candidates if not memory.fits(each)],
        refused=refused,
        host_bytes=[memory.host_bytes(each.candidate) for each in ranking],
    )


def _driven(
    candidates: Sequence[Candidate], steps: Steps, best: int, tell: Callable[[str], None]
) -> tuple[Search, list[tuple[Candidate, str]]]:
    """The search, done, and the candidates that cannot be simulated, with the reason."""
    floors: list[tuple[Candidate, Floor]] = []
    refused: list[tuple[Candidate, str]] = []
    for candidate in candidates:
        try:
            floors.append((candidate, steps.floor(candidate)))
        except ConfigError as error:
            refused.append((candidate, str(error)))
    search = Search(floors, best)
    while (chosen := search.next()) is not None:
        try:
            search.add(chosen, steps.simulate(chosen))
        except ConfigError as error:
            refused.append((chosen, str(error)))
        tell(f"{len(search.found):,} ways simulated, {search.left:,} left to look at")
    if not search.found:
        raise ConfigError(refused[0][1])
    return search, refused


def _terms(ranking: Sequence[Found], steps: Steps, *, of_all: bool) -> list[Mapping[str, float]]:
    """The terms of each step, which are several simulations; unless `of_all`, only where they say why it loses."""
    enough = ranking[0].step.seconds * (1.0 + ALIKE)
    losers = [each for each in ranking if each.step.seconds > enough]
    wanted = ranking if of_all else [ranking[0], *losers] if losers else []
    return [steps.terms(each.candidate, each.step) if each in wanted else {} for each in ranking]


def _as_it_is(first: Candidate, search: Search, steps: Steps) -> Found | None:
    """The job without a change, which is the first of all candidates where it may be run at all."""
    if first.changes:
        return None
    found = next((each for each in search.found if each.candidate is first), None)
    try:
        return found or Found(first, steps.simulate(first))
    except ConfigError:
        return None
