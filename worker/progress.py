"""What a worker tells about its steps: a pure object, times come in as arguments."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, replace
from statistics import fmean

from taihu.coordination.membership import Progress
from taihu.measure import spread

__all__ = ["Evaluation", "ProgressMeter", "StepSample"]

_RECENT_STEPS = 20


@dataclass(frozen=True)
class StepSample:
    """One completed step: its times in seconds and what crossed the network, in bytes."""

    loss: float
    step_seconds: float
    compute_seconds: float
    exchange_seconds: float
    wait_seconds: float
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class Evaluation:
    """Accuracy on the test set after a step, with the mean training loss since the evaluation before."""

    step: int
    epoch: int
    seconds: float
    train_loss: float
    test_loss: float
    test_accuracy: float


class ProgressMeter:
    """Collects steps and evaluations; `progress` is what heartbeats carry, `results` what `--json` holds."""

    def __init__(self, *, total_steps: int, batch: int) -> None:
        self._batch = batch
        self._recent: deque[StepSample] = deque(maxlen=_RECENT_STEPS)
        # 8 bytes a number: a run of millions of steps keeps all of them
        self._times = {name: array("d") for name in ("step", "compute", "exchange", "wait")}
        self._losses = array("d")
        self.evaluations: list[Evaluation] = []
        self.progress = Progress(total_steps=total_steps)

    def add(self, step: int, sample: StepSample) -> None:
        """Note a completed step."""
        self._recent.append(sample)
        self._losses.append(sample.loss)
        for name, times in self._times.items():
            times.append(getattr(sample, f"{name}_seconds"))
        step_seconds = fmean(s.step_seconds for s in self._recent)
        self.progress = replace(
            self.progress,
            step=step,
            loss=sample.loss,
            samples_per_second=self._batch / step_seconds,
            step_seconds=step_seconds,
            compute_seconds=fmean(s.compute_seconds for s in self._recent),
            exchange_seconds=fmean(s.exchange_seconds for s in self._recent),
            wait_seconds=fmean(s.wait_seconds for s in self._recent),
            bytes_sent_per_step=round(fmean(s.sent_bytes for s in self._recent)),
            bytes_received_per_step=round(fmean(s.received_bytes for s in self._recent)),
        )

    def evaluated(self, *, epoch: int, seconds: float, test_loss: float, test_accuracy: float) -> Evaluation:
        """Note an evaluation after the last added step."""
        since = self.evaluations[-1].step if self.evaluations else 0
        evaluation = Evaluation(
            step=self.progress.step,
            epoch=epoch,
            seconds=seconds,
            train_loss=fmean(self._losses[since:]),
            test_loss=test_loss,
            test_accuracy=test_accuracy,
        )
        self.evaluations.append(evaluation)
        self.progress = replace(self.progress, test_accuracy=test_accuracy)
        return evaluation

    def results(self, *, sent_bytes: int, received_bytes: int) -> dict[str, object]:
        """What `--json` holds, given the bytes of the whole run.

        Times are without the first step, which compiles and connects, when there is another one.
        """
        skipped = 1 if len(self._losses) > 1 else 0
        return {
            "steps": self.progress.step,
            "final_loss": self._losses[-1],
            "bytes_sent_per_step": round(sent_bytes / self.progress.step),
            "bytes_received_per_step": round(received_bytes / self.progress.step),
            "seconds_per_step": spread(self._times["step"][skipped:]),
            **{f"seconds_{name}": spread(self._times[name][skipped:]) for name in ("compute", "exchange", "wait")},
        }
