"""`taihu agent`."""

from __future__ import annotations

import os

from taihu.core.base.errors import ConfigError
from taihu.core.job.flags import JobFlags, takes_options
from taihu.core.process.entry import Interrupts
from taihu.core.process.options import (
    AdvertiseOption,
    BindOption,
    CoordinatorOption,
    JobArgument,
    LogFormatOption,
    ResumeOption,
    RunDirOption,
    SaveOption,
    VerboseOption,
    from_here,
)
from taihu.core.process.programs.preparation import importing_much
from taihu.core.process.streams import outlive_output
from taihu.core.system.sockets import gethostname
from taihu.core.wire.base.address import host_of


@takes_options
def agent(
    job_file: JobArgument = None,
    *,
    coordinator: CoordinatorOption = None,
    bind: BindOption = "",
    advertise: AdvertiseOption = "",
    run_dir: RunDirOption = None,
    save: SaveOption = None,
    resume: ResumeOption = None,
    log_format: LogFormatOption = "auto",
    verbose: VerboseOption = False,
    flags: JobFlags,
) -> int:
    """Run the workers that a run assigns to this machine, as agents come and go, until the run has ended.

    Start one on each machine, at any time. All workers of the job are shared out among the agents that are there. An
    agent that joins takes workers over from others behind the next steps; SIGTERM or Ctrl-C has one leave, and others
    take over its workers, as they do where one dies. The bits of the run are those of its workers, wherever they run.
    The servers are started by `taihu server`, or with --exchange ring worker 0 by `taihu worker`. All need the same
    checkpoint.dir.

    \b
    Examples:
      taihu agent job.toml --coordinator 10.0.0.1:7070
      taihu agent job.toml --coordinator 10.0.0.1:7070 --workers 12 --set checkpoint.dir=/shared/checkpoints
      taihu agent job.toml --coordinator 10.0.0.1:7070 --set cluster.min_agents=3      begins with three
    """  # noqa: D301
    interrupts = Interrupts()
    outlive_output()
    with importing_much():
        from taihu.agent.living import AgentOptions, live
        from taihu.core.checkpoint.keepers import recovers, tell_finished
        from taihu.core.coordination.agents.answering import NEEDED_BY_AGENTS
        from taihu.core.coordination.client.client import coordinator_address
        from taihu.core.coordination.discovery import find_coordinator
        from taihu.core.wire.base.log import configure_logs
        from taihu.worker.preflight import check_trains

    own: dict[str, dict[str, object]] = {
        "cluster": {"coordinator": coordinator},
        "run": {"dir": run_dir, "save": from_here(save)},
        "checkpoint": {"resume": resume},
    }
    job = flags.resolve(job_file, own, launched=True)
    if not recovers(job):
        raise ConfigError(NEEDED_BY_AGENTS)
    coordinator_address(job)
    if tell_finished(job):
        return 0
    check_trains(job)
    interrupts.install()
    job = find_coordinator(job)
    name = f"{gethostname()}:{os.getpid()}"
    configure_logs(log_format, verbose=verbose, role="agent", agent=name)
    options = AgentOptions(name, host_of(bind), advertise, log_format, verbose=verbose)
    return live(job, options, interrupts)
