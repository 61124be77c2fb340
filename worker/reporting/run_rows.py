"""The tables of a run, a row for every step and one for every test: pure, nothing is written here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from taihu.core.job.loggers import LoggedRow
from taihu.worker.training.progress import Evaluation, StepSample

STEP_COLUMNS = (
    "step",
    "epoch",
    "worker_0_loss",
    "learning_rate",
    "step_seconds",
    "compute_seconds",
    "compress_seconds",
    "compress_wait_seconds",
    "exchange_seconds",
    "wait_seconds",
    "sent_bytes",
    "received_bytes",
    "selected_ratio",
    "loss_scale",
)
_OF_SAMPLE = STEP_COLUMNS[4:-1]
_LOGGED = {
    "worker_0_loss": "loss/worker_0",
    "learning_rate": "learning_rate",
    "loss_scale": "loss_scale",
    "selected_ratio": "exchange/selected_ratio",
    "sent_bytes": "exchange/sent_bytes",
    "received_bytes": "exchange/received_bytes",
}

Scalars = dict[str, float]


class StepNote(NamedTuple):
    """Notes of a step, taken while it goes on; everything else is worked out later, by who writes it."""

    step: int
    sample: StepSample
    loss_scale: float


class EventNote(NamedTuple):
    """An event of the run: its name, what there is to say about it, after which step, and the seconds since 1970."""

    event: str
    facts: Mapping[str, float | str]
    step: int
    time_s: float


class OwnNote(NamedTuple):
    """Values that a script logs itself, with the step that they belong to."""

    step: int
    values: Mapping[str, float]


def step_scalars(note: StepNote, steps_per_epoch: int | None, learning_rate: Callable[[int], float]) -> Scalars:
    """One row by `STEP_COLUMNS`; times in seconds, epochs from 1.

    Without `steps_per_epoch` the loop is a script's own: loss, rate and epoch are not in the row.
    """
    step, sample, loss_scale = note
    told: Scalars = {"step": step}
    if steps_per_epoch is not None:
        told = begun_scalars(step, sample.loss, steps_per_epoch, learning_rate)
    return {
        **told,
        **{name: getattr(sample, name) for name in _OF_SAMPLE},
        "loss_scale": loss_scale,
    }


def begun_scalars(step: int, loss: float, steps_per_epoch: int, learning_rate: Callable[[int], float]) -> Scalars:
    """As much of the row of a step as is known when its backward has ended."""
    return {
        "step": step,
        "epoch": -(-step // steps_per_epoch),
        "worker_0_loss": loss,
        "learning_rate": learning_rate(step),
    }


def epoch_scalars(evaluation: Evaluation) -> Scalars:
    """One row of a test: epoch and step, seconds that it took, losses, and what was measured by name."""
    return {
        "epoch": evaluation.epoch,
        "step": evaluation.step,
        "seconds": evaluation.seconds,
        "train_loss": evaluation.train_loss,
        "test_loss": evaluation.test_loss,
        **{f"test_{name}": value for name, value in evaluation.test_metrics.items()},
    }


def logged_step(row: Scalars) -> LoggedRow:
    """A row of `step_scalars` for loggers, by the names that they show."""
    values = {_step_name(name): value for name, value in row.items() if name not in {"step", "epoch"}}
    return LoggedRow("step", int(row["step"]), values)


def logged_test(row: Scalars) -> LoggedRow:
    """A row of `epoch_scalars` for loggers, at the step after which the model was tested."""
    values = {_test_name(name): value for name, value in row.items() if name not in {"step", "seconds"}}
    return LoggedRow("test", int(row["step"]), values)


def _step_name(name: str) -> str:
    return _LOGGED.get(name) or f"seconds/{name.removesuffix('_seconds')}"


def _test_name(name: str) -> str:
    return {"train_loss": "loss/train_mean", "epoch": "epoch"}.get(name) or name.replace("test_", "test/", 1)
