"""The state from which the workers of a script go on: what they hold in memory, or have written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from taihu.core.base.errors import ConfigError
from taihu.core.base.whole_file import make_durably, write_text
from taihu.core.checkpoint.places import Place, place_of
from taihu.core.checkpoint.reading import Checkpoint, open_checkpoint
from taihu.core.checkpoint.run_memory import discard_named, have_named, name_memory, named_memory
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.job.variables import variable_of
from taihu.core.settings import CheckpointSettings
from taihu.core.wire.base.clock import WallClock
from taihu.torch.kept.contents import ALIKE, Contents, Counts
from taihu.torch.kept.keeping import Arrays, Keeping
from taihu.torch.kept.offers import Chosen, Offer, choose
from taihu.torch.kept.telling import Telling, Workers

# Launchers count the lives of a script that are over: `taihu run`, torchrun, and Slurm, which queues a job again.
_LIVES: Final = (variable_of("LIVES"), "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
# torchrun starts all again where hosts come or go, which it does not count.
_LAUNCH: Final = "TORCHELASTIC_RUN_ID"
_NO_LAUNCH: Final = ("", "none")
_LAUNCHED: Final = "launch"
_MILLISECONDS: Final = 1000


class GoingOn:
    """Finds what earlier lives of a script have left, and takes it over; all workers call alike.

    Args:
        world: the workers, who have met.
        settings: `[checkpoint]`.
        comes_back: whether this process has kept state itself, and goes on with others.

    Attributes:
        keeping: the places where this worker keeps state from now on.
        holds_alike: whether it holds what all workers have alike, as the first one on each host does.
        out_of_memory: whether what was taken over lies in memory.
    """

    def __init__(self, world: Workers, settings: CheckpointSettings, *, comes_back: bool = False) -> None:
        self._world, self._settings = world, settings
        self._telling = Telling(world)
        folder = None if settings.dir is None or settings.dir == Path("none") else place_of(settings.dir)
        if folder is None and world.rank == 0:
            structlog.get_logger().warning("the state is not kept: no checkpoint.dir names a folder for it")
        # Each host of torchrun counts its own restarts.
        self._is_wanted = any(self._telling.of_all(comes_back or _goes_on(settings, folder, os.environ)))
        memory = self._prepared(folder)
        self.keeping = Keeping(
            world.job.name, world.rank, world.size, folder=folder, memory=memory, keep=settings.keep
        )
        self._offers = [Offer.heard(told) for told in self._telling.of_all(self.keeping.offer().told())]
        hosts = [offer.host for offer in self._offers]
        self.holds_alike = hosts.index(hosts[world.rank]) == world.rank
        self.out_of_memory = False

    def take_over(self, contents: Contents) -> Counts | None:
        """Load the newest state that was kept, where the script goes on; None where it begins."""
        counts = self._found(contents)
        # Later lives have larger numbers, whichever host counts them.
        self.keeping.begin(self._telling.number(int(WallClock().now() * _MILLISECONDS)))
        return counts

    def _prepared(self, folder: Place | None) -> Path | None:
        """The memory of this host; worker 0 finds out whether an earlier run is in the folder."""
        is_first = self._world.rank == 0
        if is_first and folder is not None and not self._is_wanted:
            _refuse_former(folder)
        if is_first and isinstance(folder, Path):
            _name_launch(folder, os.environ)
        if not isinstance(folder, Path) or not self._settings.in_memory:
            return None
        if is_first and not self._is_wanted:
            discard_named(folder)
        if is_first:
            name_memory(folder)
        self._telling.number(0)  # worker 0 has named it
        return have_named(named_memory(folder))

    def _found(self, contents: Contents) -> Counts | None:
        chosen = choose(self._offers) if self._is_wanted else None
        written = 0
        if self._is_wanted and self._world.rank == 0 and (newest := self.keeping.newest) is not None:
            written = newest.step
        written = self._telling.number(written)
        named = self._settings.resume
        if chosen is not None and chosen.held.label.step >= written:
            return self._from_memory(contents, chosen)
        if written:
            return self._from_disk(contents, self.keeping.written_behind(written))
        if named is not None and not self._settings.resumes_auto:
            checkpoint = open_checkpoint(place_of(named))
            checkpoint.verify()
            return self._from_disk(contents, checkpoint)
        return None

    def _from_memory(self, contents: Contents, chosen: Chosen) -> Counts:
        """Go on from memory of the hosts, wherever each part lies."""
        rank, label = self._world.rank, chosen.held.label
        alike = self.keeping.read_alike(chosen.held.writer, label) if rank == chosen.reader else {}
        alike = self._telling.arrays(alike, chosen.reader)
        own = self.keeping.read_own(rank, label) if chosen.own.get(rank) == rank else {}
        for writer, reader in sorted(chosen.own.items()):
            if writer != reader:
                moved = self.keeping.read_own(writer, label) if rank == reader else {}
                moved = self._telling.arrays(moved, reader)
                own = moved if rank == writer else own
        self.out_of_memory = True
        lost = [str(each) for each in range(self._world.size) if each not in chosen.own]
        if chosen.held.workers == self._world.size and lost and rank == 0:
            lost_of = f"generators and what compression had held back, of worker {', '.join(lost)}"
            structlog.get_logger().warning("a host is lost", lost=lost_of)
        return self._loaded(contents, alike, own, "memory")

    def _from_disk(self, contents: Contents, checkpoint: Checkpoint) -> Counts:
        """Go on from a checkpoint."""
        read = self.keeping.read(checkpoint)
        alike = self._telling.arrays({name: each for name, each in read.items() if name.startswith(ALIKE)})
        own = {name: each for name, each in read.items() if not name.startswith(ALIKE)}
        return self._loaded(contents, alike, own, str(checkpoint.folder))

    def _loaded(self, contents: Contents, alike: Arrays, own: Arrays, source: str) -> Counts:
        world = self._world
        counts = contents.load(alike, own, world.size)
        world.goes_on(counts.exchanged)
        log = structlog.get_logger()
        if world.rank == 0 and counts.workers != world.size:
            lost = "what compression had held back, and the place within a batch of all workers"
            log.warning("other workers than before", before=counts.workers, now=world.size, lost=lost)
        if world.rank == 0:
            log.info("going on", step=counts.step, out_of=source)
        return counts


def forget_former(folder: Path) -> None:
    """The run has ended well: nobody goes on from its memory, and another one may have its launcher's name."""
    discard_named(folder)
    with suppress(OSError):
        (folder / _LAUNCHED).unlink(missing_ok=True)


def _goes_on(settings: CheckpointSettings, folder: Place | None, environment: Mapping[str, str]) -> bool:
    """Whether the script goes on from what an earlier life has kept in its folder, or in memory."""
    counts = [environment.get(name, "0") for name in _LIVES]
    if settings.resumes_auto or any(count.isdecimal() and int(count) > 0 for count in counts):
        return True
    launch = environment.get(_LAUNCH, "")
    return isinstance(folder, Path) and launch not in _NO_LAUNCH and _launched(folder) == launch


def _launched(folder: Path) -> str:
    """The launch that a folder names."""
    try:
        return (folder / _LAUNCHED).read_text()
    except OSError:
        return ""


def _name_launch(folder: Path, environment: Mapping[str, str]) -> None:
    """Have the folder name the launch whose lives keep state there."""
    launch = environment.get(_LAUNCH, "")
    if launch not in _NO_LAUNCH and _launched(folder) != launch:
        make_durably(folder)
        write_text(folder / _LAUNCHED, launch)


def _refuse_former(folder: Place) -> None:
    if CheckpointStore(folder).steps():
        raise ConfigError(
            f"{folder} has checkpoints of an earlier run: go on with checkpoint.resume = auto (taihu run --resume "
            "auto), or name another checkpoint.dir"
        )
