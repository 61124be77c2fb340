"""The model at the end of a run lies where there is room for it, and each of its pieces is asked for once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.limits import largest_file
from support.saved import loaded

from taihu.core.base.errors import WriteError
from taihu.worker.ending import Ending, places_of, save_somewhere
from taihu.worker.engine import Array, Linear
from taihu.worker.saved.prediction import LoadedModel
from taihu.worker.saved.reading import load_model
from taihu.worker.saved.writing import bound_pieces, save_model

NAME = "mlp-on-digits-step-7.safetensors"


@pytest.fixture
def model() -> LoadedModel:
    return loaded(Linear(3), (50,), 3)


def save(model: LoadedModel, path: Path, pieces: Iterator[Array]) -> None:
    save_model(path, model.network, model.info, pieces)


def test_a_file_without_room_is_known_before_a_piece_is_taken(model: LoadedModel, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    asked: list[int] = []
    pieces = bound_pieces(model.network, asked.append)
    with largest_file(400), pytest.raises(WriteError, match=f"cannot write {path}: File too large"):
        save(model, path, pieces)
    assert asked == []
    save(model, path, pieces)
    assert asked == [0]
    assert load_model(path).model.layout == model.network.layout


def test_the_first_place_that_takes_the_model_has_it(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    (here / NAME).write_text("of another run")
    monkeypatch.chdir(here)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    full = Path("/dev/full/model.safetensors")
    ending = save_somewhere(places_of(full, NAME), partial(save, model), bound_pieces(model.network))
    path = here / NAME.replace("7", "7-2")
    assert ending == Ending(path, f"cannot write {full}: File exists")
    assert load_model(path).saved == model.info
    assert (here / NAME).read_text() == "of another run"
    assert list(temporary.iterdir()) == []


def test_where_there_is_no_room_all_places_are_named(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    places = [Path("model.safetensors"), tmp_path / NAME, tmp_path / "temporary" / NAME]
    with largest_file(400):
        ending = save_somewhere(places_of(places[0], NAME), partial(save, model), bound_pieces(model.network))
    assert ending == Ending(None, "; ".join(f"cannot write {place}: File too large" for place in places))
    assert [path.name for path in tmp_path.rglob("*")] == ["temporary"]


def test_pieces_that_were_taken_are_gone(model: LoadedModel, tmp_path: Path) -> None:
    tried = []

    def fail_late(path: Path, pieces: Iterator[Array]) -> None:
        tried.append(path)
        next(pieces)
        raise WriteError(f"cannot write {path}: Input/output error")

    places = [tmp_path / "a", tmp_path / "b"]
    ending = save_somewhere(places, fail_late, bound_pieces(model.network))
    assert ending == Ending(None, f"cannot write {places[0]}: Input/output error")
    assert tried == places[:1]
