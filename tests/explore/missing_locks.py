"""A program of the tests: small worlds around classes of the project whose locks can be taken out, on purpose.

`python missing_locks.py SEEDS` prints two lines of JSON for each world: the first seed by which the missing lock is
seen, and the first one by which something is wrong where all locks are there.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import structlog

from taihu.core.base.errors import ConfigError
from taihu.explore.campaign.loading import Simulation, changes_of
from taihu.explore.carriers import Batons
from taihu.explore.disk.disk import SHARED, Disk
from taihu.explore.disk.modules import DiskStandIns, provide_disk
from taihu.explore.line_switches import LineSwitches
from taihu.explore.orders import RandomOrder
from taihu.explore.scheduler import RUNNING, Scheduler
from taihu.explore.stand_ins.modules import source_modules
from taihu.explore.stand_ins.threads import Thread
from taihu.explore.tasks import Process

STAND_INS = DiskStandIns()
SHARES = (0.02, 0.1, 0.3)
Check = Callable[[], None]
Threads = tuple[Sequence[Callable[[], object]], Check]
"""The acts of threads, each one of them, and a check of what has come of it."""


class World(NamedTuple):
    """Threads around an object, and the lock of it that can be taken out.

    Attributes:
        module: of the class.
        locked: the beginning of the block that a lock protects.
        threads: makes the object.
        unlocked: stands in the place of `locked` where the lock goes; by default the same block without it.
    """

    module: str
    locked: str
    threads: Callable[[], Threads]
    unlocked: str = ""

    @property
    def change(self) -> tuple[str, str, str]:
        """The lock is taken out."""
        line, rest = self.locked.split("\n", 1)
        without = f"{line[: len(line) - len(line.lstrip())]}if True:\n{rest}"
        return self.module, self.locked, self.unlocked or without


def frame_buffers() -> Threads:
    """An array is lent to one at a time."""
    from taihu.ps_server.summing import FrameBuffers  # noqa: PLC0415 - simulated

    each = [FrameBuffers() for _ in range(8)]
    for buffers in each:
        buffers.give_back([buffers.lend(8, np.float32)])

    def use(rank: int) -> None:
        for buffers in each:
            lent = buffers.lend(8, np.float32)
            lent[:] = rank
            RUNNING().point("frame")
            assert (lent == rank).all(), "an array is lent to two"

    return [partial(use, rank) for rank in range(3)], lambda: None


def room() -> Threads:
    """A caller that says nothing is sent away in the end, once."""
    from taihu.core.wire.base.room import Room  # noqa: PLC0415 - simulated

    within, sent = Room(8, 1.0), Counter[int]()

    def say_nothing(number: int) -> None:
        def send_away() -> None:
            sent[number] += 1

        with within.place(send_away):
            scheduler = RUNNING()
            scheduler.block("time", scheduler.now + 5.0)

    def check() -> None:
        within.close()
        assert sent == Counter(range(3)), f"sent away: {sent}"

    return [partial(say_nothing, number) for number in range(3)], check


def history() -> Threads:
    """A history that is closed while others add to it has not failed."""
    from taihu.core.history.files import HistoryFile  # noqa: PLC0415 - simulated
    from taihu.core.history.records import Begin  # noqa: PLC0415 - simulated

    said: list[str] = []
    folder = STAND_INS.path(SHARED) / "history"
    files = [HistoryFile(folder, f"worker {number}", said.append) for number in range(6)]

    def add() -> None:
        for file in files:
            for generation in range(2):
                file.add(Begin("worker 0", generation, 0, servers=1, workers=1, zero=1, precision="fp32"))

    def close() -> None:
        for file in files:
            file.__exit__(None, None, None)

    def check() -> None:
        assert not said, said

    return [add, close], check


def endings() -> Threads:
    """One of those who end a worker's exchange is the first."""
    from taihu.core.wire.frames.identity import Sender, WorkerIdentity  # noqa: PLC0415 - simulated
    from taihu.core.wire.links.inbox import Origin  # noqa: PLC0415 - simulated
    from taihu.ps_server.exchanges import WorkerExchange  # noqa: PLC0415 - simulated

    exchanges = [
        WorkerExchange(
            WorkerIdentity("job", 0, 7),
            Origin("worker 0", Sender(7, 0), "server 0"),
            None,
            lend=np.empty,
            take=lambda exchange, frame: None,
            on_lost=lambda exchange, error: None,
        )
        for _ in range(4)
    ]
    firsts = list[int]()

    def end() -> None:
        for number, exchange in enumerate(exchanges):
            if exchange.end(None):
                firsts.append(number)

    def check() -> None:
        assert sorted(firsts) == list(range(4)), f"first to end: {firsts}"

    return [end, end], check


def shard() -> Threads:
    """Each sum is complete once, and the parameters are those of one thread."""
    from support.shards import driven  # noqa: PLC0415 - of simulated modules

    from taihu.ps_server.updating import Answer  # noqa: PLC0415 - simulated

    runs, expected, answers = [driven("momentum") for _ in range(4)], driven("momentum"), list[int]()
    gradients = expected.gradients(1)
    expected.step(1, gradients)

    def push(run: Any, rank: int) -> None:
        for spec in run.frames:
            if isinstance(run.shard.push(run.frame(spec, rank, 1, gradients[spec.offset][rank])), Answer):
                answers.append(spec.offset)

    def check() -> None:
        seen = Counter(answers)
        assert seen == Counter({spec.offset: len(runs) for spec in expected.frames}), seen
        assert {run.parameters.tobytes() for run in runs} == {expected.parameters.tobytes()}

    return [partial(push, run, rank) for run in runs for rank in range(2)], check


def coordinator() -> Threads:
    """There is one plan, whoever asks for it first."""
    from support.shards import make_plan  # noqa: PLC0415 - of simulated modules

    from taihu.core.coordination.coordinator.coordinator import Coordinator  # noqa: PLC0415 - simulated
    from taihu.core.wire.base.clock import SystemClock  # noqa: PLC0415 - simulated

    class Planning:
        def __init__(self) -> None:
            self.plan = make_plan()

    membership = SimpleNamespace(
        alike=SimpleNamespace(layout=make_plan().layout), outcome=SimpleNamespace(broken=None)
    )
    made: list[Planning] = []

    def make(_: object) -> Any:
        made.append(Planning())
        return made[-1]

    shared = Coordinator(membership, make, SystemClock())  # type: ignore[arg-type]
    plans: list[Any] = []

    def check() -> None:
        assert len(made) == 1, f"{len(made)} plans were made"
        assert {id(plan) for plan in plans} == {id(made[0].plan)}

    return [lambda: plans.append(shared.plan(10.0))] * 3, check


def checkpoints() -> Threads:
    """The last part makes a checkpoint count, once."""
    from support.shards import make_plan, shard_job  # noqa: PLC0415 - of simulated modules

    from taihu.core.checkpoint.files import PartFile  # noqa: PLC0415 - simulated
    from taihu.core.checkpoint.store import CheckpointStore  # noqa: PLC0415 - simulated
    from taihu.core.coordination.coordinator.checkpointing import Checkpointing  # noqa: PLC0415 - simulated
    from taihu.core.wire.base.clock import SystemClock  # noqa: PLC0415 - simulated

    folder = STAND_INS.path(SHARED) / "checkpoints"
    steps = range(2, 10, 2)
    for step in steps:
        (folder / f"step-{step:06d}").mkdir(parents=True)
    job = shard_job({"checkpoint": {"dir": str(folder), "every_steps": 2, "keep": 9}}, servers=2)
    kept, plan, committed = Checkpointing(job, folder, SystemClock()), make_plan(), list[int]()

    class Store(CheckpointStore):
        def commit(self, manifest: Any) -> None:
            committed.append(manifest.step)
            super().commit(manifest)

    kept._store = Store(folder)

    def store(member: str) -> None:
        for step in steps:
            kept.stored(member, step, PartFile(f"{member.replace(' ', '-')}.safetensors", 1, "0" * 64), plan)

    def check() -> None:
        assert committed == list(steps), f"committed: {committed}"

    return [partial(store, member) for member in ("server 0", "server 1", "worker 0")], check


WORLDS = {
    "frame buffers": World(
        "taihu.ps_server.summing", "        with self._lock:\n            array = self._free", frame_buffers
    ),
    "room": World(
        "taihu.core.wire.base.room",
        "        with self._changed:\n            self._number += 1\n            number = self._number\n",
        room,
        "        self._number += 1\n        number = self._number\n        with self._changed:\n",
    ),
    "history": World("taihu.core.history.files", "        with self._lock:\n            if self._is_broken", history),
    "endings": World("taihu.ps_server.exchanges", "        with self._ending:\n            first,", endings),
    "shard": World(
        "taihu.ps_server.server_shard", "        with self._lock:\n            if self._rates is not", shard
    ),
    "coordinator": World(
        "taihu.core.coordination.coordinator.coordinator",
        "        with self._changed:\n            layout = self",
        coordinator,
    ),
    "checkpoints": World(
        "taihu.core.coordination.coordinator.checkpointing",
        "        with self._changed:\n            files = self._book.stored(member, step, file)\n",
        checkpoints,
        "        files = self._book.stored(member, step, file)\n        with self._changed:\n",
    ),
}


def run(world: World, seed: int) -> None:
    """Run a world; raises what is wrong."""
    chance = Random(f"{seed} lines")
    scheduler = Scheduler(seed, Batons(), RandomOrder(Random(seed), 0.2))
    provide_disk(scheduler, Disk(scheduler))

    def main() -> None:
        acts, check = world.threads()
        threads = [Thread(target=act) for act in acts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check()

    modules = ("taihu", __name__)
    try:
        switches = LineSwitches(scheduler, modules, chance, chance.choice(SHARES), within_lines=seed % 2 == 0)
        with switches:
            scheduler.run(main, Process("server 0"))
        for failure in scheduler.failures:
            raise failure.error
    finally:
        scheduler.close()


def first_wrong(world: World, seeds: int) -> tuple[int, str] | None:
    """The first seed by which something is wrong, and what that is."""
    for seed in range(seeds):
        try:
            run(world, seed)
        except ConfigError:  # a lock that is not where it was is not one that is missed
            raise
        except Exception as error:
            return seed, f"{type(error).__name__}: {error}"
    return None


def main(seeds: int) -> None:
    sys.path[:0] = map(str, (Path(__file__).parents[2], Path(__file__).parents[1]))
    for is_missing in (True, False):
        # All that is foreign is loaded already; the project's modules are in processes of their own.
        if not (pid := os.fork()):
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
            changes = changes_of([world.change for world in WORLDS.values()] if is_missing else [])
            Simulation({**source_modules(), **STAND_INS.modules}, STAND_INS.builtins, changes).install()
            for name, world in WORLDS.items():
                told = {"world": name, "missing": is_missing, "wrong": first_wrong(world, seeds)}
                sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
