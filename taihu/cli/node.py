"""`taihu node`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taihu.core.base.errors import RunError, TaihuError
from taihu.core.job.flags import JobFlags, takes_options
from taihu.core.process.entry import InterruptedRunError
from taihu.core.process.lives import passing_folder
from taihu.core.process.options import (
    DirectPortOption,
    JobArgument,
    JsonOption,
    LogFormatOption,
    ResumeOption,
    RunDirOption,
    SaveOption,
    VerboseOption,
)
from taihu.core.process.streams import outlive_output

if TYPE_CHECKING:
    from taihu.core.job import Job
    from taihu.launch.meeting import Meeting
    from taihu.launch.place import Launch, NodeRole


@takes_options
def node(
    job_file: JobArgument = None,
    coordinator: Annotated[
        str | None,
        typer.Option(metavar="HOST[:PORT]", help="Where rank 0 is, for a launcher that does not say."),
    ] = None,
    *,
    flags: JobFlags,
    direct_port: DirectPortOption = 0,
    run_dir: RunDirOption = None,
    save: SaveOption = None,
    resume: ResumeOption = None,
    json_file: JsonOption = None,
    log_format: LogFormatOption = "text",
    verbose: VerboseOption = False,
) -> int:
    """Take one role of a run, a server's or a worker's, by the rank that mpirun, srun or torchrun gave.

    The first ranks are the servers, the others the workers; in a ring all are workers. A number of workers that is
    not set follows from the number of processes. Worker 0 shows progress and writes what is saved.

    \b
    Examples:
      mpirun -n 5 taihu node job.toml
      mpirun -x PATH -n 5 -H host1,host2:2,host3:2 taihu node job.toml --save model.safetensors
      srun -n 5 taihu node job.toml --exchange ring
      torchrun --no-python --nproc-per-node 5 taihu node job.toml
      torchrun --no-python --nproc-per-node 5 --max-restarts 3 taihu node job.toml --resume auto
    """  # noqa: D301
    outlive_output()
    from taihu.core.checkpoint.keepers import tell_finished
    from taihu.launch.meeting import find_meeting
    from taihu.launch.place import find_launch, fit_to_size, role_of

    launch = find_launch(os.environ)
    job = fit_to_size(flags.resolve(job_file, {"checkpoint": {"resume": resume}}), launch)
    if tell_finished(job):
        return 0
    role = role_of(launch.rank, job.servers)
    with _told_by(role):
        meeting = find_meeting(coordinator or job.cluster.coordinator, launch, job.cluster.connect_timeout_s)
        assignments = [*(flags.assignments or ()), *_settings(job, launch, meeting)]
        flags = replace(flags, assignments=assignments)
        if role.name == "server":
            from taihu.ps_server.command import server

            with _silent_stdout():
                return server(
                    job_file=job_file,
                    rank=str(role.place),
                    bind=meeting.bind(first=launch.rank == 0),
                    advertise=meeting.host if launch.rank == 0 else "",
                    direct_port=direct_port,
                    resume=resume,
                    flags=flags,
                    log_format=log_format,
                    verbose=verbose,
                )
        from taihu.worker.command import worker

        with _shown(job, meeting, json_file, role) as results:
            return worker(
                job_file=job_file,
                rank=str(role.place),
                bind=meeting.bind(first=launch.rank == 0) if job.workers_meet else "",
                advertise=meeting.host if launch.rank == 0 else "",
                direct_port=direct_port,
                flags=flags,
                run_dir=run_dir,
                save=save,
                resume=resume,
                json_file=results,
                log_format=log_format,
                verbose=verbose,
            )


def _settings(job: Job, launch: Launch, meeting: Meeting) -> Iterator[str]:
    """The settings that the launch decides, as assignments."""
    yield f"cluster.workers={job.world.workers}"
    yield f"cluster.servers={job.cluster.servers}"
    yield f'cluster.coordinator="{meeting.address}"'
    yield f"exchange.kind={job.exchange.kind}"
    neighbours = job.world.workers if launch.one_host else launch.local_size
    if job.cluster.threads is None and neighbours is not None:
        # Processes that a launcher binds to cores of their own share nothing.
        share = max(1, (os.cpu_count() or 1) // neighbours)
        yield f"cluster.threads={min(share, len(os.sched_getaffinity(0)))}"


@contextmanager
def _shown(job: Job, meeting: Meeting, json_file: Path | None, role: NodeRole) -> Iterator[Path | None]:
    """Show the run during the block, and its results at the end, if this is worker 0; yields where they go."""
    if role.place:
        with _silent_stdout():
            yield None
        return
    from rich.console import Console

    from taihu.cli.train import opening, summarise
    from taihu.core.job.security import security_of
    from taihu.core.process.results import is_stdout, read_json, write_json
    from taihu.local.display.display import PlainDisplay
    from taihu.local.display.watching import watching
    from taihu.local.results import results_of

    security = security_of(job, "worker", role.place)
    # mpirun gives terminals to the processes, but their lines are mixed in one log.
    console = Console(file=sys.stdout, force_terminal=False)
    with passing_folder() as folder, PlainDisplay(console) as display:
        display.say(opening(job))
        file = folder / "results.json" if json_file is None or is_stdout(json_file) else json_file
        with _silent_stdout(), watching(meeting.address, display, security) as watched:
            yield file
        written = read_json(file)
        results = results_of(job, [written])
        if watched.view is not None:
            sums = {"sent": watched.view.sent_bytes, "received": watched.view.received_bytes}
            results |= {f"bytes_{way}_per_step": count for way, count in sums.items()}
        summarise(display, results, display.elapsed_s)
        if json_file is not None and is_stdout(json_file):
            write_json(json_file, written)


@contextmanager
def _silent_stdout() -> Iterator[None]:
    """Only worker 0 has something to say; what all others print would stand between its lines."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


@contextmanager
def _told_by(role: NodeRole) -> Iterator[None]:
    """Begin the messages of errors with the role, since all processes share one log."""
    try:
        yield
    except InterruptedRunError:
        raise
    except TaihuError as error:
        words = str(error)
        told = RunError(words if words.startswith(f"{role}: ") else f"{role}: {words}")
        told.exit_code = error.exit_code
        raise told from error
