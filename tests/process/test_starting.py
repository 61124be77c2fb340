"""Ctrl-C while a command is being imported: one line and exit code 130, whatever was about to be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Sends itself Ctrl-C when a module is looked for, as early as the moment at which a person may press it.
INTERRUPTED = """
import os, signal, sys
class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Presses())
{before}
from taihu.__main__ import main
sys.argv = ["taihu", *{arguments!r}]
main()
"""


def run(module: str, *arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    program = INTERRUPTED.format(module=module, arguments=arguments, before=before)
    return subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("taihu.core.process.programs.guard", "train"),
        ("taihu.core.job", "run"),
        ("typer", "status"),
        ("numpy", "dev bench select"),
        ("taihu.cli.doctor", "doctor"),
    ],
)
def test_ctrl_c_while_a_command_is_imported_is_told_in_one_line(module: str, command: str) -> None:
    done = run(module, *command.split())
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


def test_ctrl_c_in_a_command_that_has_begun_lets_it_close_what_it_has_opened() -> None:
    program = (
        "import os, signal\nfrom taihu.core.process.programs.starting import begun, end_at_interrupt\n"
        "end_at_interrupt()\nbegun()\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt:\n    print('closed')\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stdout) == (0, "closed\n")


def test_who_ignores_ctrl_c_goes_on() -> None:
    """As a shell's background processes do."""
    done = run("typer", "--version", before="signal.signal(signal.SIGINT, signal.SIG_IGN)")
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_imported_before_ctrl_c_is_told_in_one_line() -> None:
    """The console script imports this first. `signal` of the library would take longer than Python takes to start."""
    seen = "import os, sys\nknown = set(sys.modules)\nfrom taihu.__main__ import main\n"
    program = f"{seen}print(*sorted(set(sys.modules) - known))"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, timeout=600, check=True, cwd=root
    )
    assert done.stdout.split() == [
        "__future__",
        "taihu",
        "taihu.__main__",
        "taihu.core",
        "taihu.core.process",
        "taihu.core.process.programs",
        "taihu.core.process.programs.starting",
    ]
