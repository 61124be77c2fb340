"""The options of commands that run a user's script, and the run itself as they show it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from taihu.cli.train import summarise
from taihu.core.base.errors import ConfigError, TaihuError
from taihu.core.base.words import counted, one_line
from taihu.core.job import Job
from taihu.core.job.flags import JobFlags
from taihu.core.job.run_folder import RunFiles, note_failure, prepare_run
from taihu.core.process.entry import Interrupts
from taihu.core.process.options import RunDirOption, TraceOption, TraceStepsOption, make_tracer
from taihu.core.process.programs.guard import file_in_the_way
from taihu.core.process.results import check_folder_writable, check_writable, is_stdout, write_json
from taihu.core.system.clocks import utc_now
from taihu.launch.place import script_job
from taihu.local.display.display import Display, PlainDisplay, make_display
from taihu.local.resuming import find_state
from taihu.local.run import RUN_FOLDER
from taihu.local.scripts.ground import Ground
from taihu.local.scripts.life import GRACE_S, Script
from taihu.local.scripts.lives import Numbers
from taihu.local.scripts.run import ScriptRun

_NO_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, kw_only=True)
class ScriptOptions:
    """A script, and the options by which it is run and shown; those of `taihu.local.scripts.run.ScriptRun`."""

    script: Annotated[Path, typer.Argument(metavar="SCRIPT.py", help="A PyTorch script that uses taihu.torch.")]
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGUMENTS", help="For the script.")] = None
    job_file: Annotated[Path | None, typer.Option("--job", metavar="JOB.toml", help="Job file.")] = None
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="auto|RUN|CHECKPOINT",
            help="Go on from what taihu.torch.state has kept: in a run, a checkpoint, or the newest run.",
        ),
    ] = None
    run_dir: RunDirOption = None
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the results as JSON.")] = (
        None
    )
    logs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the logs of all processes here, not in the run folder.")
    ] = None
    trace: TraceOption = None
    trace_steps: TraceStepsOption = None
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            min=0,
            max=65000,
            help="Serve /metrics on each host: worker R at PORT + R, servers behind; 0 takes free ones, logged.",
        ),
    ] = None
    grace: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            max=86400.0,
            help="The time that the script has behind Ctrl-C or SIGTERM, which its processes get, to save and end.",
        ),
    ] = GRACE_S
    fork: Annotated[
        bool,
        typer.Option(
            "--fork/--no-fork",
            help="Import PyTorch once, and fork the processes from there; without it each imports it anew.",
        ),
    ] = True
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but warnings, errors and the script.")] = False

    def job(self, flags: JobFlags) -> Job:
        """The job of the script, by file, environment and flags; of `resume`, by the settings of that run.

        Raises:
            ConfigError: a setting is wrong, there is no such script, or a file beside it hides a package.
        """
        if (place := file_in_the_way(self.script.parent)) is not None:
            raise ConfigError(f"{place}: a script beside it imports that in the place of taihu; give it another name")
        own: dict[str, dict[str, object]] = {"run": {"dir": self.run_dir}}
        job = flags.resolve(self.job_file, own)
        if self.resume is not None:
            own["checkpoint"], settings = find_state(self.resume, RUN_FOLDER.parent, job.checkpoint.dir)
            job = flags.resolve(self.job_file or settings, own)
        job = _named(script_job(job, has_servers=flags.servers is not None), self.script)
        Script(self.script).check()
        return job

    def check(self) -> None:
        """Raise ConfigError for files that cannot be written, before anything starts."""
        if is_stdout(self.json_file):
            raise ConfigError("--json -: standard output is the script's; give a file")
        check_writable(self.json_file, self.trace)
        check_folder_writable(self.logs)
        make_tracer(self.trace, self.trace_steps)

    def run(
        self,
        job: Job,
        ground: Ground,
        opening: str,
        *,
        numbers: Numbers,
        begun: Callable[[RunFiles], object] = lambda files: None,
    ) -> int:
        """Run the script, show how it goes and write its results; returns the exit code.

        Args:
            job: of the run.
            ground: the machines.
            opening: the first line that is shown.
            numbers: of workers that the script may have.
            begun: called with the run's files, when its folder is there.

        Raises:
            TaihuError: it has failed, or was interrupted.
        """
        interrupts = Interrupts(tells_signal=True)
        interrupts.install()
        files = prepare_run(job, self.job_file, default=RUN_FOLDER)
        begun(files)
        script = Script(
            self.script, self.arguments or (), self.metrics_port, self.trace_steps, interrupts, self.grace
        )
        run = ScriptRun(job, script, numbers, files, logs=self.logs, trace=self.trace, forks=self.fork, ground=ground)
        console = Console(stderr=True)
        with _display(console, quiet=self.quiet) as display:
            display.say(opening)
            if files.folder is not None:
                display.say(f"run folder      {files.folder}")
            try:
                results, is_used = run.run(display)
            except TaihuError as error:
                if files.folder is not None:
                    note_failure(files.folder, one_line(str(error)), utc_now())
                raise
        if not is_used:
            told = (
                f"{self.script.name} has not used taihu.torch: taihu has exchanged nothing for it; see docs/torch.md"
            )
            typer.echo(f"warning: {told}", err=True)
        own = [] if self.json_file is None else [self.json_file]
        for file in (*files.results, *own) if results is not None else ():
            write_json(file, results or {})
        if not self.quiet:
            _tell_end(PlainDisplay(console), results, display.elapsed_s)
        return 0


def members_in_words(job: Job) -> str:
    """The members of a job: its servers and workers, or its ring."""
    workers = counted(job.world.workers, "worker")
    return f"{counted(job.servers, 'server')} and {workers}" if job.servers else f"a ring of {workers}"


def _named(job: Job, script: Path) -> Job:
    """The job by the script's name, if it has none of its own."""
    if "name" in job.model_fields_set:
        return job
    name = _NO_NAME.sub("-", script.stem).lstrip("._-")[:100]
    return job.model_copy(update={"name": name}) if name else job


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
