"""Figures of a worker's steps: a pure object, times come in as arguments."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from taihu.core.base.measure import spread
from taihu.core.coordination.membership.members import Progress
from taihu.core.model.scores import ACCURACY

_RECENT_STEPS = 20
_PARTS = ("step", "compute", "compress", "compress_wait", "exchange", "wait")


@dataclass(frozen=True)
class StepSample:
    """One completed step: its times in seconds and what crossed the network for it, in bytes.

    Attributes:
        loss: training loss of this worker's batch.
        step_seconds: the whole step.
        compute_seconds: forward and backward, without waiting.
        compress_seconds: selecting and packing, most of it while backward goes on.
        compress_wait_seconds: of this, what went on after backward had ended.
        exchange_seconds: from the first push to the last answer.
        wait_seconds: what the compute thread waited for answers, which holds `compress_wait_seconds`.
        sent_bytes, received_bytes: of all frames, headers included.
        selected_ratio: share of the gradient that was sent.
        steady: false while the run is being measured in a way that slows it down.
    """

    loss: float
    step_seconds: float
    compute_seconds: float
    compress_seconds: float
    compress_wait_seconds: float
    exchange_seconds: float
    wait_seconds: float
    sent_bytes: int
    received_bytes: int
    selected_ratio: float = 1.0
    steady: bool = True


@dataclass(frozen=True)
class Evaluation:
    """Scores on the test set after a step, with the mean training loss since the evaluation before.

    `test_accuracy` is that of `test_metrics`, None where a run has none.
    """

    step: int
    epoch: int
    seconds: float
    train_loss: float
    test_loss: float
    test_accuracy: float | None
    test_metrics: Mapping[str, float]


class ProgressMeter:
    """Collects steps and evaluations; `progress` is what heartbeats carry, `results` what `--json` holds.

    Any thread may ask for the progress; another one adds to it.

    Where `total_steps` is 0 the loop is a script's own: nobody tells how long it is, nor its losses.
    """

    def __init__(self, *, total_steps: int, batch: int) -> None:
        self._batch = batch
        self._recent: deque[StepSample] = deque(maxlen=_RECENT_STEPS)
        # 8 bytes a number: a run of millions of steps keeps all of them
        self._numbers = {name: array("d") for name in (*_PARTS, "sent", "received", "selected")}
        self._steady = array("b")
        self._losses = array("d")
        self._tested = 0
        self.evaluations: list[Evaluation] = []
        self._step = 0
        # All but what follows from the steps.
        self._rest = Progress(total_steps=total_steps)

    @property
    def progress(self) -> Progress:
        """The progress of the run: means are of the recent steps."""
        recent = list(self._recent)
        if not recent:
            return self._rest

        def mean(name: str) -> float:
            # A list: `fmean` counts what has no length in Python.
            return fmean([getattr(sample, name) for sample in recent])

        step_seconds = mean("step_seconds")
        return replace(
            self._rest,
            step=self._step,
            loss=recent[-1].loss,
            samples_per_second=self._batch / step_seconds,
            step_seconds=step_seconds,
            compute_seconds=mean("compute_seconds"),
            compress_seconds=mean("compress_seconds"),
            exchange_seconds=mean("exchange_seconds"),
            wait_seconds=mean("wait_seconds"),
            selected_ratio=mean("selected_ratio"),
            bytes_sent_per_step=round(mean("sent_bytes")),
            bytes_received_per_step=round(mean("received_bytes")),
        )

    @property
    def path(self) -> str:
        """The path that values take."""
        return self._rest.path

    def travels(self, path: str) -> None:
        """Values take another path now."""
        self._rest = replace(self._rest, path=path)

    def add(self, step: int, sample: StepSample) -> None:
        """Note a completed step."""
        self._recent.append(sample)
        self._losses.append(sample.loss)
        self._steady.append(sample.steady)
        for name in _PARTS:
            self._numbers[name].append(getattr(sample, f"{name}_seconds"))
        self._numbers["sent"].append(sample.sent_bytes)
        self._numbers["received"].append(sample.received_bytes)
        self._numbers["selected"].append(sample.selected_ratio)
        self._step = step

    def goes_on(self, step: int, losses: Sequence[float]) -> None:
        """The run goes on behind a step; `losses` are those of earlier lives since the evaluation before."""
        self._step = step
        self._losses.extend(losses)

    def evaluated(
        self, *, epoch: int, seconds: float, test_loss: float, test_metrics: Mapping[str, float]
    ) -> Evaluation:
        """Note an evaluation after the last added step; `test_metrics` are at least one, the most telling first."""
        test_accuracy = test_metrics.get(ACCURACY)
        untested, self._tested = self._losses[self._tested :], len(self._losses)
        evaluation = Evaluation(
            step=self._step,
            epoch=epoch,
            seconds=seconds,
            train_loss=fmean(untested),
            test_loss=test_loss,
            test_accuracy=test_accuracy,
            test_metrics=dict(test_metrics),
        )
        self.evaluations.append(evaluation)
        tests = len(self.evaluations)
        if test_accuracy is not None:
            self._rest = replace(self._rest, tests=tests, test_accuracy=test_accuracy)
        else:
            name, value = next(iter(test_metrics.items()))
            self._rest = replace(self._rest, tests=tests, test_metric=name, test_value=value)
        return evaluation

    def results(self) -> dict[str, object]:
        """Results for `--json`.

        Times and bytes are those of the steady steps, without the first one, which compiles and connects; when there
        is no such step, of all.
        """
        counted = [i for i, steady in enumerate(self._steady) if steady and i > 0] or list(range(len(self._steady)))
        of = {name: [numbers[i] for i in counted] for name, numbers in self._numbers.items()}
        return {
            "steps": self._step,
            "measured_steps": len(counted),
            "final_loss": self._losses[-1] if self._rest.total_steps else None,
            "bytes_sent_per_step": round(fmean(of["sent"])),
            "bytes_received_per_step": round(fmean(of["received"])),
            "selected_ratio": fmean(of["selected"]),
            "seconds_per_step": spread(of["step"]),
            **{f"seconds_{name}": spread(of[name]) for name in _PARTS if name != "step"},
        }
