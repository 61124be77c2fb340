"""`taihu.train` and `taihu.load`: a real run from arrays and a function, and what is refused before one begins."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taihu
import taihu.api
from taihu.core.base.errors import ConfigError, DataError, ModelError, TaihuError
from taihu.core.job import Job
from taihu.core.process.entry import Interrupts
from taihu.worker.engine import Flatten, Layer, Linear, ReLU, Sequential


def data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Rows of three classes, far from each other."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, 160)
    x = generator.normal(0, 1, (160, 4)).astype(np.float32) + 4 * y[:, None]
    return (x[:120], y[:120]), (x[120:], y[120:])


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_closure_and_arrays_become_a_model(capfd: pytest.CaptureFixture[str]) -> None:
    hidden = 8

    def build(input_shape: tuple[int, ...], outputs: int) -> Layer:
        return Sequential([Linear(hidden), ReLU(), Linear(outputs, gain=1.0)])

    before = signal.getsignal(signal.SIGINT)
    job = {"train": {"steps": 40, "batch": 16}, "cluster": {"workers": 1}, "exchange": {"kind": "ring"}}
    result = taihu.train(job, model=build, data=data())
    assert result.metrics["accuracy"] > 0.9
    assert (result.steps, result.history[-1]["test_metrics"]) == (40, result.metrics)
    assert result.folder is not None
    assert result.path == result.folder / "model.safetensors"
    model = result.model()
    x, y = data()[1]
    chances = model.predict(x, batch=7)
    assert np.mean(model.predict_classes(x) == y) == pytest.approx(result.metrics["accuracy"])
    np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(chances, model.predict(x), rtol=1e-5, atol=1e-6)
    assert capfd.readouterr() == ("", "")
    assert signal.getsignal(signal.SIGINT) is before


class Mine(ReLU):
    """A layer of a user's own."""


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"job": 3}, ConfigError, "job: expected a path, a dict of tables or a Job, seen int"),
        ({"job": {"train": {"stepz": 1}}}, ConfigError, "train.stepz"),
        ({"job": "none.toml"}, ConfigError, "none.toml"),
        ({"model": "resnet2"}, ConfigError, "did you mean resnet20?"),
        ({"model": lambda shape, outputs: 3, "data": data()}, ModelError, "returns one, seen int"),
        ({"model": lambda shape, outputs: Linear(7), "data": data()}, ModelError, r"expected an output of \(3,\)"),
        ({"model": Sequential([Flatten(), Mine(), Linear(3)]), "data": data()}, ModelError, "layers of your own"),
        ({"data": 3}, DataError, r"data: expected \(\(x_train"),
        ({"data": (np.zeros(3), np.zeros(3), np.zeros(3))}, DataError, r"data: expected \(\(x_train"),
        ({"data": [([[1], [1, 2]], [0, 1])]}, DataError, "x_train has rows of several shapes"),
        ({"data": [([object()], [0])]}, DataError, "x_train holds Python objects"),
        ({"data": data(), "run_dir": "none"}, ConfigError, "run.dir 'none': arrays and layers become files"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    arguments: dict[str, Any], error: type[TaihuError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        taihu.train(**arguments)
    assert not list(tmp_path.glob("runs/*"))


def test_a_job_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Job] = []

    class Stopped(Exception):  # noqa: N818
        pass

    def stop(training: Any, *_: Any) -> None:
        seen.append(training.job)
        raise Stopped

    monkeypatch.setattr(taihu.api, "_prepared", stop)
    job = Job.model_validate({"name": "mine", "train": {"steps": 3}, "cluster": {"workers": 1}})
    Path("job.toml").write_text('name = "mine"\n[train]\nsteps = 3\n[cluster]\nworkers = 1\n')
    for given in (job, job.model_dump(exclude_unset=True), "job.toml", Path("job.toml")):
        with pytest.raises(Stopped):
            taihu.train(given)
    assert seen == [job] * 4


def test_other_threads_change_no_signal_handler() -> None:
    handlers: list[object] = []

    def enter() -> None:
        with taihu.api._interruptible(Interrupts()):
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGINT)]


def test_importing_taihu_is_cheap_and_its_names_are_there() -> None:
    script = "import sys, taihu; assert 'numba' not in sys.modules and 'numpy' not in sys.modules; print(dir(taihu))"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    for name in taihu.__all__:
        assert getattr(taihu, name) is not None
    assert set(taihu.__all__) - {"__version__"} == set(taihu.api.__all__) - {"Build"}
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        taihu.trian  # noqa: B018
