"""The folder of a run's checkpoints: what counts, what stays, and what is gone on from."""

from __future__ import annotations

import pytest
from support.cluster import layout_of
from support.made_checkpoints import make_checkpoint

from taihu.core.base.errors import CheckpointError
from taihu.core.checkpoint.manifest import MANIFEST
from taihu.core.checkpoint.places import Place
from taihu.core.checkpoint.store import CheckpointStore, newest_in

LAYOUT = layout_of(5, 70)


def make_all(folder: Place, *steps: int) -> CheckpointStore:
    for step in steps:
        make_checkpoint(folder, LAYOUT, servers=1, step=step)
    return CheckpointStore(folder)


def damage(folder: Place) -> None:
    path = folder / "server-0.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"ruin")


def test_only_a_checkpoint_with_its_manifest_counts(place: Place) -> None:
    store = make_all(place, 20, 3, 100)
    (store.folder_of(100) / MANIFEST).unlink()
    (place / "notes.txt").write_bytes(b"step-000200")
    assert store.steps() == [20, 3]


def test_there_are_none_where_there_is_no_folder(place: Place) -> None:
    assert CheckpointStore(place / "none").steps() == []


def test_the_newest_stay_and_what_is_on_its_way(place: Place) -> None:
    store = make_all(place, 1, 2, 3, 4, 5)
    (store.folder_of(2) / MANIFEST).unlink()  # never became complete
    (store.folder_of(5) / MANIFEST).unlink()  # is being written
    store.prune(2, 4)
    assert store.steps() == [4, 3]
    assert sorted(path.name for path in place.iterdir()) == ["step-000003", "step-000004", "step-000005"]


def test_nothing_is_removed_as_long_as_none_counts(place: Place) -> None:
    store = make_all(place, 1)
    (store.folder_of(1) / MANIFEST).unlink()
    store.prune(1, 1)
    assert store.folder_of(1).is_dir()


def test_what_will_never_be_complete_gives_its_room_back(place: Place) -> None:
    """A disk that is full of such parts would stay full: nothing counts there, so that nothing is pruned."""
    store = make_all(place, 1, 2, 3, 4)
    for step in (2, 3, 4):
        (store.folder_of(step) / MANIFEST).unlink()
    store.discard(4)
    assert sorted(path.name for path in place.iterdir()) == ["step-000001", "step-000004"]


def test_a_run_that_went_back_keeps_what_it_has_made_since(place: Place) -> None:
    store = make_all(place, 1, 2, 3, 9)
    store.prune(2, 3)
    assert store.steps() == [9, 3, 2]


def test_a_run_goes_on_from_its_own_newest_that_has_steps_left(place: Place) -> None:
    store = make_all(place, 3, 7, 10)
    manifest = store.open(10).manifest
    assert manifest.total_steps == 10
    going_on = store.going_on(manifest.settings)
    assert going_on is not None
    assert going_on.step == 7
    with pytest.raises(CheckpointError, match="of a job with other settings"):
        store.going_on({**manifest.settings, "train.batch": "7"})
    for step in store.steps():
        damage(store.folder_of(step))
    with pytest.raises(CheckpointError, match="name another checkpoint"):
        store.going_on(manifest.settings)
    assert CheckpointStore(place / "none").going_on({}) is None


def test_what_a_run_that_went_back_comes_to_again_is_there_if_it_is_whole_and_its_own(place: Place) -> None:
    store = make_all(place, 3, 7, 9, 10)
    settings = store.open(10).manifest.settings
    assert store.whole(settings, newer_than=3) == {7, 9, 10}
    damage(store.folder_of(7))
    (store.folder_of(9) / MANIFEST).write_bytes(b"{")
    assert store.whole(settings, newer_than=0) == {3, 10}
    assert store.whole({**settings, "train.batch": "7"}, newer_than=0) == frozenset()
    # What is written anew does not count until it is whole.
    for _ in range(2):
        store.withdraw(7)
    assert store.steps() == [10, 9, 3]


def test_a_damaged_checkpoint_is_passed_over_and_told(place: Place) -> None:
    store = make_all(place, 10, 20, 30)
    damage(store.folder_of(30))
    (store.folder_of(20) / MANIFEST).write_bytes(b"{")
    checkpoint, problems = store.newest()
    assert checkpoint.step == 10
    assert ["step-000030/server-0" in problems[0], "step-000020/manifest.json" in problems[1]] == [True, True]
    damage(store.folder_of(10))
    with pytest.raises(CheckpointError, match=r"to go on from: .*-000030.*; .*-000020.*; .*-000010"):
        store.newest()


def test_one_checkpoint_is_named_by_its_folder_all_by_theirs(place: Place) -> None:
    store = make_all(place, 10, 20)
    assert newest_in(place).step == 20
    assert newest_in(store.folder_of(10)).step == 10
    assert CheckpointStore.step_of(store.folder_of(10)) == 10
    assert CheckpointStore.step_of(place) is None
    with pytest.raises(CheckpointError, match="no checkpoint is complete there"):
        newest_in(place / "none")
