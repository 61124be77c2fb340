"""What a person sees while a run goes on: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import fmean
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column

from taihu.coordination.membership import Progress as WorkerProgress
from taihu.scores import score_text

__all__ = [
    "Display",
    "PlainDisplay",
    "RunView",
    "TerminalDisplay",
    "human_bytes",
    "make_display",
    "view_of",
    "waiting",
]

_SECONDS_BETWEEN_LINES = 5.0


@dataclass(frozen=True)
class RunView:
    """A run in numbers: the slowest worker's step, means of times and losses, sums of samples and bytes."""

    step: int
    total_steps: int
    loss: float
    test_accuracy: float
    samples_per_second: float
    step_seconds: float
    compute_seconds: float
    exchange_seconds: float
    wait_seconds: float
    sent_bytes: int
    received_bytes: int
    test_metric: str = ""
    test_value: float = 0.0

    @property
    def score(self) -> str:
        """Of the last test, "" before the first one; see `score_text`."""
        return score_text(self.test_accuracy, self.test_metric, self.test_value)

    def __str__(self) -> str:
        score = f"  test {self.score}" if self.score else ""
        return (
            f"loss {self.loss:.4f}{score}  {self.samples_per_second:.0f} samples/s  "
            f"step {self.step_seconds * 1e3:.1f} ms (compute {self.compute_seconds * 1e3:.1f}, "
            f"exchange {self.exchange_seconds * 1e3:.1f}, wait {self.wait_seconds * 1e3:.1f})  "
            f"up {human_bytes(self.sent_bytes)}  down {human_bytes(self.received_bytes)} a step"
        )


def view_of(workers: Sequence[WorkerProgress]) -> RunView | None:
    """Put the workers' reports together; None until every one has made a step."""
    if not workers or any(worker.step == 0 for worker in workers):
        return None
    tester = max(workers, key=lambda worker: bool(worker.test_metric))
    return RunView(
        step=min(worker.step for worker in workers),
        total_steps=max(worker.total_steps for worker in workers),
        loss=fmean(worker.loss for worker in workers),
        test_accuracy=max(worker.test_accuracy for worker in workers),
        samples_per_second=sum(worker.samples_per_second for worker in workers),
        step_seconds=fmean(worker.step_seconds for worker in workers),
        compute_seconds=fmean(worker.compute_seconds for worker in workers),
        exchange_seconds=fmean(worker.exchange_seconds for worker in workers),
        wait_seconds=fmean(worker.wait_seconds for worker in workers),
        sent_bytes=sum(worker.bytes_sent_per_step for worker in workers),
        received_bytes=sum(worker.bytes_received_per_step for worker in workers),
        test_metric=tester.test_metric,
        test_value=tester.test_value,
    )


def human_bytes(count: float) -> str:
    """`count` bytes with three digits and a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


class Display(Protocol):
    """Shows a run; a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None:
        """Show one line that stays."""

    def update(self, view: RunView, elapsed_s: float) -> None:
        """Show where the run is, `elapsed_s` after its start."""


class PlainDisplay:
    """A line for every evaluation, and one every few seconds between them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_s = 0.0
        self._score: tuple[float, str, float] = (-1.0, "", 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, text: str) -> None:
        """See `Display.say`."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, view: RunView, elapsed_s: float) -> None:
        """See `Display.update`."""
        score = (view.test_accuracy, view.test_metric, view.test_value)
        if score != self._score or elapsed_s - self._last_s >= _SECONDS_BETWEEN_LINES:
            self._score = score
            self._last_s = elapsed_s
            self.say(f"{elapsed_s:6.1f} s  step {view.step}/{view.total_steps}  {view}")


class TerminalDisplay:
    """A progress bar with the numbers beside it."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.fields[state]}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            # Goes on in further lines where the terminal is narrow; the bar and the steps keep their room.
            TextColumn("{task.fields[view]}", table_column=Column()),
            console=console,
        )
        self._task: TaskID = self._bar.add_task("train", total=None, state="starting", view="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """See `Display.say`."""
        self._bar.console.print(text, markup=False, highlight=False)

    def update(self, view: RunView, elapsed_s: float) -> None:
        """See `Display.update`."""
        self._bar.update(self._task, completed=view.step, total=view.total_steps, state="training", view=str(view))


def make_display(console: Console) -> Display:
    """The display that suits `console`."""
    return TerminalDisplay(console) if console.is_terminal else PlainDisplay(console)


def waiting(what: str, console: Console | None = None) -> AbstractContextManager[object]:
    """During the block, `what` and the seconds so far stand on a terminal's line; nothing is left of them.

    Args:
        what: is being done.
        console: of the terminal; by default, standard error, so that results can be piped. If it is none, nothing
            is written.
    """
    console = console or Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    # Seldom enough not to be seen in what is measured.
    progress = Progress(
        *columns, console=console, refresh_per_second=2, transient=True, disable=not console.is_terminal
    )
    progress.add_task(what)
    return progress
