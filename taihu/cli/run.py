"""`taihu run`."""

from __future__ import annotations

from typing import Annotated

import typer

from taihu.cli.script_options import ScriptOptions, members_in_words
from taihu.core.job.flags import JobFlags, takes_options
from taihu.core.job.machine import check_processes
from taihu.core.process.streams import outlive_output
from taihu.local.scripts.ground import OneMachine
from taihu.local.scripts.lives import Numbers


@takes_options
def run_script(
    *,
    flags: JobFlags,
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
    options: ScriptOptions,
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
    job = options.job(flags)
    numbers = Numbers(job.world.workers, min_workers, max_workers)
    check_processes(job)
    options.check()
    opening = f"running {options.script.name} with {members_in_words(job)}"
    return options.run(job, OneMachine(), opening, numbers=numbers)
