"""Steps that do not wait for all workers, in any order of events, against versions that NumPy keeps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loose_worlds import LooseWorld, frames_of, gradient

from taihu.core.base.errors import StaleError
from taihu.core.traits.consistencies import CONSISTENCIES
from taihu.core.wire.frames.headers import At
from taihu.ps_server.loose_aggregator import LooseAggregator

EACH = st.sampled_from(["ssp:1", "ssp:2", "ssp:4", "async"])
SPARES = st.sampled_from(["bsp:N-1", "bsp:N-2"])


def made(key: str, workers: int, frames: int, steps: int, data: st.DataObject) -> LooseWorld:
    """A world whose events come in any order that Hypothesis finds."""
    world = LooseWorld(CONSISTENCIES[key], workers, frames, steps)
    world.run(lambda count: data.draw(st.integers(0, count - 1)))
    return world


@given(st.data(), EACH, st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))
def test_each_frame_enters_once_and_none_is_staler_than_the_bound(
    data: st.DataObject, key: str, workers: int, frames: int, steps: int
) -> None:
    world = made(key, workers, frames, steps, data)
    entered = sorted((number, entry.rank, entry.step) for number, entry in world.entries)
    every = [(n, rank, step) for n in range(frames) for rank in range(workers) for step in range(1, steps + 1)]
    assert entered == every
    lead = world.consistency.lead
    if lead is not None:
        assert all(entry.staleness <= lead for _, entry in world.entries)
        # Who computes a step has been answered the one before.
        assert world.most_ahead <= lead + 1
    for number, entry in world.entries:
        seen = {(each.rank, each.step) for n, each in world.entries if n == number}
        assert (entry.rank, entry.step) in seen
        most = workers * steps if lead is None else (2 * lead + 1) * (workers - 1)
        assert 0 <= entry.missed <= most


@given(st.data(), EACH | SPARES, st.integers(3, 4), st.integers(1, 3), st.integers(1, 4))
def test_what_is_read_is_what_gradients_were_computed_from(
    data: st.DataObject, key: str, workers: int, frames: int, steps: int
) -> None:
    world = made(key, workers, frames, steps, data)
    reads = {(entry.rank, entry.step): {} for _, entry in world.entries}  # type: ignore[var-annotated]
    for number, entry in (*world.entries, *world.dropped):
        reads.setdefault((entry.rank, entry.step), {})[number] = entry.read
    parameters = [versions[0].copy() for versions in world.versions]
    for each in world.order:
        if each.is_dropped:
            continue
        together = [e for e in world.order if (e.frame, e.version) == (each.frame, each.version) and not e.is_dropped]
        if each != together[0]:
            continue
        of = slice(3 * each.frame, 3 * each.frame + 3)
        gradients = []
        for one in together:
            whole = np.concatenate([world.versions[n][reads[one.rank, one.step][n]] for n in range(frames)])
            gradients.append(gradient(whole, one.rank, one.step)[of])
        parameters[each.frame] -= 0.1 * (np.sum(gradients, axis=0) / len(gradients))
        np.testing.assert_array_equal(parameters[each.frame], world.versions[each.frame][each.version])


@given(st.data(), SPARES, st.integers(3, 5), st.integers(1, 3), st.integers(1, 5))
def test_a_step_is_the_mean_of_those_that_come_first(
    data: st.DataObject, key: str, workers: int, frames: int, steps: int
) -> None:
    world = made(key, workers, frames, steps, data)
    assert all(len(versions) == steps + 1 for versions in world.versions)
    assert all(entry.staleness == 0 for _, entry in world.entries)
    for number in range(frames):
        for step in range(1, steps + 1):
            ranks = [entry.rank for n, entry in world.entries if (n, entry.step) == (number, step)]
            assert len(ranks) == len(set(ranks)) == workers - world.consistency.spares
            assert ranks == sorted(ranks)


def test_who_goes_on_from_one_frame_leaves_no_step_of_another_out() -> None:
    """Worker 2 has sent frame 1 of step 2 alone, when worker 0 hears from that frame that the step is over."""
    world = LooseWorld(CONSISTENCIES["bsp:N-2"], 3, 2, 5)
    world.play("0 computes, 2 computes, 2 sends 0, 0 sends 0, 2 sends 1, 2 computes, 2 sends 1, 0 sends 1")
    # Then worker 0 makes all steps, before the others go on.
    world.run(lambda count: 0)
    assert all(len(versions) == 6 for versions in world.versions)


def test_a_worker_ahead_is_answered_when_the_slowest_has_come_near() -> None:
    (frame,) = frames_of(1)
    aggregator: LooseAggregator[str] = LooseAggregator(CONSISTENCIES["ssp:1"], 2, (frame,))
    first = aggregator.offer(frame, 0, At(1, 1), "g")
    assert first is not None
    assert [due.rank for due in first.answers] == [0]
    second = aggregator.offer(frame, 0, At(1, 2), "g")
    assert second is not None
    assert (len(second.updates), second.answers) == (1, ())
    third = aggregator.offer(frame, 1, At(1, 1), "g")
    assert third is not None
    assert [(due.rank, due.at.step) for due in third.answers] == [(0, 2), (1, 1)]
    assert third.updates[0].entries[0].missed == 2


def test_nobody_waits_for_a_worker_that_has_finished() -> None:
    (frame,) = frames_of(1)
    aggregator: LooseAggregator[str] = LooseAggregator(CONSISTENCIES["ssp:1"], 2, (frame,))
    for step in (1, 2):
        aggregator.offer(frame, 0, At(1, step), "g")
    assert [due.rank for due in aggregator.finish(frame, 1).answers] == [0]
    spared: LooseAggregator[str] = LooseAggregator(CONSISTENCIES["bsp:N-1"], 3, (frame,))
    spared.offer(frame, 0, At(1, 1), "g")
    assert spared.finish(frame, 1).updates == ()
    assert len(spared.finish(frame, 2).updates) == 1


@pytest.mark.parametrize("step", [0, 3])
def test_a_step_that_cannot_follow_is_refused(step: int) -> None:
    (frame,) = frames_of(1)
    aggregator: LooseAggregator[str] = LooseAggregator(CONSISTENCIES["async"], 2, (frame,))
    aggregator.offer(frame, 1, At(1, 1), "g")
    with pytest.raises(StaleError, match=f"worker 1, group 0, offset 0: step {step}, expected 2"):
        aggregator.offer(frame, 1, At(1, step), "g")


def test_who_has_met_lacks_nothing() -> None:
    (frame,) = frames_of(1)
    aggregator: LooseAggregator[str] = LooseAggregator(CONSISTENCIES["async"], 2, (frame,))
    for rank in (0, 1):
        aggregator.offer(frame, rank, At(1, 1), "g")
    aggregator.meet()
    turn = aggregator.offer(frame, 0, At(1, 2), "g")
    assert turn is not None
    (entry,) = turn.updates[0].entries
    assert (entry.read, entry.staleness, entry.missed) == (2, 0, 0)
