"""Defaults that a model of the zoo brings to a job: a learning rate, and images that are large enough."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from taihu.cli.train import opening
from taihu.core.base.errors import ConfigError, DataError, ModelError
from taihu.core.job import Job, job_to_toml, load_job
from taihu.core.model.model_defaults import MODEL_DEFAULTS, check_model_fits, smallest_size
from taihu.core.model.names import DATA_NAMES, MODEL_NAMES, built_in_data
from taihu.core.settings import DataSettings, OptimizerSettings
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import MODELS, Model, build_model
from taihu.worker.preflight import check_inputs


def test_every_model_of_the_zoo_has_its_defaults() -> None:
    assert tuple(MODEL_DEFAULTS) == MODEL_NAMES


@pytest.mark.parametrize(
    ("tables", "rate"),
    [
        ({}, 0.05),
        ({"model": {"name": "small_cnn"}}, 0.05),
        ({"model": {"name": "cifar10_quick"}}, 0.01),
        ({"model": {"name": "mine.py:build"}}, 0.05),
        ({"model": {"name": "cifar10_quick"}, "optimizer": {"learning_rate": 0.05}}, 0.05),
        ({"model": {"name": "cifar10_quick"}, "optimizer": {"momentum": 0.5}}, 0.01),
        ({"optimizer": {"name": "adam"}}, 0.001),
        ({"optimizer": {"name": "adamw", "learning_rate": 0.1}}, 0.1),
    ],
)
def test_a_job_without_a_learning_rate_has_the_models(tables: dict[str, dict[str, object]], rate: float) -> None:
    job = load_job(None, tables)
    assert job.optimizer.learning_rate == rate
    given = tables.get("optimizer", {})
    assert job.optimizer.model_fields_set == given.keys()
    assert job.server_optimizer.learning_rate == rate
    # All that make the job, wherever and however, make the same one.
    assert Job.model_validate(tables) == job
    assert Job.model_validate(tables).digest == job.digest


@pytest.mark.parametrize(
    ("data", "model", "expected"),
    [
        ("houses.csv", None, "mlp"),
        ("~/houses.TSV.gz", None, "mlp"),
        ("a/b.parquet", None, "mlp"),
        ("houses.csv", "small_cnn", "small_cnn"),
        ("book.txt", None, "small_gpt"),
        ("book.TXT.gz", None, "small_gpt"),
        ("python-source", None, "small_gpt"),
        ("python-source", "mine.py:build", "mine.py:build"),
        ("houses.csv", "mine.py:build", "mine.py:build"),
        ("houses.npz", None, "small_cnn"),
        ("./houses", None, "small_cnn"),
        ("digits", None, "small_cnn"),
        (None, None, "small_cnn"),
    ],
)
def test_a_job_without_a_model_has_one_for_its_data(data: str | None, model: str | None, expected: str) -> None:
    tables: dict[str, dict[str, object]] = {
        section: {"name": name} for section, name in (("data", data), ("model", model)) if name is not None
    }
    job = load_job(None, tables)
    assert job.model.name == expected
    assert job.model.model_fields_set == tables.get("model", {}).keys()
    assert Job.model_validate(tables).digest == job.digest


def test_the_default_model_of_a_table_is_found_again_by_every_process(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    job = load_job(None, {"data": {"name": "houses.csv"}, "model": {"init_from": "begin.safetensors"}})
    for given in (True, False):
        file.write_text(job_to_toml(job, given=given))
        assert ("mlp" in file.read_text()) is not given
        assert load_job(file).model == job.model
    assert str(job.model.init_from) == "begin.safetensors"


def test_a_table_is_not_given_to_a_model_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "both").mkdir()
    for file in ("houses.csv", "both/train.csv", "both/test.csv"):
        (tmp_path / file).write_text("size,price\n" + "1.5,2.5\n" * 200)
    check_inputs(load_job(None, {"data": {"name": "houses.csv"}}))
    check_inputs(load_job(None, {"data": {"name": "./both"}, "model": {"name": "mlp"}}))
    for tables in ({"data": {"name": "./both"}}, {"data": {"name": "houses.csv"}, "model": {"name": "small_cnn"}}):
        with pytest.raises(ModelError, match=r"model small_cnn: expected images.*holds a table; use model mlp"):
            check_inputs(load_job(None, tables))


def test_a_resolved_job_keeps_its_rate(tmp_path_factory: pytest.TempPathFactory) -> None:
    job = Job(optimizer=OptimizerSettings(momentum=0.5), model=load_job(None, {"model": {"name": "alexnet"}}).model)
    file = tmp_path_factory.mktemp("job") / "job.toml"
    file.write_text(job_to_toml(job))
    assert load_job(file).optimizer == job.optimizer
    assert job.optimizer.learning_rate == MODEL_DEFAULTS["alexnet"].learning_rate


@pytest.mark.parametrize("name", [name for name in MODEL_NAMES if MODEL_DEFAULTS[name].smallest_side > 1])
def test_the_smallest_image_is_the_smallest_that_builds(name: str) -> None:
    side = MODEL_DEFAULTS[name].smallest_side
    build_model(name, (side, side, 3), 10)
    with pytest.raises(ModelError, match=f"model {name}: expected images of at least {side} x {side} pixels, seen"):
        build_model(name, (side - 1, side + 9, 3), 10)
    with pytest.raises(ModelError, match="expected an input of"):
        Model(MODELS[name]((side - 1, side - 1, 3), 10), (side - 1, side - 1, 3), 10)


def test_models_for_images_refuse_tables() -> None:
    for name in (each for each in MODEL_NAMES if MODEL_DEFAULTS[each].smallest_side):
        with pytest.raises(
            ModelError, match=r"the data set has rows of 20 features; use model mlp, or one of your own"
        ):
            check_model_fits(name, (20,))
    check_model_fits("mlp", (20,))
    check_model_fits("mlp", (8, 8, 1))


def test_images_that_are_too_small_are_resized() -> None:
    assert smallest_size("alexnet", (8, 8, 1)) == (55, 55)
    assert smallest_size("alexnet", (8, 60, 1)) == (55, 60)
    assert smallest_size("alexnet", (55, 60, 1)) is None
    assert smallest_size("mlp", (1, 1, 1)) is None
    assert smallest_size("alexnet", (20,)) is None
    assert smallest_size("mine.py:build", (1, 1, 1)) is None
    digits = load_dataset(DataSettings(), "cifar10_quick")
    assert digits.input_shape == (12, 12, 1)
    images = np.empty((2, 12, 12, 1), np.float32)
    digits.train.read(np.array([0, 5]), images)
    assert np.isfinite(images).all()
    assert load_dataset(DataSettings(resize="16x16"), "cifar10_quick").input_shape == (16, 16, 1)
    assert load_dataset(DataSettings(), "small_cnn").input_shape == (8, 8, 1)


def test_a_run_says_that_images_are_resized() -> None:
    line = opening(load_job(None, {"model": {"name": "alexnet"}}))
    assert line.startswith(
        "training alexnet on digits (images resized to 55x55, the smallest that it takes): 2 servers"
    )
    assert opening(load_job(None)).startswith("training small_cnn on digits: 2 servers")


@pytest.mark.parametrize("name", ["digits", "synthetic:3x9x7:classes=4"])
def test_what_is_known_of_data_before_it_is_loaded(name: str) -> None:
    known, dataset = built_in_data(name), load_dataset(DataSettings(name=name))
    assert known is not None
    assert (known.shape, known.classes, known.samples) == (dataset.input_shape, dataset.outputs, len(dataset.train))
    assert all(built_in_data(name) for name in DATA_NAMES[:3])
    assert built_in_data("x.npz") is None


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"train": {"loss": "mse"}}, "train.loss 'mse': expected values"),
        (
            {"train": {"loss": "bce"}},
            "train.loss 'bce': expected 2 classes, or values of 0 and 1, the data set has 10",
        ),
        (
            {"model": {"name": "mlp"}, "data": {"name": "python-source"}},
            "model mlp: expected images or rows, python-source is text; use model small_gpt",
        ),
        (
            {"model": {"name": "small_gpt"}},
            "model small_gpt: expected text, digits is none; use --data python-source, a text of yours, or another",
        ),
        (
            {"data": {"name": "python-source"}, "train": {"loss": "bce"}},
            "train.loss 'bce': the data set is text, whose tokens are classes",
        ),
        (
            {"model": {"name": "alexnet"}, "data": {"resize": "32x32"}},
            "model alexnet: expected images of at least 55 x 55 pixels, seen 32 x 32",
        ),
    ],
)
def test_what_cannot_fit_is_refused_before_anything_starts(
    tables: dict[str, dict[str, object]], message: str
) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        check_inputs(load_job(None, tables))
    assert str(caught.value).startswith(message)
