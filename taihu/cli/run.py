"""`taihu run`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from taihu.job.flags import JobFlags, takes_job_flags
from taihu.launch.place import script_job
from taihu.local.scripts import ScriptRun
from taihu.process.entry import Interrupts
from taihu.words import counted

__all__ = ["run_script"]


@takes_job_flags
def run_script(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT.py", help="A PyTorch script that uses taihu.torch.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGUMENTS", help="For the script.")] = None,
    *,
    flags: JobFlags,
    job_file: Annotated[Path | None, typer.Option("--job", metavar="JOB.toml", help="Job file.")] = None,
    logs: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the logs of all processes here.")] = None,
) -> int:
    """Run a PyTorch script that uses taihu.torch in several processes on this machine.

    Worker 0's output is shown, that of all others goes into logs. Options stand before the script; all behind it are
    its own. Workers exchange around a ring, unless the job or --servers says otherwise.

    \b
    Examples:
      taihu run --workers 3 train.py --epochs 5
      taihu run --workers 3 --servers 2 train.py
      taihu run --workers 4 --compression dlgs --density 0.01 train.py
      taihu run --job job.toml --logs logs train.py
    """  # noqa: D301
    job = script_job(flags.resolve(job_file), has_servers=flags.servers is not None)
    interrupts = Interrupts()
    interrupts.install()
    start = time.monotonic()
    folder = logs or Path(tempfile.mkdtemp(prefix="taihu-logs-"))
    folder.mkdir(parents=True, exist_ok=True)
    beside = f"{counted(job.servers, 'server')} and {counted(job.cluster.workers, 'worker')}"
    shape = beside if job.servers else f"a ring of {counted(job.cluster.workers, 'worker')}"
    typer.echo(f"running {script} with {shape}; logs: {folder}", err=True)
    ScriptRun(job, script, arguments or [], folder, interrupts).run()
    typer.echo(f"done in {time.monotonic() - start:.1f} s", err=True)
    return 0
