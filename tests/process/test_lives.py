"""Files of a process that was killed go with the next; those of one that lives stay."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from taihu.core.process.lives import is_over, own_life, passing_folder
from taihu.core.security.token import Token, keep_token, kept_token

SECRET = "x" * 20
HOLDER = """
import sys
from taihu.core.process.lives import passing_folder
from taihu.core.security.token import Token, keep_token
keep_token(Token("x" * 20), sys.argv[1])
with passing_folder() as folder:
    (folder / "job.toml").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


@contextmanager
def holding(address: str) -> Iterator[Path]:
    """The folder of a process that has one, and a token, during the block, in which it is killed at the end."""
    command = [sys.executable, "-c", HOLDER, address]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("temporary", "runtime"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path / "temporary"


def test_what_a_killed_process_has_left_goes_with_the_next(folder: Path) -> None:
    others = folder / "taihu-of-anybody-else"
    others.mkdir()
    with holding("127.0.0.1:7070") as first, holding("127.0.0.1:7071") as second:
        with passing_folder() as own:
            assert {first, second, own, others} == set(folder.iterdir())
        keep_token(Token(SECRET), "127.0.0.1:7072")
        assert kept_token("127.0.0.1:7070") is not None
    assert {first, second, others} == set(folder.iterdir())  # both were killed
    with passing_folder() as own:
        assert {own, others} == set(folder.iterdir())
    assert set(folder.iterdir()) == {others}
    keep_token(Token(SECRET), "127.0.0.1:7073")
    assert [kept_token(f"127.0.0.1:{port}") is not None for port in (7070, 7071, 7072, 7073)] == [
        False,
        False,
        True,
        True,
    ]


def test_a_life_is_over_when_its_process_is_gone() -> None:
    namespace, pid, start = own_life().split("-")
    assert int(pid) == os.getpid()
    assert not is_over(own_life())
    assert is_over(f"{namespace}-{pid}-{int(start) - 1}")  # another one had the number before
    assert is_over(f"{namespace}-{2**22 + 1}-{start}")
    assert not is_over(f"{int(namespace) + 1}-{2**22 + 1}-{start}")  # of another container
