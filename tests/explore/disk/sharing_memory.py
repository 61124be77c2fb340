"""A program of the tests: ranks of a simulated host sum in memory that they share, at any order of their threads.

`python sharing_memory.py FIRST LAST` prints a line of JSON for each seed by which something is wrong.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest

from taihu.explore.campaign.loading import Simulation
from taihu.explore.carriers import Greenlets
from taihu.explore.disk.disk import MEMORY, Disk
from taihu.explore.disk.faults import DiskFault
from taihu.explore.disk.modules import DiskStandIns, provide_disk
from taihu.explore.orders import RandomOrder
from taihu.explore.scheduler import Scheduler
from taihu.explore.stand_ins.modules import source_modules
from taihu.explore.tasks import Process, Task

STAND_INS = DiskStandIns()
RANKS, CALLS, VALUES = 3, 4, 50


class World:
    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed, Greenlets(), RandomOrder(Random(seed), 0.5))
        self.disk = provide_disk(self.scheduler, Disk(self.scheduler))
        self.processes = [Process(f"worker {rank}") for rank in range(RANKS)]
        self.descriptors: dict[int, Any] = {}
        self.results: dict[int, list[bytes]] = {rank: [] for rank in range(RANKS)}

    def rank(self, rank: int) -> None:
        from taihu.allreduce.same_host.allreduce import SharedAllreduce  # noqa: PLC0415 - simulated
        from taihu.core.wire.links.shared_memory import SharedBuffer, open_shared  # noqa: PLC0415 - simulated

        with SharedBuffer.create(VALUES * 4) as own:
            self.descriptors[rank] = own.descriptor
            while len(self.descriptors) < RANKS:
                self.scheduler.block("other ranks", self.scheduler.now + 0.01)
            buffers = [own if each == rank else open_shared(self.descriptors[each]) for each in range(RANKS)]
            sums = SharedAllreduce(rank, buffers)
            for call in range(CALLS):
                own.array(np.float32, VALUES)[:] = gradient(rank, call)
                sums.allreduce(0, VALUES, "fp32")
                self.results[rank].append(own.array(np.float32, VALUES).tobytes())

    def main(self) -> None:
        from taihu.core.base.errors import SharedMemoryError  # noqa: PLC0415
        from taihu.core.wire.links.shared_memory import SharedBuffer  # noqa: PLC0415 - simulated

        tasks: list[Task] = []
        for rank, process in enumerate(self.processes):
            tasks.append(self.scheduler.spawn(partial(self.rank, rank), "sum", process))
        while not all(task.has_ended for task in tasks):
            self.scheduler.block("ranks", self.scheduler.now + 0.1)
        assert not self.scheduler.failures, self.scheduler.failures[0].traceback
        for call in range(CALLS):
            results = {self.results[rank][call] for rank in range(RANKS)}
            assert len(results) == 1, f"call {call}: ranks have {len(results)} results"
            found = np.frombuffer(results.pop(), dtype=np.float32)
            expected = sum(gradient(rank, call).astype(np.float64) for rank in range(RANKS))
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        self.leave_one_behind(SharedBuffer)
        self.disk.faults.begin(DiskFault("full", below=MEMORY))
        with pytest.raises(SharedMemoryError, match="No space left"):
            SharedBuffer.create(100)
        assert STAND_INS.modules["os"].listdir(MEMORY) == []

    def leave_one_behind(self, buffers: Any) -> None:
        """A process that was killed has left its buffer: the next one of any other process removes it."""
        process, left = Process("worker 9"), []

        def leave() -> None:
            left.append(buffers.create(10))
            self.scheduler.block("its end")

        self.scheduler.spawn(leave, "leave", process)
        while not left:
            self.scheduler.block("a buffer", self.scheduler.now + 0.1)
        with buffers.create(10):
            assert len(STAND_INS.modules["os"].listdir(MEMORY)) == 2
        self.scheduler.kill(process)
        buffers.create(10).close()


def gradient(rank: int, call: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng([rank, call]).standard_normal(VALUES, dtype=np.float32)


def main(first: int, last: int) -> None:
    Simulation({**source_modules(), **STAND_INS.modules}, STAND_INS.builtins).install()
    for seed in range(first, last):
        world = World(seed)
        try:
            world.scheduler.run(world.main, Process("supervisor"))
        except Exception as error:
            sys.stdout.write(json.dumps({"seed": seed, "wrong": f"{type(error).__name__}: {error}"}) + "\n")
        finally:
            world.scheduler.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
