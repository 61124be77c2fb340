"""The last steps of a member in memory: whole ones alone count, whenever its process is killed."""

from __future__ import annotations

import multiprocessing
import random
import time
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from structlog.testing import capture_logs
from support.cluster import layout_of
from support.daemons import wait_for

from taihu.core.base.errors import CheckpointError
from taihu.core.checkpoint.files import StoredPart
from taihu.core.checkpoint.held_steps import HeldSteps, Label, labels_of, read_held, read_run
from taihu.core.checkpoint.manifest import Manifest
from taihu.core.checkpoint.part import Elements, State

LAYOUT = layout_of(6, 2)
BOUNDS = np.array([[0, 5], [7, 8]], dtype=np.int64)
RUN = Manifest(
    job="job",
    settings={"a": "1"},
    step=0,
    total_steps=9,
    servers=1,
    workers=1,
    layers=Manifest.layers_of(LAYOUT),
    groups=[(0, 1)],
    files={},
)


def state_of(step: int, size: int = 6, units: int = 3, facts: int = 1) -> State:
    """A state whose every number is the step."""
    shared = {name: np.full(size, step, dtype=np.float32) for name in ("parameters", "optimizer.momentum")}
    own: dict[str, NDArray[Any]] = {"ages": np.full(units, step, dtype=np.int64), "empty": np.zeros(0)}
    return State(Elements(BOUNDS, shared), own, {"plan": facts})


def hold(held: HeldSteps, step: int, state: State) -> None:
    held.begin(step, lambda: state)
    size = len(state.shared.arrays["parameters"])
    for start in range(0, size, 4):
        held.put_range(step, {name: each[start : start + 4] for name, each in state.shared.arrays.items()}, start)
    held.put_own(step, state.own)
    held.end(step)


def numbers_of(state: State) -> set[float]:
    arrays = (*state.shared.arrays.values(), *state.own.values())
    return {float(value) for array in arrays for value in array.ravel()}


def test_nothing_is_held_before_a_step(tmp_path: Path) -> None:
    assert labels_of(tmp_path / "none", "server 0") == frozenset()
    held = HeldSteps(tmp_path, "server 0", 7, RUN)
    held.begin(1, lambda: state_of(1))
    assert labels_of(tmp_path, "server 0") == frozenset()


@given(st.integers(1, 30), st.integers(1, 6), st.lists(st.integers(0, 5), min_size=6, max_size=6), st.integers(2, 3))
def test_the_last_steps_are_held(first: int, steps: int, units: list[int], at_once: int) -> None:
    """Their arrays may have other shapes after another plan, and facts other values."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        held = HeldSteps(folder, "server 0", 7, RUN, steps=at_once)
        last = first + steps - 1
        for step in range(first, last + 1):
            held.adopt(RUN)
            hold(held, step, state_of(step, units=units[step % 6], facts=units[step % 5]))
            expected = {Label(7, each) for each in range(max(first, step - at_once + 1), step + 1)}
            assert labels_of(folder, "server 0") == expected
        for label in labels_of(folder, "server 0"):
            state = read_held(folder, "server 0", label)
            assert numbers_of(state) == {float(label.step)}
            assert len(state.own["ages"]) == units[label.step % 6]
            assert state.facts == {"plan": units[label.step % 5]}
            assert (state.shared.bounds == BOUNDS).all()
            assert read_run(folder, "server 0", label) == RUN


def test_another_file_is_made_where_the_state_has_another_form(tmp_path: Path) -> None:
    held = HeldSteps(tmp_path, "worker 0", 7, RUN)
    hold(held, 1, state_of(1, size=4))
    held.adopt(RUN)
    hold(held, 3, state_of(3, size=6))
    assert len(read_held(tmp_path, "worker 0", Label(7, 3)).shared.arrays["parameters"]) == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-worker-0.safetensors"]


def test_behind_its_end_a_process_holds_nothing_more(tmp_path: Path) -> None:
    """Threads of it may go on for a while."""
    held = HeldSteps(tmp_path, "server 0", 7, RUN)
    hold(held, 1, state_of(1))
    held.begin(2, lambda: state_of(2))
    held.put(2, state_of(2))
    held.close()
    held.end(2)
    hold(held, 3, state_of(3))
    assert labels_of(tmp_path, "server 0") == {Label(7, 1)}


def test_a_step_that_is_no_longer_held_is_not_read(tmp_path: Path) -> None:
    held = HeldSteps(tmp_path, "worker 0", 7, RUN)
    hold(held, 1, state_of(1))
    hold(held, 3, state_of(3))
    for label in (Label(7, 1), Label(8, 3)):
        with pytest.raises(CheckpointError, match=r"worker 0 does not hold step [13] any more"):
            read_held(tmp_path, "worker 0", label)


def test_a_successor_goes_on_beside_what_it_found(tmp_path: Path) -> None:
    """The step that it goes on from stays until the next one is held."""
    hold(HeldSteps(tmp_path, "worker 0", 7, RUN), 4, state_of(4))
    successor = HeldSteps(tmp_path, "worker 0", 8, RUN)
    successor.begin(5, lambda: state_of(5))
    assert labels_of(tmp_path, "worker 0") == {Label(7, 4)}
    successor.put(5, state_of(5))
    successor.end(5)
    assert labels_of(tmp_path, "worker 0") == {Label(7, 4), Label(8, 5)}


@pytest.mark.parametrize("lacks", ["room in /dev/shm", "memory"])
def test_where_there_is_no_room_nothing_is_held_and_nothing_is_said_twice(
    lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, size: int) -> NDArray[np.uint8]:
        raise OSError(28, "No space left on device", str(path))

    if lacks == "memory":
        monkeypatch.setattr("taihu.core.checkpoint.held_steps.free_bytes", lambda: 4 * state_of(1).size_bytes - 1)
    else:
        monkeypatch.setattr("taihu.core.checkpoint.held_steps.make_mapped", full)
    held = HeldSteps(tmp_path, "worker 0", 7, RUN)
    with capture_logs() as logs:
        hold(held, 1, state_of(1))
        hold(held, 2, state_of(2))
    assert [each["event"] for each in logs] == [
        "no step is held in memory: a process that dies costs the steps since the last checkpoint"
    ]
    assert labels_of(tmp_path, "worker 0") == frozenset()


def hold_for_ever(folder: Path, first: int) -> None:
    held = HeldSteps(folder, "server 0", 7, RUN)
    state = state_of(0, size=50_000)
    for step in count(first):
        for array in (*state.shared.arrays.values(), *state.own.values()):
            array[:] = step
        hold(held, step, state)


def holds_later(folder: Path, step: int) -> bool:
    return max((label.step for label in labels_of(folder, "server 0")), default=0) > step


def test_whenever_it_is_killed_what_is_held_is_whole(tmp_path: Path) -> None:
    """Most of its time it writes: of forty kills many fall into the middle of a step."""
    chance = random.Random(1)
    last = 0
    for _ in range(40):
        process = multiprocessing.get_context("fork").Process(target=hold_for_ever, args=(tmp_path, last + 1))
        process.start()
        wait_for(partial(holds_later, tmp_path, last + 1), "it holds nothing")
        time.sleep(chance.random() * 0.01)
        process.kill()
        process.join()
        labels = labels_of(tmp_path, "server 0")
        assert labels
        for label in labels:
            assert numbers_of(read_held(tmp_path, "server 0", label)) == {float(label.step)}
        last = max(label.step for label in labels)


def test_a_step_that_is_written_over_while_it_is_read_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldSteps(tmp_path, "worker 0", 7, RUN)
    hold(held, 1, state_of(1))
    read = StoredPart.state

    def slow(stored: StoredPart) -> State:
        state = read(stored)
        held.begin(3, lambda: state_of(3))
        return state

    monkeypatch.setattr(StoredPart, "state", slow)
    with pytest.raises(CheckpointError, match="worker 0 does not hold step 1 any more"):
        read_held(tmp_path, "worker 0", Label(7, 1))
