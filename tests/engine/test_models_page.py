"""docs/models.md: its layers work, its tables are those of the code, and it names all that can be imported."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import taihu.engine
import taihu.worker.engine
from taihu.cli.main import make_app
from taihu.core.model.model_defaults import MODEL_DEFAULTS
from taihu.core.process.entry import run_app
from taihu.core.settings import TrainSettings
from taihu.worker.engine import StepContext, StepHooks, build_model

_PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
_PYTHON = re.findall(r"```python\n(.*?)```", _PAGE, re.DOTALL)


@pytest.fixture
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "layers.py").write_text(_PYTHON[2])
    monkeypatch.chdir(tmp_path)
    return Path("layers.py")


def test_the_page_shows_what_check_model_says_of_its_layers(layers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_app(make_app(), ["check-model", f"{layers}:build", "--input-shape", "1x8x8"])
    assert ended.value.code == 0
    command = f"taihu check-model {layers}:build --input-shape 1x8x8"
    assert f"```sh\n{command}\n```\n\n```\n{capsys.readouterr().out}```" in _PAGE


def test_its_layers_learn(layers: Path) -> None:
    model = build_model(f"{layers}:build", (4, 4, 1), 2)
    parameters, gradients = np.zeros((2, model.layout.elements), np.float32)
    model.bind(parameters, gradients)
    model.initialize(0)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 64)
    images = rng.standard_normal((64, 4, 4, 1), dtype=np.float32) + labels.reshape(-1, 1, 1, 1)
    losses = []
    for step in range(60):
        losses.append(model.train(images, labels, StepContext(True, 0, step, 0), StepHooks()))
        parameters -= np.float32(0.1) * gradients
    assert losses[-1] < 0.2 < losses[0]


def test_its_other_examples_run(layers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(".")
    exec(_PYTHON[3], {})  # noqa: S102 - the page's own
    del sys.modules[layers.stem]
    (layers.parent / "mine.py").write_text(_PYTHON[0])
    assert build_model("mine.py:build", (6, 6, 3), 4).outputs == 4
    (layers.parent / "text.py").write_text(_PYTHON[1])
    assert build_model("text.py:build", (16,), 256).output_shape == (16, 256)


def test_all_that_can_be_imported_is_there_and_told() -> None:
    for name in taihu.worker.engine.__all__:
        assert getattr(taihu.worker.engine, name) is not None
        assert re.search(rf"\b{name}\b", _PAGE), name
    assert len(set(taihu.worker.engine.__all__)) == len(taihu.worker.engine.__all__)


def test_the_tables_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| (\S+) \| ([\d.]+) \|$", _PAGE, re.MULTILINE)
    sides = {name: f"{known.smallest_side}x{known.smallest_side}" for name, known in MODEL_DEFAULTS.items()}
    expected = [(name, sides[name], str(known.learning_rate)) for name, known in MODEL_DEFAULTS.items()]
    assert [(name, "0x0" if side == "any" else side, rate) for name, side, rate in rows] == expected
    losses = re.findall(r"^\| `([a-z-]+)` \| [^|]* \| [^|]* \| [^|]* \|$", _PAGE, re.MULTILINE)
    assert ["auto", *losses] == list(TrainSettings.model_fields["loss"].annotation.__args__)  # type: ignore[union-attr]


def test_the_public_name_of_the_engine_has_all_of_it() -> None:
    assert taihu.engine.__all__ == taihu.worker.engine.__all__
    for name in taihu.engine.__all__:
        assert getattr(taihu.engine, name) is getattr(taihu.worker.engine, name)
