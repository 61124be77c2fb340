"""The state of a shard between two steps: a copy, by which another process goes on with the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.shards import KINDS, OTHER_GROUPS, Driven, bits, driven, make_plan, shard_job

from taihu.core.base.errors import CheckpointError, StaleError
from taihu.core.checkpoint.files import write_part
from taihu.core.checkpoint.part import Part, State
from taihu.core.checkpoint.reading import Checkpoint, open_checkpoint
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.coordination.coordinator.checkpointing import manifest_of
from taihu.kernels.base.half import from_half

STEPS = 8
TAKEN = 5


def written(run: Driven, state: State, folder: Path) -> Checkpoint:
    """A checkpoint of what one server held behind step `TAKEN`."""
    store, part = CheckpointStore(folder), Part("server 0", TAKEN, state)
    place = store.folder_of(TAKEN)
    store.commit(manifest_of(run.job, run.plans[-1], TAKEN, {part.member: write_part(place, part)}))
    return open_checkpoint(place)


def go_on(run: Driven) -> list[object]:
    """All that the steps after `TAKEN` answer."""
    return [bits(run.step(step)) for step in range(TAKEN + 1, STEPS + 1)]


def begun(kind: str, replanned: bool) -> Driven:
    """A run up to step `TAKEN`."""
    run = driven(kind)
    for step in range(1, TAKEN + 1):
        if replanned and step == 3:
            run.plans.append(make_plan(2, 3, OTHER_GROUPS))
        run.step(step)
    return run


def arrays(state: State) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in {**state.shared.arrays, **state.own}.items()}


@pytest.mark.parametrize("replanned", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_another_process_goes_on_with_the_same_bits(kind: str, replanned: bool, tmp_path: Path) -> None:
    run = begun(kind, replanned)
    checkpoint, parameters = written(run, run.shard.state(), tmp_path), run.parameters.copy()
    expected = go_on(run)
    other = Driven(run.job, seed=1, plan=run.plans[-1])
    other.parameters[:] = parameters  # as worker 0 brings them
    other.shard.resume(checkpoint)
    assert other.shard.step == TAKEN
    if other.kind is not None:
        for spec in other.frames:
            (codes,) = other.shard.ask(other.question(spec, 0, TAKEN)).pieces
            values = np.empty(spec.count, np.float32)
            from_half(codes, other.kind, values)
            restored = parameters[spec.offset : spec.offset + spec.count]
            np.testing.assert_allclose(values, restored, rtol=1e-2, atol=1e-3)
    assert go_on(other) == expected
    assert other.parameters.tobytes() == run.parameters.tobytes()
    assert arrays(other.shard.state()) == arrays(run.shard.state())


def test_thresholds_of_other_units_are_made_anew(tmp_path: Path) -> None:
    run = begun("squeezed", replanned=False)
    checkpoint = written(run, run.shard.state(), tmp_path)
    other = Driven(run.job, plan=make_plan(2, TAKEN + 1, OTHER_GROUPS, frame=20))
    other.shard.resume(checkpoint)
    state = other.shard.state()
    assert len(state.own["ages"]) != len(run.shard.state().own["ages"])
    assert (state.own["ages"] == -1).all()
    assert state.shared.arrays["residual"].tobytes() == run.shard.state().shared.arrays["residual"].tobytes()


def test_a_checkpoint_without_what_the_optimizer_needs_is_refused(tmp_path: Path) -> None:
    run = begun("sgd", replanned=False)
    checkpoint = written(run, run.shard.state(), tmp_path)
    with pytest.raises(CheckpointError, match=r"optimizer\.momentum"):
        driven("momentum").shard.resume(checkpoint)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_was_given_up_is_replayed_with_the_same_bits(kind: str) -> None:
    run, undisturbed = driven(kind), driven(kind)
    for each in (run, undisturbed):
        each.step(1)
    for spec in run.frames:
        run.shard.push(run.frame(spec, 0, 2, np.full(spec.count, 7.0, np.float32)))
    replayed = bits(run.step(2, attempt=1))
    assert {header.address.at.attempt for header, _ in replayed.values()} == {1}
    assert {at: values for at, (_, values) in replayed.items()} == {
        at: values for at, (_, values) in bits(undisturbed.step(2)).items()
    }
    assert bits(run.step(3, attempt=1)).keys() == bits(undisturbed.step(3)).keys()
    assert run.parameters.tobytes() == undisturbed.parameters.tobytes()


def test_a_step_that_changed_parameters_is_not_replayed() -> None:
    run = driven("sgd")
    first = run.frames[0]
    for rank in range(2):
        run.shard.push(run.frame(first, rank, 1, np.ones(first.count, np.float32)))
    present = run.parameters.copy()
    for spec in run.frames:
        with pytest.raises(StaleError, match="changed parameters already; restore the servers to step 0 first"):
            run.shard.push(run.frame(spec, 0, 1, np.ones(spec.count, np.float32), attempt=1))
    assert (run.parameters == present).all()


NAMES = {
    "sgd": {"parameters"},
    "momentum": {"parameters", "optimizer.momentum"},
    "adam": {"parameters", "optimizer.exp_avg", "optimizer.exp_avg_sq"},
    "bf16": {"parameters", "optimizer.momentum"},
    "fp16": {"parameters", "optimizer.momentum"},
    "zero 3": {"parameters", "optimizer.momentum"},
    "sparse push": {"parameters", "optimizer.exp_avg", "optimizer.exp_avg_sq"},
    "sparse pull": {"parameters"},
    "squeezed": {"parameters", "residual", "thresholds", "ages", "kept"},
    "sums": set(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_a_copy_of_flat_arrays(kind: str) -> None:
    run = driven(kind)
    run.step(1)
    state = run.shard.state()
    assert run.shard.keeps_state == (kind != "sums")
    assert state.facts == {"plan": 1}
    before = arrays(state)
    assert before.keys() == NAMES[kind]
    run.step(2)
    for name, array in {**state.shared.arrays, **state.own}.items():
        assert (array.ndim, array.dtype.name) == (1, "int64" if name in ("ages", "kept") else "float32")
    assert arrays(state) == before
    if kind != "sums":
        assert state.shared.arrays["parameters"].tobytes() != run.parameters.tobytes()


def test_a_state_is_that_of_a_whole_step() -> None:
    run = driven("sgd")
    run.shard.state()
    gradients = run.gradients(1)
    for number, spec in enumerate(run.frames):
        for rank in range(2):
            run.shard.push(run.frame(spec, rank, 1, gradients[spec.offset][rank]))
        if number < len(run.frames) - 1:
            with pytest.raises(StaleError, match="step 1 has not ended on this server; nothing of it can be kept"):
                run.shard.state()
    assert run.shard.state().shared.arrays["parameters"].tobytes() == run.parameters.tobytes()


def test_a_server_of_several_keeps_its_own_part() -> None:
    halves = [Driven(shard_job({}, servers=2), index=index) for index in range(2)]
    bounds = [half.shard.state().shared.bounds for half in halves]
    for half, own in zip(halves, bounds, strict=True):
        assert own.tolist() == half.partition.bounds.tolist()
