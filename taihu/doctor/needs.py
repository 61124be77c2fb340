"""The needs of a job, of each of its processes and of all of them on one machine. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from taihu.core.job import Job
from taihu.core.planner.memory import MemoryJob, job_memory, server_memory, worker_memory

_PYTHON_BYTES = 200_000_000
_OWN_FILES = 64
_FILES_PER_MEMBER = 6
_FP32_BYTES = 4


@dataclass(frozen=True)
class Needs:
    """Bytes and descriptors that a job needs.

    Attributes:
        open_files: descriptors of the process with the most connections.
        worker_bytes: memory of one worker, Python and its libraries included.
        server_bytes: of one server; 0 where there are none.
        machine_bytes: of all processes on one machine.
        shared_bytes: in /dev/shm where all processes are on one machine; 0 where they share nothing.
        must_share: whether the job asks for shared memory, rather than takes it where it can.
        checkpoint_bytes: of all checkpoints that are there at once.
    """

    open_files: int
    worker_bytes: int = 0
    server_bytes: int = 0
    machine_bytes: int = 0
    shared_bytes: int = 0
    must_share: bool = False
    checkpoint_bytes: int = 0


def needs_of(job: Job, memory: MemoryJob | None) -> Needs:
    """The needs of `job`; without `memory`, which is not known where its data cannot be read, the files alone."""
    members = job.servers + job.world.workers
    # A channel, a stream's connection, one beside it, both of a coordinator, and one that takes the place of another.
    files = _OWN_FILES + _FILES_PER_MEMBER * members
    if memory is None:
        return Needs(files)
    arenas = job.world.workers + (1 if job.servers else 0)
    # The newest are kept until the next one is whole.
    kept = job.checkpoint.keep + 1
    return Needs(
        files,
        worker_memory(memory).total + _PYTHON_BYTES,
        server_memory(memory).total + _PYTHON_BYTES if memory.servers else 0,
        job_memory(memory).total + members * _PYTHON_BYTES,
        arenas * memory.elements * _FP32_BYTES if job.shares_memory else 0,
        job.exchange.transport == "same-host",
        kept * memory.elements * (_FP32_BYTES + memory.owner_bytes_per_parameter),
    )
