"""The memory of a host's processes, for every way to run a job that a search compares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, partial

from taihu.cli.planning.job_memory import JobMemory
from taihu.core.base.words import counted
from taihu.core.job import Job
from taihu.core.planner.largest_batch import largest_batch
from taihu.core.planner.memory import MemoryJob, server_memory, worker_memory
from taihu.local.display.display import human_bytes
from taihu.search.job_file import where
from taihu.search.ways import Candidate, Way
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.load import load_dataset


class HostMemory:
    """The memory of hosts that have `free` bytes each; without a limit nothing is counted, and no data are read.

    Args:
        job: as it is; candidates train the same model on the same data.
        free: bytes of a host, infinite without a limit.
    """

    def __init__(self, job: Job, free: float) -> None:
        self._job = job
        self._free = free
        self._models: dict[str, JobMemory] = {}
        self._known: dict[Way, int] = {}

    def fits(self, candidate: Candidate) -> bool:
        """Whether its hosts have room for it."""
        bytes_needed = self.host_bytes(candidate)
        return bytes_needed is None or bytes_needed <= self._free

    def host_bytes(self, candidate: Candidate) -> int | None:
        """Bytes of the host that has to hold the most; None where it is not asked for."""
        if math.isinf(self._free):
            return None
        way = candidate.way
        if way not in self._known:
            worker, server = self._of_processes(self._facts(candidate))
            self._known[way] = worker + server if way.beside else max(worker, server)
        return self._known[way]

    def complaint(self, candidates: Sequence[Candidate]) -> str:
        """A line that says what fits nowhere, and what would."""
        needed, least = min(((self.host_bytes(each) or 0, each) for each in candidates), key=lambda each: each[0])
        way = least.way
        servers = counted(way.servers, "server") if way.servers else "a ring"
        how = f"{servers}, zero {way.zero}, recompute {way.recompute}, {way.precision}"
        batch = self._largest_batch(least)
        smaller = f", or set train.batch = {batch}" if batch else ""
        return (
            f"the job fits in no way into {human_bytes(self._free)} of a host: the least that one takes is "
            f"{human_bytes(needed)} ({how}; {where(way)}); give hosts with so much{smaller}"
        )

    def _largest_batch(self, candidate: Candidate) -> int:
        facts = self._facts(candidate)
        _, server = self._of_processes(facts)
        room = int(self._free) - (server if candidate.way.beside else 0)
        of_batch = partial(self._of_mode(candidate.job).of_batch, candidate.job)
        return largest_batch(facts, of_batch, candidate.job.train.batch, room, int(self._free))

    def _of_processes(self, facts: MemoryJob) -> tuple[int, int]:
        return worker_memory(facts).total, server_memory(facts).total

    def _facts(self, candidate: Candidate) -> MemoryJob:
        return self._of_mode(candidate.job).of_job(candidate.job)

    def _of_mode(self, job: Job) -> JobMemory:
        """Activations depend on the layers that are spread."""
        mode = job.exchange.fc
        if mode not in self._models:
            self._models[mode] = JobMemory(job, self._data)
        return self._models[mode]

    @cached_property
    def _data(self) -> Dataset:
        return load_dataset(self._job.data, self._job.model.name)
