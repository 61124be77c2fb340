"""The display of a run for people: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import fmean
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text
from typing_extensions import override

from taihu.core.coordination.membership.members import Progress as WorkerProgress
from taihu.core.model.scores import score_text
from taihu.core.system.clocks import monotonic
from taihu.local.display.terminal_line import bar, clock_time, fitting, folded, remaining_s

_SECONDS_BETWEEN_LINES = 5.0
# Columns from which the bar is long, and below which there is none.
_WIDE, _NARROW = 60, 40


@dataclass(frozen=True)
class RunView:
    """A run in numbers: the slowest worker's step, means of times and losses, sums of samples and bytes.

    `total_steps` is 0 of a script's own loop, which tells neither its losses nor its samples.
    """

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
    tests: int = 0

    @property
    def score(self) -> str:
        """The score of the last test, "" before the first one; see `score_text`."""
        return score_text(self.test_accuracy, self.test_metric, self.test_value)

    def in_short(self) -> tuple[str, ...]:
        """The numbers in the order of their importance, for where there is not room for all of them."""
        return (
            f"loss {self.loss:.4g}" if self.total_steps else "",
            f"test {self.score}" if self.score else "",
            f"{self.samples_per_second:.0f} samples/s" if self.total_steps else "",
            f"{self.step_seconds * 1e3:.3g} ms/step",
            f"wait {self.wait_seconds * 1e3:.3g}",
            f"compute {self.compute_seconds * 1e3:.3g}",
            f"exchange {self.exchange_seconds * 1e3:.3g}",
            f"up {human_bytes(self.sent_bytes)}",
            f"down {human_bytes(self.received_bytes)}",
        )

    def __str__(self) -> str:
        score = f"  test {self.score}" if self.score else ""
        told = f"loss {self.loss:.4f}{score}  {self.samples_per_second:.0f} samples/s  " if self.total_steps else ""
        return (
            f"{told}step {self.step_seconds * 1e3:.1f} ms (compute {self.compute_seconds * 1e3:.1f}, "
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
        tests=max(worker.tests for worker in workers),
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

    @property
    def elapsed_s(self) -> float:
        """Seconds since the display was made: the one clock of all that is told of a run."""

    def say(self, text: str) -> None:
        """Show one line that stays."""

    def warn(self, text: str) -> None:
        """Show a warning, whatever else is shown."""

    def wait(self, awaited: str) -> None:
        """Show for whom the run waits."""

    def update(self, view: RunView) -> None:
        """Show where the run is."""


class PlainDisplay(Display):
    """A line for every evaluation, and one every few seconds between them."""

    def __init__(self, console: Console, now: Callable[[], float] = monotonic) -> None:
        self._console = console
        self._now, self._start_s = now, now()
        self._last_s = 0.0
        self._tests = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    @override
    def say(self, text: str) -> None:
        _print(self._console, text)

    @override
    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")

    @property
    @override
    def elapsed_s(self) -> float:
        return self._now() - self._start_s

    @override
    def wait(self, awaited: str) -> None:
        elapsed_s = self.elapsed_s
        if elapsed_s - self._last_s >= _SECONDS_BETWEEN_LINES:
            self._last_s = elapsed_s
            self.say(f"{elapsed_s:6.1f} s  waiting for {awaited}")

    @override
    def update(self, view: RunView) -> None:
        elapsed_s = self.elapsed_s
        if view.tests != self._tests or elapsed_s - self._last_s >= _SECONDS_BETWEEN_LINES:
            self._tests = view.tests
            self._last_s = elapsed_s
            self.say(f"{elapsed_s:6.1f} s  {_steps(view)}  {view}")


class TerminalDisplay(Display):
    """A line that is drawn anew in place, with a bar and the numbers that fit; a line that stays for every test.

    Nothing is left of the first one at the end.
    """

    def __init__(self, console: Console, now: Callable[[], float] = monotonic) -> None:
        self._console = console
        self._now = now
        self._start_s = now()
        self._first: tuple[int, float] | None = None
        self._view: RunView | None = None
        self._seen_s = 0.0
        self._awaited = ""
        self._tests = 0
        self._live = Live(console=console, get_renderable=self._line, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    @override
    def say(self, text: str) -> None:
        _print(self._console, text)

    @override
    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")

    @property
    @override
    def elapsed_s(self) -> float:
        return self._now() - self._start_s

    @override
    def wait(self, awaited: str) -> None:
        self._awaited = awaited
        self._live.start()

    @override
    def update(self, view: RunView) -> None:
        self._view, self._seen_s, self._awaited = view, self._now(), ""
        self._first = self._first or (view.step, self._seen_s)
        self._live.start()
        if view.tests != self._tests:
            self._tests = view.tests
            self.say(fitting([f"{self.elapsed_s:6.1f} s", _steps(view), *view.in_short()], self._console.width))

    def _line(self) -> Text:
        width = self._console.width - 1
        elapsed = clock_time(self.elapsed_s)
        view = self._view
        if view is None:
            state = f"waiting for {self._awaited}" if self._awaited else "starting"
            return Text(fitting([elapsed, state], width) or elapsed, no_wrap=True, overflow="ellipsis")
        length = 20 if width >= _WIDE else 10 if width >= _NARROW else 0
        length = length if view.total_steps else 0
        drawn = bar(view.step / max(1, view.total_steps), length)
        left_s = remaining_s(self._first or (0, 0.0), (view.step, self._seen_s), view.total_steps)
        left = "" if left_s is None else f"ETA {clock_time(left_s)}"
        line = fitting([drawn, _steps(view), elapsed, left, *view.in_short()], width)
        text = Text(line, no_wrap=True, overflow="ellipsis")
        text.stylize("cyan", 0, len(drawn))
        return text


class QuietDisplay(Display):
    """A display that shows nothing but warnings, on standard error."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now, self._start_s = now, now()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    @override
    def say(self, text: str) -> None:
        pass

    @override
    def warn(self, text: str) -> None:
        print(f"warning: {text}", file=sys.stderr, flush=True)  # noqa: T201

    @property
    @override
    def elapsed_s(self) -> float:
        return self._now() - self._start_s

    @override
    def wait(self, awaited: str) -> None:
        pass

    @override
    def update(self, view: RunView) -> None:
        pass


def _print(console: Console, text: str) -> None:
    """Print a line; on a terminal that is narrower, as several."""
    shown = folded(text, console.width) if console.is_terminal else text
    console.print(shown, markup=False, highlight=False, soft_wrap=True)


def _steps(view: RunView) -> str:
    return f"step {view.step}/{view.total_steps}" if view.total_steps else f"step {view.step}"


def make_display(console: Console, *, quiet: bool = False) -> Display:
    """The display that suits `console`."""
    if quiet:
        return QuietDisplay()
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
