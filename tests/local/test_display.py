"""Progress on a terminal while something takes its time, and silence elsewhere."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from support.strategies import CHARACTERS

from taihu.core.coordination.control.kinds import fields_of
from taihu.core.coordination.membership.members import Progress
from taihu.core.model.scores import score_lines
from taihu.local.display.display import (
    Display,
    PlainDisplay,
    QuietDisplay,
    RunView,
    TerminalDisplay,
    make_display,
    view_of,
    waiting,
)
from taihu.local.display.terminal_line import clock_time, fitting, folded, remaining_s
from taihu.protos import coordinator_pb2 as pb
from taihu.worker.training.progress import ProgressMeter, StepSample

ON_WIRE = fields_of(pb.Progress, Progress, {})


def test_what_is_waited_for_is_named_on_a_terminal_and_gone_afterwards() -> None:
    shown = StringIO()
    with waiting("measuring [4] ranks", Console(file=shown, force_terminal=True, width=80)):
        pass
    assert "measuring [4] ranks" in shown.getvalue()
    # The line is erased at the end.
    assert shown.getvalue().rstrip("\r").endswith("\x1b[2K")


def test_nothing_is_written_where_nobody_watches() -> None:
    shown = StringIO()
    with waiting("measuring", Console(file=shown)):
        pass
    assert not shown.getvalue()


VIEW = RunView(
    step=31,
    total_steps=60,
    loss=0.1002,
    test_accuracy=0.9778,
    samples_per_second=12062.0,
    step_seconds=0.0053,
    compute_seconds=0.0024,
    exchange_seconds=0.0035,
    wait_seconds=0.0029,
    sent_bytes=307_000,
    received_bytes=307_000,
    tests=1,
)


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def without_codes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.parametrize("width", [10, 20, 30, 40, 60, 80, 120, 250])
def test_what_a_terminal_shows_never_wraps_and_keeps_the_most_important(width: int) -> None:
    shown, now = StringIO(), iter([float(second) for second in range(1000)])
    console = Console(file=shown, force_terminal=True, width=width)
    with TerminalDisplay(console, lambda: next(now)) as display:
        display.update(replace(VIEW, step=1, total_steps=60, test_accuracy=-1.0, tests=0))
        display.update(VIEW)
    lines = [part for line in without_codes(shown.getvalue()).split("\n") for part in line.split("\r")]
    assert max(map(len, lines)) <= width
    needed = {"step 31/60": 20, "ETA 0:": 60, "loss 0.1002": 80, "97.78%": 80, "down 307 kB": 250}
    for words, columns in needed.items():
        assert width < columns or words in shown.getvalue(), words


def test_a_terminal_has_no_thread_while_daemons_are_forked() -> None:
    """This comes before any of them is waited for."""
    before = set(threading.enumerate())
    with TerminalDisplay(Console(file=StringIO(), force_terminal=True, width=80)) as display:
        display.say("training")
        assert set(threading.enumerate()) <= before
        display.wait("server 1")
        assert not set(threading.enumerate()) <= before


def test_the_line_is_gone_at_the_end_and_those_of_tests_stay() -> None:
    shown, now = StringIO(), Clock()
    with TerminalDisplay(Console(file=shown, force_terminal=True, width=80), now) as display:
        display.say("training")
        now.seconds = 7.0
        display.update(VIEW)
        now.seconds = 8.0
        display.update(replace(VIEW, step=60, test_accuracy=0.99, tests=2))
    screen = pyte_like(shown.getvalue())
    assert screen[0] == "training"
    assert screen[1].startswith("   7.0 s  step 31/60  loss 0.1002  test 97.78%")
    assert screen[2].startswith("   8.0 s  step 60/60  loss 0.1002  test 99.00%")
    assert not any(screen[3:])


def test_every_test_has_a_line_though_its_score_is_that_of_the_one_before() -> None:
    meter = ProgressMeter(total_steps=9, batch=1)
    sample = StepSample(0.5, 0.1, 0.1, 0.0, 0.0, 0.1, 0.0, 10, 10)
    terminal, plain = StringIO(), StringIO()
    with TerminalDisplay(Console(file=terminal, force_terminal=True, width=80)) as display:
        lines = PlainDisplay(Console(file=plain))
        for step in range(1, 10):
            meter.add(step, sample)
            if step % 3 == 0:
                meter.evaluated(epoch=step // 3, seconds=0.1, test_loss=0.2, test_metrics={"accuracy": 0.9})
            # As it comes from another process.
            view = view_of([ON_WIRE.of(ON_WIRE.to(meter.progress)), Progress(step=step)])
            assert view is not None
            for each in (display, lines):
                each.update(view)
    tested = [line.split()[3] for line in pyte_like(terminal.getvalue()) if "test 90.00%" in line]
    assert tested == ["3/9", "6/9", "9/9"]
    assert [line.split()[3] for line in plain.getvalue().splitlines()] == tested


def pyte_like(text: str) -> list[str]:
    """The text left on a screen, by the few codes that the display uses: lines up, erased lines, line starts."""
    lines, row = [""], 0
    for code, plain in re.findall(r"(\x1b\[[0-9;?]*[A-Za-z])|([^\x1b]+)", text):
        if code.endswith("A"):
            row = max(0, row - int(code[2:-1] or 1))
        elif code.endswith("K"):
            lines[row] = ""
        for part in re.split(r"(\n|\r)", plain):
            if part == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif part and part != "\r":
                lines[row] = part
    return lines


def test_who_is_awaited_stands_on_the_line_and_in_plain_lines() -> None:
    shown = StringIO()
    with TerminalDisplay(Console(file=shown, force_terminal=True, width=80)) as display:
        display.wait("server 1")
    assert "waiting for server 1" in shown.getvalue()
    plain = StringIO()
    now = Clock()
    lines = PlainDisplay(Console(file=plain), now)
    for now.seconds in (0.5, 6.0, 7.0, 12.0):
        lines.wait("workers 1, 2")
    assert plain.getvalue() == "   6.0 s  waiting for workers 1, 2\n  12.0 s  waiting for workers 1, 2\n"


def test_no_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown = StringIO()
    with TerminalDisplay(Console(file=shown, force_terminal=True, width=80)) as display:
        display.update(VIEW)
    assert not re.search(r"\x1b\[[0-9;]*m", shown.getvalue())


def test_quiet_shows_warnings_alone(capsys: pytest.CaptureFixture[str]) -> None:
    shown = StringIO()
    with make_display(Console(file=shown, force_terminal=True), quiet=True) as display:
        display.warn("cannot write steps.csv: No space left on device")
        display.say("training")
        display.update(VIEW)
        display.wait("server 1")
    assert not shown.getvalue()
    assert capsys.readouterr().err == "warning: cannot write steps.csv: No space left on device\n"


@pytest.mark.parametrize("make", [TerminalDisplay, PlainDisplay, lambda _, now: QuietDisplay(now)])
def test_one_clock_tells_all_times(make: Callable[[Console, Clock], Display]) -> None:
    now = Clock()
    now.seconds = 100.0
    display = make(Console(file=StringIO()), now)
    now.seconds = 107.5
    assert display.elapsed_s == 7.5


SUMMARY = (
    "done in 9.8 s: 3,000 steps, final loss 0.0002",
    "bytes per step  138 kB sent, 138 kB received by all workers together",
    "sha256          2c6c986223f6802bb72a23be2ec462c36f945194941a2769b722e3e6addf3aae",
    "warning: cannot write runs/first/steps.csv: No space left on device; the run goes on without it",
)


def test_lines_of_a_narrow_terminal_break_between_words_and_paths_do_not() -> None:
    shown = StringIO()
    display = PlainDisplay(Console(file=shown, force_terminal=True, width=50))
    for line in SUMMARY:
        display.say(line)
    assert without_codes(shown.getvalue()).splitlines() == [
        SUMMARY[0],
        "bytes per step  138 kB sent, 138 kB received by",
        "                all workers together",
        SUMMARY[2],
        "warning: cannot write runs/first/steps.csv: No",
        "  space left on device; the run goes on without it",
    ]
    piped = StringIO()
    for line in SUMMARY:
        PlainDisplay(Console(file=piped, width=50)).say(line)
    assert piped.getvalue().splitlines() == list(SUMMARY)


@given(st.text("ab  -/:", max_size=120), st.integers(0, 60))
def test_folded_lines_have_the_words_in_order_and_fit(text: str, width: int) -> None:
    lines = folded(text, width).split("\n")
    assert " ".join(lines).split() == text.split()
    assert len(lines) == 1 or max(map(len, lines)) <= width


@given(st.lists(st.text(CHARACTERS, min_size=1, max_size=9)), st.integers(0, 60))
def test_parts_fit_in_order(parts: list[str], width: int) -> None:
    line = fitting(parts, width)
    assert len(line) <= width or not line
    whole = ["  ".join(parts[:count]) for count in range(len(parts) + 1)]
    assert line == max((text for text in whole if len(text) <= width), key=len)


def test_times_and_paces() -> None:
    assert [clock_time(seconds) for seconds in (0, 7.4, 65, 3723)] == ["0:00", "0:07", "1:05", "1:02:03"]
    assert remaining_s((10, 5.0), (20, 10.0), 60) == pytest.approx(20.0)
    assert remaining_s((10, 5.0), (10, 9.0), 60) is None


def test_a_run_without_accuracy_shows_its_metric() -> None:
    workers = [
        Progress(step=3, total_steps=9),
        Progress(step=3, total_steps=9, test_metric="rmse", test_value=0.1234, tests=1),
    ]
    for order in (workers, workers[::-1]):
        view = view_of(order)
        assert view is not None
        assert view.score == "rmse 0.1234"
        assert "loss 0.0000  test rmse 0.1234  " in str(view)
        shown = StringIO()
        PlainDisplay(Console(file=shown)).update(view)
        assert "test rmse 0.1234" in shown.getvalue()


def test_scores_of_a_summary() -> None:
    assert score_lines({"accuracy": 0.98889}) == [("test accuracy", "98.89%")]
    assert score_lines({"rmse": 0.12345, "r2": -1.5}) == [("test rmse", "0.1235"), ("test r2", "-1.5")]


SCRIPT = replace(VIEW, total_steps=0, loss=0.0, test_accuracy=-1.0, samples_per_second=0.0, tests=0)


@pytest.mark.parametrize("terminal", [True, False])
def test_of_a_script_only_what_is_known_is_shown(terminal: bool) -> None:
    shown = StringIO()
    console = Console(file=shown, force_terminal=terminal, width=160)
    now = Clock()
    with TerminalDisplay(console, now) if terminal else PlainDisplay(console, now) as display:
        now.seconds = 7.0
        display.update(SCRIPT)
        now.seconds = 14.0
        display.update(replace(SCRIPT, step=33))
    text = without_codes(shown.getvalue())
    assert "step 33" in text
    assert "5.3 ms" in text
    assert not {word for word in ("loss", "test", "samples", "ETA", "/0", "━") if word in text}
