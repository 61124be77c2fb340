"""A program of the tests: checkpoints and files of the project on a disk whose power fails, at every point in turn.

`python losing_power.py SEEDS [SEEDS_WITH_CHANGES]` prints a line of JSON for each seed by which something is wrong,
also with each of `CHANGES`, wrong changes of the project.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from taihu.explore.campaign.loading import Simulation, SourceChange
from taihu.explore.carriers import Greenlets
from taihu.explore.disk.disk import SHARED, Disk
from taihu.explore.disk.modules import DiskStandIns, provide_disk
from taihu.explore.orders import RandomOrder
from taihu.explore.scheduler import Scheduler
from taihu.explore.stand_ins.modules import source_modules
from taihu.explore.tasks import Process, Task

STAND_INS = DiskStandIns()
MEMBERS = ("server 0", "worker 0")
STEPS = (2, 4, 6)


class Fails:
    """Kills a process at a point."""

    def __init__(self, scheduler: Scheduler, process: Process, at: int) -> None:
        self._scheduler = scheduler
        self._process = process
        self._left = at

    def marked(self, label: str, task: Task) -> None:
        if task.process is self._process:
            self._left -= 1
            if not self._left:
                self._scheduler.kill(self._process)


def run(seed: int, act: Callable[[list[Any]], None], check: Callable[[list[Any]], None]) -> None:
    """Have a process `act`, fail its power at some point, and `check` what another one finds."""
    scheduler = Scheduler(seed, Greenlets(), RandomOrder(Random(seed), 0.5))
    disk = provide_disk(scheduler, Disk(scheduler))
    process = Process("server 0")
    told: list[Any] = []

    def main() -> None:
        scheduler.observer = Fails(scheduler, process, Random(seed).randrange(1, 120))
        task = scheduler.spawn(lambda: act(told), "act", process)
        while not (task.has_ended or process.is_dead):
            scheduler.block("its end", scheduler.now + 0.01)
        scheduler.kill(process)
        disk.power_loss(process)
        check(told)

    try:
        scheduler.run(main, Process("supervisor"))
    finally:
        scheduler.close()


def keep_checkpoints(told: list[Any]) -> None:
    from taihu.core.checkpoint import files, manifest, part, store  # noqa: PLC0415 - simulated

    checkpoints = store.CheckpointStore(STAND_INS.path(SHARED) / "run" / "checkpoints")
    for step in STEPS:
        state = part.State(own={"values": np.arange(2000.0)})
        written = {
            member: files.write_part(checkpoints.folder_of(step), part.Part(member, step, state))
            for member in MEMBERS
        }
        checkpoints.commit(
            manifest.Manifest(
                job="j",
                settings={},
                step=step,
                total_steps=9,
                servers=1,
                workers=1,
                layers=[],
                groups=[],
                files=manifest.Manifest.entries(written),
            )
        )
        told.append(step)
        checkpoints.prune(1, step)


def find_checkpoints(told: list[Any]) -> None:
    from taihu.core.checkpoint.store import CheckpointStore  # noqa: PLC0415 - simulated

    store = CheckpointStore(STAND_INS.path(SHARED) / "run" / "checkpoints")
    steps = store.steps()
    for step in steps:
        store.open(step).verify()
    if told and (not steps or steps[0] < told[-1]):
        raise AssertionError(f"step {told[-1]} was kept, there is {steps}")


def replace_files(told: list[Any]) -> None:
    from taihu.core.base.whole_file import write_text  # noqa: PLC0415 - simulated

    for version in range(6):
        write_text(STAND_INS.path(SHARED) / "file", f"{version}" * 3000)
        told.append(version)


def find_files(told: list[Any]) -> None:
    path = STAND_INS.path(SHARED) / "file"
    if path.exists():
        text = path.read_text()
        if len(text) != 3000 or len(set(text)) != 1:
            raise AssertionError(f"the file holds {len(text)} bytes: {text[:5]}...")
    if told and (not path.exists() or int(path.read_text()[0]) < told[-1]):
        raise AssertionError(f"version {told[-1]} was written, it is not there")


KINDS = {"checkpoints": (keep_checkpoints, find_checkpoints), "files": (replace_files, find_files)}
CHANGES = {
    "files are not synchronized": ("taihu.core.base.whole_file", "            synchronize(partial)\n"),
    "names of files are not synchronized": ("taihu.core.base.whole_file", "            synchronize(whole.parent)\n"),
    "names of folders are not synchronized": ("taihu.core.base.whole_file", "    synchronize(folder.parent)\n"),
    "parts are not synchronized": ("taihu.core.checkpoint.places", "            os.fsync(file.fileno())\n"),
}


def changed(name: str) -> dict[str, SourceChange]:
    module, line = CHANGES[name]

    def change(source: str) -> str:
        assert source.count(line) == 1
        return source.replace(line, " " * (len(line) - len(line.lstrip())) + "pass\n")

    return {module: change}


def explore(seeds: int, *changes: str) -> None:
    made = {name: change for each in changes for name, change in changed(each).items()}
    Simulation({**source_modules(), **STAND_INS.modules}, STAND_INS.builtins, made).install()
    for kind, (act, check) in KINDS.items():
        for seed in range(seeds):
            try:
                run(seed, act, check)
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"
                told = {"change": next(iter(changes), ""), "kind": kind, "seed": seed, "wrong": wrong}
                sys.stdout.write(json.dumps(told) + "\n")


def main(seeds: int, seeds_with_changes: int = 0) -> None:
    for change in CHANGES if seeds_with_changes else ():
        # All that is foreign is loaded already; the project's modules are, changed, in a process of their own.
        if not (pid := os.fork()):
            explore(seeds_with_changes, change)
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(pid, 0)
    explore(seeds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
