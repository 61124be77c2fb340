"""What stands on a terminal while something takes its time, and that nothing does elsewhere."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from taihu.display import waiting


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
