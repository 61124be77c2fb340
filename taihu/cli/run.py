"""`taihu run`."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from taihu.cli.train import summarise
from taihu.core.base.errors import ConfigError, TaihuError
from taihu.core.base.words import counted, one_line
from taihu.core.job import Job
from taihu.core.job.flags import JobFlags, takes_job_flags
from taihu.core.job.machine import check_processes
from taihu.core.job.run_folder import note_failure, prepare_run
from taihu.core.process.entry import Interrupts
from taihu.core.process.options import RunDirOption, TraceOption, TraceStepsOption, make_tracer
from taihu.core.process.programs.guard import file_in_the_way
from taihu.core.process.results import check_folder_writable, check_writable, is_stdout, write_json
from taihu.core.process.streams import outlive_output
from taihu.launch.place import script_job
from taihu.local.display import Display, PlainDisplay, make_display
from taihu.local.resuming import find_state
from taihu.local.run import RUN_FOLDER
from taihu.local.scripts.life import GRACE_S, Script
from taihu.local.scripts.lives import Numbers
from taihu.local.scripts.run import ScriptRun

__all__ = ["run_script"]

_NO_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")


@takes_job_flags
def run_script(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT.py", help="A PyTorch script that uses taihu.torch.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGUMENTS", help="For the script.")] = None,
    *,
    flags: JobFlags,
    job_file: Annotated[Path | None, typer.Option("--job", metavar="JOB.toml", help="Job file.")] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="auto|RUN|CHECKPOINT",
            help="Go on from what taihu.torch.state has kept: in a run, a checkpoint, or the newest run.",
        ),
    ] = None,
    min_workers: Annotated[
        int | None,
        typer.Option(
            "--min-workers",
            metavar="N",
            min=1,
            help="Go on with fewer, down to N, where processes are killed again and again without a step between.",
        ),
    ] = None,
    max_workers: Annotated[
        int | None,
        typer.Option("--max-workers", metavar="N", min=1, help="taihu scale asks for no more than N."),
    ] = None,
    run_dir: RunDirOption = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the results as JSON.")
    ] = None,
    logs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the logs of all processes here, not in the run folder.")
    ] = None,
    trace: TraceOption = None,
    trace_steps: TraceStepsOption = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            min=0,
            max=65000,
            help="Serve /metrics: worker 0 here, the others and the servers behind it; 0 takes free ones, logged.",
        ),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            max=86400.0,
            help="The time that the script has behind Ctrl-C or SIGTERM, which its processes get, to save and end.",
        ),
    ] = GRACE_S,
    fork: Annotated[
        bool,
        typer.Option(
            "--fork/--no-fork",
            help="Import PyTorch once, and fork the processes from there; without it each imports it anew.",
        ),
    ] = True,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Nothing but warnings, errors and the script.")
    ] = False,
) -> int:
    """Run a PyTorch script that uses taihu.torch in several processes on this machine.

    Worker 0's output is shown as it is, that of all others goes into logs; progress is written to standard error.
    Options stand before the script; all behind it are its own. Workers exchange around a ring, unless the job or
    --servers says otherwise. Where a process is killed, and the script has made a taihu.torch.state, all are started
    again and go on behind the last step, at most checkpoint.restarts times within an hour. Ctrl-C and SIGTERM are
    passed to all processes; a second one ends them at once.

    \b
    Examples:
      taihu run --workers 3 train.py --epochs 5
      taihu run --workers 3 --servers 2 train.py
      taihu run --workers 4 --compression dlgs --density 0.01 train.py
      taihu run --job job.toml --run-dir none --logs logs train.py
      taihu run --workers 3 --trace trace.json --trace-steps 20-40 train.py
      taihu run --workers 3 --metrics-port 9400 --quiet train.py > out.txt
      taihu run --workers 3 --resume auto train.py                     goes on, see taihu.torch.state
      taihu run --workers 3 --min-workers 2 --max-workers 8 train.py   taihu scale changes it
      taihu run --workers 3 --grace 120 train_that_saves_on_sigterm.py
    """  # noqa: D301
    outlive_output()
    if (place := file_in_the_way(script.parent)) is not None:
        raise ConfigError(f"{place}: a script beside it imports that in the place of taihu; give it another name")
    own: dict[str, dict[str, object]] = {"run": {"dir": run_dir}}
    job = flags.resolve(job_file, own)
    if resume is not None:
        own["checkpoint"], settings = find_state(resume, RUN_FOLDER.parent, job.checkpoint.dir)
        job = flags.resolve(job_file or settings, own)
    job = _named(script_job(job, has_servers=flags.servers is not None), script)
    interrupts = Interrupts(tells_signal=True)
    work = Script(script, arguments or [], metrics_port, trace_steps, interrupts, grace)
    work.check()
    numbers = Numbers(job.world.workers, min_workers, max_workers)
    check_processes(job)
    if is_stdout(json_file):
        raise ConfigError("--json -: standard output is the script's; give a file")
    check_writable(json_file, trace)
    check_folder_writable(logs)
    make_tracer(trace, trace_steps)
    interrupts.install()
    files = prepare_run(job, job_file, default=RUN_FOLDER)
    run = ScriptRun(job, work, numbers, files, logs=logs, trace=trace, forks=fork)
    console = Console(stderr=True)
    with _display(console, quiet=quiet) as display:
        display.say(f"running {script} with {_members(job)}")
        if files.folder is not None:
            display.say(f"run folder      {files.folder}")
        try:
            results, is_used = run.run(display)
        except TaihuError as error:
            if files.folder is not None:
                note_failure(files.folder, one_line(str(error)), datetime.now(UTC))
            raise
    if not is_used:
        told = f"{script.name} has not used taihu.torch: taihu has exchanged nothing for it; see docs/torch.md"
        typer.echo(f"warning: {told}", err=True)
    for file in (*files.results, *([] if json_file is None else [json_file])) if results is not None else ():
        write_json(file, results or {})
    if not quiet:
        _tell_end(PlainDisplay(console), results, display.elapsed_s)
    return 0


def _named(job: Job, script: Path) -> Job:
    """The job by the script's name, if it has none of its own."""
    if "name" in job.model_fields_set:
        return job
    name = _NO_NAME.sub("-", script.stem).lstrip("._-")[:100]
    return job.model_copy(update={"name": name}) if name else job


def _members(job: Job) -> str:
    workers = counted(job.world.workers, "worker")
    return f"{counted(job.servers, 'server')} and {workers}" if job.servers else f"a ring of {workers}"


def _display(console: Console, *, quiet: bool) -> Display:
    """A line that is drawn anew would stand in the script's own lines, where both go to a terminal."""
    if not quiet and sys.stdout.isatty():
        return PlainDisplay(console)
    return make_display(console, quiet=quiet)


def _tell_end(display: Display, results: dict[str, object] | None, elapsed_s: float) -> None:
    if results is None:
        display.say(f"done in {elapsed_s:.1f} s")
    else:
        summarise(display, results, elapsed_s)
