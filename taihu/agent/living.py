"""The life of an agent's process: it prepares what all workers need, and runs them until nothing is left to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from taihu.agent.agent import Agent
from taihu.agent.attending import Attending
from taihu.core.base.whole_file import write_text
from taihu.core.coordination.coordinator.service import new_incarnation
from taihu.core.job import Job, job_to_toml
from taihu.core.job.machine import share_of_threads
from taihu.core.process.entry import Interrupts
from taihu.core.process.lives import passing_folder
from taihu.core.wire.base.address import join_address
from taihu.core.wire.base.log import LogFormat
from taihu.local.processes.processes import LocalProcesses
from taihu.worker.first_step import load_first_step

_EVERYWHERE: Final = "0.0.0.0"  # noqa: S104


@dataclass(frozen=True)
class AgentOptions:
    """Options of an agent that differ between machines.

    Attributes:
        name: of the agent, for people.
        host: at which its workers listen, where others reach them; "" for every interface.
        advertise: the host that others are told; "" for that which reaches the coordinator.
        log_format: of the workers' lines.
        verbose: every step is logged.
    """

    name: str
    host: str
    advertise: str
    log_format: LogFormat
    verbose: bool


def live(job: Job, options: AgentOptions, interrupts: Interrupts) -> int:
    """Run the workers that the run assigns to this machine; the exit code.

    Raises:
        TaihuError: see `Agent.run`.
    """
    life = new_incarnation()
    with passing_folder() as folder:
        job_file = folder / "job.toml"
        write_text(job_file, job_to_toml(job, given=True))
        common = [str(job_file), "--agent", str(life), "--on-term", "leave", *_arguments(job, options)]

        def arguments(rank: int, beside: int) -> list[str]:
            threads = share_of_threads(job, beside)
            return ["--rank", str(rank), *common, "--set", f"cluster.threads={threads}"]

        with LocalProcesses(None, fork=True, lost_after_s=job.cluster.lost_after_s) as processes:
            load_first_step(job)
            processes.stand_by()
            interrupts.are_heard()
            attending = Attending(job, life, options.name)
            return Agent(job, processes, arguments, attending=attending, interrupts=interrupts).run()


def _arguments(job: Job, options: AgentOptions) -> Iterator[str]:
    """The options of every worker."""
    yield from ("--log-format", options.log_format)
    if options.verbose:
        yield "--verbose"
    if job.workers_meet:
        yield from ("--bind", join_address(options.host or _EVERYWHERE, 0))
    if options.advertise:
        yield from ("--advertise", options.advertise)
