"""What stands on a terminal while something takes its time, and that nothing does elsewhere."""

from __future__ import annotations

import re
from io import StringIO

from rich.console import Console

from taihu.coordination.membership import Progress
from taihu.display import PlainDisplay, RunView, TerminalDisplay, view_of, waiting
from taihu.scores import score_lines


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


def test_a_narrow_terminal_shows_the_whole_view_beside_the_bar() -> None:
    view = RunView(
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
    )
    shown = StringIO()
    with TerminalDisplay(Console(file=shown, force_terminal=True, width=80)) as display:
        display.update(view, 7.0)
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue()).rpartition("training")[2]
    assert "31/60" in last
    for word in str(view).split():
        assert word in last


def test_a_run_without_accuracy_shows_its_metric() -> None:
    workers = [
        Progress(step=3, total_steps=9),
        Progress(step=3, total_steps=9, test_metric="rmse", test_value=0.1234),
    ]
    for order in (workers, workers[::-1]):
        view = view_of(order)
        assert view is not None
        assert view.score == "rmse 0.1234"
        assert "loss 0.0000  test rmse 0.1234  " in str(view)
        shown = StringIO()
        PlainDisplay(Console(file=shown)).update(view, 1.0)
        assert "test rmse 0.1234" in shown.getvalue()


def test_scores_of_a_summary() -> None:
    assert score_lines({"accuracy": 0.98889}) == [("test accuracy", "98.89%")]
    assert score_lines({"rmse": 0.12345, "r2": -1.5}) == [("test rmse", "0.1235"), ("test r2", "-1.5")]
