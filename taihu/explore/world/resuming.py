"""Going on with a run that has not ended well, by the same command and `--resume auto`: from what its disks hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from taihu.core.checkpoint.keepers import finished
from taihu.core.job import Job
from taihu.explore.disk.disk import RECORDS
from taihu.explore.scheduler import RUNNING
from taihu.explore.tasks import Process
from taihu.explore.world.members import Member
from taihu.explore.world.processes import SimulatedProcesses
from taihu.explore.world.supervisors import Supervisor

_HISTORY: Final = Path(RECORDS) / "history-of-resumed"
# The longest fault of a link or disk is over by then.
_REPAIRED_S: Final = 30.0


def go_on(job: Job, model: Path, gone: Callable[[Process], None], members: list[str]) -> list[Member]:
    """Run the job from its newest checkpoint to its end, after all has been repaired; its processes.

    None, where no step is left to do.
    """
    scheduler = RUNNING()
    scheduler.block("repairs", scheduler.now + _REPAIRED_S)
    own = {
        "checkpoint": job.checkpoint.model_copy(update={"resume": Path("auto")}),
        "run": job.run.model_copy(update={"history": _HISTORY}),
    }
    resumed = job.model_copy(update=own)
    if finished(resumed) is not None:
        return []
    processes = SimulatedProcesses(resumed, model, gone)
    Supervisor("never", resumed, processes).run(members)
    return processes.all
