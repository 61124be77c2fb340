"""`taihu launch` with options that cannot be: one line, before any host is reached."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import run_command

SCRIPT = "import taihu.torch"
SSH = "/nowhere/ssh"
"""Reaching a host would be told by its name."""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("script.py",), "-H, --hostfile: neither is there; give one of them, as -H host1,host2:2"),
        (("-H", "a", "--hostfile", "b", "script.py"), "-H, --hostfile: both are there; give one of them"),
        (("--hostfile", "none", "script.py"), "--hostfile none: cannot be read (No such file or directory); give a"),
        (
            ("--hostfile", "script.py", "script.py"),
            "script.py, line 1: 'import taihu.torch': expected a host and its",
        ),
        (("-H", "a,:2", "script.py"), "host ':2': expected a name, or a name and workers, as in host1,host2:2"),
        (("-H", "a,b", "--workers", "3", "script.py"), "3 workers: the hosts have room for 2; give a host as host:2"),
        (("-H", "a", "other.py"), "script other.py: no such file; give the path of a Python script"),
        (("-H", "a", "-x", "NOT_THERE", "script.py"), "-x NOT_THERE: there is no such variable here; set it"),
        (("-H", "a", "--json", "-", "script.py"), "--json -: standard output is the script's; give a file"),
        (("-H", "a", "script.py"), f"--ssh: {SSH} cannot be started (No such file or directory); install OpenSSH's"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run_command("taihu", "launch", "--ssh", SSH, *arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {words}")
    assert not (tmp_path / "runs").exists()
