"""`taihu evaluate` on data of the user's own: read as in training, and only with the classes that the model tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from taihu.cli.models.evaluate import evaluate_file
from taihu.core.base.errors import ModelError
from taihu.core.job import load_job
from taihu.core.process.results import read_json
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import Model, build_model
from taihu.worker.saved.writing import describe_model, save_model
from taihu.worker.training.evaluation import evaluate


def pictures(folder: Path, classes: tuple[str, ...]) -> str:
    rng = np.random.default_rng(1)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(5):
            Image.fromarray(rng.integers(0, 256, (11, 9, 3), np.uint8)).save(folder / name / f"{number}.png")
    return str(folder)


def initialised(model: Model) -> Model:
    arena = np.zeros(model.layout.elements, np.float32)
    model.bind(arena, np.zeros_like(arena))
    model.initialize(3)
    return model


def test_own_images_are_resized_and_split_as_in_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = pictures(tmp_path / "pictures", ("ant", "bee"))
    job = load_job(None, {"data": {"name": name, "resize": "8x8", "test_share": 0.4}})
    dataset = load_dataset(job.data, job.model.name)
    model = initialised(build_model(job.model.name, dataset.input_shape, dataset.outputs))
    file = tmp_path / "m.safetensors"
    said = describe_model(job, dataset, model, 0)
    # A file records the job with the keys of its day: this one has been renamed since.
    said.job["train"] = {"checkpoint": "recompute"}
    save_model(file, model, said)
    evaluate_file(str(file), data=name, json_file=tmp_path / "result.json")
    expected = evaluate(model, dataset)
    assert read_json(tmp_path / "result.json")["test_loss"] == pytest.approx(expected.loss, rel=1e-6)
    assert "test loss" in capsys.readouterr().out
    with pytest.raises(ModelError, match=r"the model tells the classes ant, bee, .* has ant, cow; give --data"):
        evaluate_file(str(file), data=pictures(tmp_path / "others", ("ant", "cow")))
