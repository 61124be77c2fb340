"""The largest batch against trying all of them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from taihu.core.planner.groups import Group
from taihu.core.planner.largest_batch import StepBytes, largest_batch
from taihu.core.planner.memory import MemoryJob, fits, worker_memory
from taihu.core.traits.stages import STAGES

JOB = MemoryJob((100, 50), (Group(0, 1),), workers=3, servers=2, stage=STAGES[1], optimizer_arrays=1, frame_bytes=10)
STATES = worker_memory(JOB).total


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=60),
    st.integers(0, 900),
    st.sampled_from([200, 10_000]),
    st.none() | st.integers(0, 6000),
)
def test_no_larger_batch_fits(more: list[int], spare: int, server: int, machine: int | None) -> None:
    """`more` are the bytes that each further sample takes."""
    totals = [sum(more[: count + 1]) for count in range(len(more))]

    def of_batch(batch: int) -> StepBytes:
        assert 1 <= batch <= len(more), "only what may be a batch is asked for"
        return StepBytes(totals[batch - 1], batch)

    def has_room(batch: int) -> bool:
        job = replace(JOB, activation_bytes=totals[batch - 1], data_bytes=batch)
        return fits(job, STATES + spare, server, machine_free=machine)

    fitting = [batch for batch in range(1, len(more) + 1) if has_room(batch)]
    found = largest_batch(JOB, of_batch, len(more), STATES + spare, server, machine_free=machine)
    assert found == max(fitting, default=0)


def test_few_batches_are_looked_at() -> None:
    asked: list[int] = []

    def of_batch(batch: int) -> StepBytes:
        asked.append(batch)
        return StepBytes(1000 * batch, 0)

    assert largest_batch(JOB, of_batch, 10**9, STATES + 5_000_000, 10**9) == 5000
    assert len(asked) < 30
    assert max(asked) == 8192


def test_of_no_samples_there_is_no_batch() -> None:
    assert largest_batch(JOB, lambda batch: StepBytes(0, 0), 0, 10**9, 10**9) == 0
