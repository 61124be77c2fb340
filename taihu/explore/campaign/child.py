"""A process that explores seeds: `python -m taihu.explore.campaign.child`, started by `taihu dev explore`.

It loads the daemons as simulated code, which no other process of ours should: one JSON line of its standard output is
one seed, or a story.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

import structlog

from taihu.explore import network
from taihu.explore.campaign.loading import Simulation, changes_of
from taihu.explore.campaign.work import Work
from taihu.explore.disk.modules import DiskStandIns
from taihu.explore.stand_ins.modules import source_modules

_RUNS_UNTIL_THAW: Final = 128


def main(text: str, write: Callable[[str], object]) -> None:
    """Do what `text`, a `Work` as JSON, asks for; each line of the results is given to `write`."""
    work = Work.from_json(text)
    disk = DiskStandIns()
    stand_ins = source_modules() | network.modules() | disk.modules
    Simulation(stand_ins, disk.builtins, changes_of(work.changes)).install()
    structlog.configure(processors=[_into_story], wrapper_class=structlog.make_filtering_bound_logger(20))

    from taihu.explore.campaign.exploring import Exploration  # noqa: PLC0415 - it loads the daemons, by the simulation

    exploration = Exploration(work)
    sys.unraisablehook = _without_ends
    # Collections in a run would come at other points in each of them: they come between two. What is frozen costs
    # them nothing, and memory that a run leaves is still in the caches for the next one.
    gc.disable()
    _collect(thaws=True)
    for runs, (seed, smaller, agents) in enumerate(work.all_cases, 1):
        write(exploration.explore(seed, smaller, agents=agents).as_json())
        _collect(thaws=not runs % _RUNS_UNTIL_THAW)


def _collect(*, thaws: bool) -> None:
    """Collect what is not frozen, with `thaws` all there is, and freeze what is left.

    What outlasts a run is scattered over the memory of all runs before: to look at it behind each took longer every
    time, 5 ms at first and 80 ms behind 1,200 runs.
    """
    if thaws:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


def _without_ends(unraisable: sys.UnraisableHookArgs) -> None:
    """Generators that a run leaves are closed when it is over, and can do nothing any more: that is no error."""
    from taihu.explore.tasks import Ended  # noqa: PLC0415

    if not isinstance(unraisable.exc_value, Ended):
        sys.__unraisablehook__(unraisable)


def _into_story(_: object, level: str, line: structlog.typing.EventDict) -> str:
    """Log lines are part of a run's story, where it has one."""
    from taihu.explore.scheduler import RUNNING  # noqa: PLC0415
    from taihu.explore.watching import Story  # noqa: PLC0415

    told: dict[str, Any] = dict(line)
    event = str(told.pop("event"))
    words = " ".join(f"{key}={value}" for key, value in told.items() if key not in ("role", "rank"))
    story = RUNNING().find_or_none(Story)
    if story is not None:
        story.tell(str(RUNNING().current.process), f"{level}: {event} {words}".rstrip())
    raise structlog.DropEvent


if __name__ == "__main__":
    # Whoever has asked may be gone, by a Ctrl-C: nobody is left to be told of anything.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main(sys.stdin.readline(), lambda line: print(line, flush=True))  # noqa: T201
