"""A run continued from a snapshot of its servers gives the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load, save
from support.frames import changed
from support.shards import KINDS, LAYOUT, OTHER_GROUPS, Driven, bits, driven, make_plan, shard_job

from taihu.core.base.errors import FrameError, ModelError, StaleError
from taihu.kernels.base.half import from_half
from taihu.ps_server.snapshot import Snapshot

STEPS = 8
TAKEN = 5


def written_and_read(snapshot: Snapshot) -> Snapshot:
    """Through the bytes of a file."""
    arrays = {name: array.copy() for name, array in snapshot.arrays.items()}
    numbers = {"step": np.array(snapshot.step), "plan": np.array(snapshot.plan)}
    read = load(save({**arrays, **numbers}))
    return Snapshot(int(read.pop("step")), int(read.pop("plan")), read)


def go_on(run: Driven, attempt: int = 0) -> list[object]:
    """All that the steps after the snapshot answer."""
    return [
        {at: (changed(header, attempt=0), values) for at, (header, values) in bits(answers).items()}
        for answers in (run.step(step, attempt=attempt) for step in range(TAKEN + 1, STEPS + 1))
    ]


def begun(kind: str, replanned: bool) -> Driven:
    """A run up to its snapshot."""
    run = driven(kind)
    for step in range(1, TAKEN + 1):
        if replanned and step == 3:
            run.plans.append(make_plan(2, 3, OTHER_GROUPS))
        run.step(step)
    return run


@pytest.mark.parametrize("replanned", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_another_process_goes_on_with_the_same_bits(kind: str, replanned: bool) -> None:
    run = begun(kind, replanned)
    snapshot = run.shard.snapshot()
    expected = go_on(run)
    other = driven(kind, seed=1)
    other.plans = run.plans
    other.shard.restore(written_and_read(snapshot), run.plans[-1])
    assert other.shard.step == TAKEN
    if other.kind is not None:
        for spec in other.frames:
            (codes,) = other.shard.ask(other.question(spec, 0, TAKEN)).pieces
            values = np.empty(spec.count, np.float32)
            from_half(codes, other.kind, values)
            restored = snapshot.arrays["parameters"][spec.offset : spec.offset + spec.count]
            np.testing.assert_allclose(values, restored, rtol=1e-2, atol=1e-3)
    assert go_on(other) == expected
    assert other.parameters.tobytes() == run.parameters.tobytes()
    for name, array in other.shard.snapshot().arrays.items():
        assert array.tobytes() == run.shard.snapshot().arrays[name].tobytes(), name


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_process_goes_back_with_the_same_bits(kind: str) -> None:
    run = begun(kind, replanned=False)
    snapshot = run.shard.snapshot()
    run.plans.append(make_plan(2, TAKEN + 1, OTHER_GROUPS))
    run.step(TAKEN + 1)
    spec = run.frames[0]
    late = run.frame(spec, 0, TAKEN + 2, np.ones(spec.count, np.float32))
    run.shard.push(late)  # waits
    run.plans.pop()
    run.shard.restore(snapshot, run.plans[0], attempt=1)
    with pytest.raises(StaleError, match="attempt 0 at step 6 was given up, this server is at attempt 1"):
        run.step(TAKEN + 1)
    undisturbed = begun(kind, replanned=False)
    assert go_on(run, attempt=1) == go_on(undisturbed)
    assert run.parameters.tobytes() == undisturbed.parameters.tobytes()


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
def test_a_snapshot_is_a_copy_of_flat_arrays(kind: str) -> None:
    run = driven(kind)
    run.step(1)
    snapshot = run.shard.snapshot()
    assert (snapshot.step, snapshot.plan, snapshot.keeps_nothing) == (1, 1, kind == "sums")
    assert snapshot.arrays.keys() == NAMES[kind]
    before = {name: array.tobytes() for name, array in snapshot.arrays.items()}
    run.step(2)
    for name, array in snapshot.arrays.items():
        assert (array.ndim, array.dtype.name) == (1, "int64" if name in ("ages", "kept") else "float32")
        assert array.tobytes() == before[name]
    if kind != "sums":
        assert snapshot.arrays["parameters"].tobytes() != run.parameters.tobytes()
    words = "nothing, the workers have all there is" if kind == "sums" else f"{len(NAMES[kind])} array"
    assert str(snapshot).startswith(f"step 1, plan 1: {words}")


def test_a_snapshot_is_taken_between_two_steps() -> None:
    run = driven("sgd")
    assert run.shard.snapshot().step == 0
    gradients = run.gradients(1)
    pushes = [(spec, rank) for spec in run.frames for rank in range(2)]
    for spec, rank in pushes:
        run.shard.push(run.frame(spec, rank, 1, gradients[spec.offset][rank]))
        if (spec, rank) != pushes[-1]:
            with pytest.raises(
                StaleError, match=r"snapshot after step [01]: a step is under way, take it between two"
            ):
                run.shard.snapshot()
    assert run.shard.snapshot().step == 1


def test_a_snapshot_of_something_else_is_refused_and_changes_nothing() -> None:
    run = begun("squeezed", replanned=False)
    snapshot = run.shard.snapshot()
    run.step(TAKEN + 1)
    held = run.shard.snapshot()
    arrays = dict(snapshot.arrays)
    without = {name: array for name, array in arrays.items() if name != "ages"}
    for wrong, words in (
        (without, "holds kept, parameters, residual, thresholds, expected ages, kept, parameters"),
        ({**arrays, "more": arrays["ages"]}, "holds ages, kept, more, parameters"),
        ({}, "holds nothing, expected ages, kept, parameters, residual, thresholds; continue with the settings"),
        ({**arrays, "residual": arrays["residual"][1:]}, r"residual: got float32\[122\], expected float32\[123\]"),
        (
            {**arrays, "thresholds": arrays["ages"]},
            r"thresholds: got int64\[7\], expected float32\[7\]; use the model",
        ),
    ):
        with pytest.raises(ModelError, match=f"snapshot of step 5.*{words}"):
            run.shard.restore(replace(snapshot, arrays=wrong), run.plans[0])
    with pytest.raises(ModelError, match=r"ages: got int64\[7\], expected int64\[\d+\]|thresholds: got float32\[7\]"):
        run.shard.restore(snapshot, make_plan(1, frame=20))
    with pytest.raises(StaleError, match="snapshot by plan 1: expected that plan, got plan 2"):
        run.shard.restore(snapshot, make_plan(2))
    after = run.shard.snapshot()
    assert (after.step, after.plan) == (TAKEN + 1, 1)
    for name, array in held.arrays.items():
        assert array.tobytes() == after.arrays[name].tobytes()
    run.step(TAKEN + 2)


def test_a_part_of_another_size_is_refused() -> None:
    halves = [Driven(shard_job({}, servers=2), index=index) for index in range(2)]
    assert halves[0].partition.elements + halves[1].partition.elements == LAYOUT.elements
    with pytest.raises(ModelError, match="parameters: got float32"):
        halves[1].shard.restore(halves[0].shard.snapshot(), halves[1].plans[0])


def test_nothing_is_restored_while_a_frame_is_being_summed() -> None:
    run = driven("fp16")
    snapshot = run.shard.snapshot()
    spec = run.frames[0]
    run.shard.push(run.frame(spec, 0, 1, np.ones(spec.count, np.float32)))
    with pytest.raises(FrameError, match="one scale"):  # so that this sum never ends
        run.shard.push(run.frame(spec, 1, 1, np.ones(spec.count, np.float32), loss_scale=2.0))
    with pytest.raises(StaleError, match="is being summed; restore when its answer has come"):
        run.shard.restore(snapshot, run.plans[0], attempt=1)
