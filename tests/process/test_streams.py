"""Standard streams: what a command, or a run, does where one is closed, full, or read by nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# A command that tells much, and a run that tells much and goes on: it leaves a file.
PROGRAM = """
import sys
from pathlib import Path
from taihu.core.process.streams import open_streams, outlive_output
open_streams()
import typer
from taihu.core.process.entry import run_app
app = typer.Typer()

@app.command()
def tell(lines: int):
    for _ in range(lines):
        typer.echo("x" * 79)

@app.command()
def run(lines: int):
    outlive_output()
    print("read", sys.stdin.read(), file=sys.stderr)
    for _ in range(lines):
        print("x" * 79)
    Path("done").write_text("done")

run_app(app)
"""
FULL = "error: cannot write standard output: No space left on device\n"
CLOSED = "error: cannot write standard output: it is closed\n"
FULL_IN_A_RUN = "warning: cannot write standard output: No space left on device; the run goes on without it\n"
GONE_IN_A_RUN = "warning: cannot write standard output: its reader has gone; the run goes on without it\n"


def shell(folder: Path, words: str, redirected: str) -> tuple[int, str, str]:
    """The exit code of the program with these words, what came through a pipe behind it, and standard error."""
    (folder / "program.py").write_text(PROGRAM)
    line = f"{sys.executable} program.py {words} {redirected}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line],  # noqa: S607
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("lines", [1, 3000])  # in a buffer until the end, and not
@pytest.mark.parametrize(
    ("redirected", "expected"),
    [
        ("> /dev/full", (1, "", FULL)),
        (">&-", (1, "", CLOSED)),
        ("> /dev/full 2>&-", (1, "", "")),
        ("<&- >&- 2>&-", (1, "", "")),
        ("2>&- | wc -l", (0, "LINES\n", "")),
    ],
)
def test_a_command_whose_output_is_lost_fails(
    tmp_path: Path, lines: int, redirected: str, expected: tuple[int, str, str]
) -> None:
    code, out, err = expected
    assert shell(tmp_path, f"tell {lines}", redirected) == (code, out.replace("LINES", str(lines)), err)


def test_a_command_that_nobody_reads_ends_without_a_word(tmp_path: Path) -> None:
    assert shell(tmp_path, "tell 100000", "| head -1") == (141, "x" * 79 + "\n", "")


@pytest.mark.parametrize(
    ("redirected", "expected"),
    [
        ("> /dev/full", (0, "", "read \n" + FULL_IN_A_RUN)),
        (">&-", (0, "", "read \n")),
        ("<&-", (0, "x" * 79 + "\n", "read \n")),
        ("<&- >&- 2>&-", (0, "", "")),
        ("2> /dev/full | tail -1", (0, "x" * 79 + "\n", "")),
        ("| true", (0, "", "read \n" + GONE_IN_A_RUN)),
    ],
)
def test_a_run_outlives_its_streams(tmp_path: Path, redirected: str, expected: tuple[int, str, str]) -> None:
    code, out, err = shell(tmp_path, f"run {1 if redirected == '<&-' else 3000}", redirected)
    assert (code, out, err) == expected
    assert (tmp_path / "done").read_text() == "done"
