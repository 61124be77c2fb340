"""The rules of an exchange that goes on from a checkpoint: with the bits of one that was never interrupted."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import commit_all, keep, resume, with_checkpoints
from support.exchanges import exchange_steps, run_workers
from support.undisturbed import LAYOUT, family_of, gradients, job_of, parametrized, plan_of, run_of
from support.ways import DENSE, SPARSE, WAYS, Way
from support.worker import Values, Worker

from taihu.core.base.errors import CheckpointError
from taihu.core.checkpoint.held_back import held_back_by
from taihu.core.checkpoint.reading import Checkpoint
from taihu.core.job import Job

STEPS = 4
KEPT = 2
OVERFLOWS = 2
"""The step before the checkpoint does not fit into fp16 on one worker: how often that was so is kept, too."""


def given_by(rank: int, step: int) -> Values:
    given = gradients(rank, step)
    if (rank, step) == (1, OVERFLOWS):
        given[0] = 1e30
    return given


@cache
def undisturbed(way: Way) -> list[Values]:
    """The values that each worker reads at the end, in the run of all tests unless that goes by other numbers."""
    if way.precision != "fp16" and way.threshold == "layer":
        return run_of(way).parameters[STEPS - 1]
    given = given_by if way.precision == "fp16" else gradients
    return exchange_steps(job_of(way), LAYOUT, given, steps=STEPS, plan=plan_of(way)).parameters[-1]


def bits_of(ends: list[Values]) -> set[bytes]:
    return {end.tobytes() for end in ends}


def kept(way: Way, folder: Path) -> tuple[Job, Checkpoint]:
    """The job without checkpoints, and what its workers and servers have kept after some steps."""
    job = job_of(way)
    given = given_by if way.precision == "fp16" else gradients

    def work(worker: Worker) -> None:
        for step in range(1, KEPT + 1):
            worker.backward(step, given(worker.rank, step), known=worker.read())
        worker.complete()
        keep(job, worker, folder, KEPT)
        # What comes after changes nothing of it.
        worker.step(KEPT + 1, given(worker.rank, KEPT + 1))
        worker.complete()

    # It is the test that says when.
    keeping = with_checkpoints(job, dir=folder, every_steps=1000, restarts=0)
    run_workers(keeping, LAYOUT, work, plan=plan_of(way))
    return job, commit_all(job, LAYOUT, folder, KEPT)


# What is kept does not depend on what values travel by.
@parametrized([way for way in WAYS if way.transport != "grpc"])
def test_a_run_goes_on_with_the_bits_of_one_that_was_not_interrupted(way: Way, tmp_path: Path) -> None:
    job, checkpoint = kept(way, tmp_path)
    ends = resume(job, LAYOUT, checkpoint, steps=STEPS, gradients=gradients, plan=plan_of(way))
    assert bits_of(ends) == bits_of(undisturbed(way))


SEVERAL = [
    (Way("server", 1), (3, 2)),
    (Way("server", 1), (1, 4)),
    (Way("server", 3, "bf16"), (1, 2)),
    (Way("ring", 3), (0, 2)),
    (Way("ring", 1), (0, 4)),
]


@pytest.mark.parametrize(("way", "world"), SEVERAL, ids=str)
def test_servers_and_workers_may_be_more_or_fewer(way: Way, world: tuple[int, int], tmp_path: Path) -> None:
    """The mean of the workers' gradients is what counts: workers that all bring it lead to the same."""
    _, checkpoint = kept(way, tmp_path)
    other = way.job(world[0] or 2, world[1])

    def mean(_: int, step: int) -> Values:
        return np.asarray(sum(gradients(rank, step) for rank in range(3)) / 3, dtype=np.float32)

    ends = resume(other, LAYOUT, checkpoint, steps=STEPS, gradients=mean)
    assert len({end.tobytes() for end in ends}) == 1
    exact = undisturbed(way)[0]
    # Gradients of 16 bits are rounded on each worker, their mean here once.
    rtol, atol = (1e-4, 1e-5) if way.precision == "fp32" else (2**-6, 1e-3)
    np.testing.assert_allclose(ends[0], exact, rtol=rtol, atol=atol)


def test_a_ring_goes_on_through_servers_and_back(tmp_path: Path) -> None:
    """Sums of a ring and of servers differ in their last bits."""
    ways = Way("server", 1), Way("ring", 0), Way("ring", 2)
    for number, (way, other) in enumerate([(ways[0], ways[2]), (ways[1], ways[0]), (ways[2], ways[1])]):
        _, checkpoint = kept(way, tmp_path / str(number))
        ends = resume(job_of(other), LAYOUT, checkpoint, steps=STEPS, gradients=gradients)
        np.testing.assert_allclose(ends[0], undisturbed(way)[0], rtol=1e-4, atol=1e-5)


def test_what_was_held_back_is_divided_anew(tmp_path: Path) -> None:
    """The mean of what workers held back stays, so that nothing of the gradients is lost."""
    way = next(way for way in SPARSE if (way.kind, way.method, way.downlink) == ("server", "dlgs", "exact"))
    _, checkpoint = kept(way, tmp_path)
    before = [held_back_by(checkpoint, rank, 3, LAYOUT)["residual"] for rank in range(3)]
    after = [held_back_by(checkpoint, rank, 2, LAYOUT)["residual"] for rank in range(2)]
    np.testing.assert_allclose(np.mean(after, axis=0), np.mean(before, axis=0), rtol=1e-5, atol=1e-7)
    ends = resume(way.job(2, 2), LAYOUT, checkpoint, steps=STEPS, gradients=gradients)
    assert len({end.tobytes() for end in ends}) == 1


def test_a_checkpoint_that_lacks_what_is_needed_is_refused_in_one_line(tmp_path: Path) -> None:
    dense = next(way for way in DENSE if (way.kind, way.zero, way.transport) == ("server", 1, "tcp"))
    sparse = next(way for way in SPARSE if way.kind == "server" and way.downlink == "exact")
    _, checkpoint = kept(dense, tmp_path)
    with pytest.raises(CheckpointError, match=r"its gradients were not compressed; set compression.method = 'none'"):
        held_back_by(checkpoint, 0, 3, LAYOUT)
    with pytest.raises(CheckpointError, match=r"123 of 123 values of 'optimizer.momentum' are in none of its files"):
        checkpoint.read_shared("optimizer.momentum", LAYOUT, np.array([[0, 123]]), np.empty(123, np.float32))
    assert family_of(dense) != family_of(sparse)
