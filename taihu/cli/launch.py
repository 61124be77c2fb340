"""`taihu launch`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from taihu.cli.script_options import ScriptOptions, members_in_words
from taihu.core.base.errors import ConfigError
from taihu.core.job import Job, revised
from taihu.core.job.flags import JobFlags, takes_options
from taihu.core.job.run_folder import RunFiles
from taihu.core.process.streams import outlive_output
from taihu.hosts.client import program_of
from taihu.hosts.ground import Hosts, Launching, reached
from taihu.hosts.placement import Host, Placement, hosts_in, hosts_of
from taihu.local.scripts.lives import Numbers

_NO_FOLDER = Path("none")


@takes_options
def launch(
    *,
    hosts: Annotated[
        str | None,
        typer.Option(
            "-H",
            "--hosts",
            metavar="HOST[:N],...",
            help="Hosts as ssh knows them, [user@]name, each with its number of workers, 1 unless it is given.",
        ),
    ] = None,
    hostfile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file of hosts in place of -H, with lines as Open MPI and DeepSpeed have: host1 slots=2.",
        ),
    ] = None,
    flags: JobFlags,
    ssh: Annotated[
        str, typer.Option(metavar="COMMAND", envvar="TAIHU_SSH", help="OpenSSH's client with options of its own.")
    ] = "ssh",
    python: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="The Python of all hosts, in which taihu and PyTorch are.",
            show_default="that of taihu",
        ),
    ] = sys.executable,
    chdir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The working folder on all hosts, in place of this one.")
    ] = None,
    carry: Annotated[
        list[str] | None,
        typer.Option("-x", metavar="NAME[=VALUE]", help="Carry this variable to all processes; may be repeated."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="P",
            min=1024,
            max=65000,
            help="Listen at P, P+1, ... on each host, a port for each of its processes, and one more on the first "
            "host for torch.distributed; otherwise at free ones.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="The first host as the others reach it, where it has several addresses."),
    ] = None,
    options: ScriptOptions,
) -> int:
    """Run a PyTorch script that uses taihu.torch on several hosts, which ssh reaches without a password.

    As taihu run does on one machine: worker 0's output is shown as it is, that of all others goes into logs here;
    Ctrl-C reaches all processes on all hosts, which also end where this one or a connection does. Workers fill the
    hosts in their order, servers go to the hosts in turns. The script, its data, Python, PyTorch and taihu have the
    same places and versions on all hosts, and keys are left to ssh: its configuration and agent.

    Ports: ssh's from here to each host. Between hosts those of all processes, which --port names.

    Where a process or a host is lost, and the script has made a taihu.torch.state in a checkpoint.dir that this
    machine and all hosts share, as they share the run folder, all are started again and go on.

    \b
    Examples:
      taihu launch -H host1,host2 train.py --epochs 5
      taihu launch -H host1:2,host2:2 --servers 2 train.py
      taihu launch --hostfile hosts train.py                           with lines: host1 slots=2
      taihu launch -H user@10.0.0.1,10.0.0.2 --compression dlgs --density 0.01 train.py
      taihu launch -H host1,host2 --port 7070 train.py                 7070 is open on both, 7071 on host1
      taihu launch -H host1,host2 -x PYTHONPATH -x DATA=/data train.py
      taihu launch -H host1,host2 --ssh "ssh -F cluster.conf" --python /opt/taihu/bin/python train.py
      taihu launch -H host1,host2 --set checkpoint.dir=/shared/kept --resume auto train.py
    """  # noqa: D301
    outlive_output()
    job = options.job(flags)
    is_resumed = options.resume is not None and flags.workers is None and options.job_file is None
    job, placement = _placed(job, _named(hosts, hostfile), is_resumed=is_resumed)
    options.check()
    launching = Launching(
        program_of(ssh), python, chdir or Path.cwd(), options.script, _carried(carry or (), os.environ), port, address
    )
    with reached(launching, placement) as ground:
        _check_shared(job, ground)

        def begun(files: RunFiles) -> None:
            ground.run_folder = None if files.folder is None else files.folder.absolute()

        names = ", ".join(f"{host.name}:{host.workers}" for host in placement.hosts)
        opening = f"running {options.script.name} with {members_in_words(job)} on {names}"
        workers = job.world.workers
        return options.run(job, ground, opening, numbers=Numbers(workers, workers, workers), begun=begun)


def _named(hosts: str | None, file: Path | None) -> list[Host]:
    """The hosts that are named on the command line, or in a file.

    Raises:
        ConfigError: there are none, or the file cannot be read.
    """
    if (hosts is None) == (file is None):
        told = "neither is there" if hosts is None else "both are there"
        raise ConfigError(f"-H, --hostfile: {told}; give one of them, as -H host1,host2:2")
    if file is None:
        return hosts_of(hosts or "")
    try:
        return hosts_in(file.read_text(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(
            f"--hostfile {file}: cannot be read ({why}); give a file with lines as host1 slots=2"
        ) from None


def _placed(job: Job, hosts: Sequence[Host], *, is_resumed: bool) -> tuple[Job, Placement]:
    """The job with as many workers as its hosts have, or the hosts with as many as the job says."""
    placement = Placement(hosts, job.servers)
    if "workers" in job.cluster.model_fields_set and not is_resumed:
        placement = placement.cut(job.world.workers)
    return revised(job, "cluster", workers=placement.workers), placement


def _carried(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are named, with a value of their own or that of this process."""
    carried = {}
    for each in names:
        name, has_value, value = each.partition("=")
        if not name or (not has_value and name not in environment):
            raise ConfigError(f"-x {each}: there is no such variable here; set it, or give -x {name or 'NAME'}=VALUE")
        carried[name] = value if has_value else environment[name]
    return carried


def _check_shared(job: Job, ground: Hosts) -> None:
    """Raise ConfigError for a folder of checkpoints that is not the same on all hosts."""
    folder = job.checkpoint.dir
    if not isinstance(folder, Path) or folder == _NO_FOLDER:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"checkpoint.dir {folder}: cannot be made ({error.strerror}); name another folder"
        ) from None
    if not ground.shares(folder):
        raise ConfigError(
            f"checkpoint.dir {folder}: not all hosts see this machine's at the same place; name a folder that they "
            "share, or a store"
        )
