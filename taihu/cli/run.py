"""`taihu run`."""

from __future__ import annotations

from typing import Annotated

import typer

from taihu.cli.script_options import (
    ArgumentsArgument,
    ForkOption,
    GraceOption,
    JobFileOption,
    JsonFileOption,
    LogsOption,
    QuietOption,
    ResumeStateOption,
    ScriptArgument,
    ScriptOptions,
    job_of_script,
    members_in_words,
)
from taihu.core.job.flags import JobFlags, takes_job_flags
from taihu.core.job.machine import check_processes
from taihu.core.process.options import RunDirOption, TraceOption, TraceStepsOption
from taihu.core.process.streams import outlive_output
from taihu.local.scripts.ground import OneMachine
from taihu.local.scripts.life import GRACE_S
from taihu.local.scripts.lives import Numbers


@takes_job_flags
def run_script(
    script: ScriptArgument,
    arguments: ArgumentsArgument = None,
    *,
    flags: JobFlags,
    job_file: JobFileOption = None,
    resume: ResumeStateOption = None,
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
    json_file: JsonFileOption = None,
    logs: LogsOption = None,
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
    grace: GraceOption = GRACE_S,
    fork: ForkOption = True,
    quiet: QuietOption = False,
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
    job = job_of_script(flags, script, job_file=job_file, resume=resume, run_dir=run_dir)
    numbers = Numbers(job.world.workers, min_workers, max_workers)
    check_processes(job)
    options = ScriptOptions(
        script,
        arguments or [],
        job_file,
        json_file,
        logs,
        grace,
        fork,
        quiet,
        trace=trace,
        trace_steps=trace_steps,
        metrics_port=metrics_port,
    )
    options.check()
    return options.run(job, OneMachine(), f"running {script.name} with {members_in_words(job)}", numbers=numbers)
