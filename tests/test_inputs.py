"""Bad and borderline inputs: each is refused in one line that names the thing, or accepted because it is right.

A row of `tests/testdata/inputs/*.txt` is an exit code, variables, and a command line, then `=>` and words that the
line on stderr has, separated by semicolons. `toml:...` stands for a job file of that content.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

import pytest

from taihu.cli.main import make_app
from taihu.core.job.environment import without_settings
from taihu.core.process.entry import run_app

FOLDER = Path(__file__).parent / "testdata" / "inputs"
ROWS = [
    (file.stem, row)
    for file in sorted(FOLDER.glob("*.txt"))
    for row in file.read_text(encoding="utf-8").splitlines()
    if row and not row.startswith("#")
]


@pytest.fixture(autouse=True)
def no_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing of the table leads to a run; an interrupt means again what it meant before."""

    def accepted(*_: object) -> NoReturn:
        raise AssertionError("accepted: training would have started")

    monkeypatch.setattr("taihu.local.training.LocalTraining.run", accepted)
    monkeypatch.chdir(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_the_table_is_as_long_as_it_is_said_to_be() -> None:
    assert len(ROWS) >= 190
    assert len({row for _, row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("file", "row"), ROWS, ids=[f"{file}: {row.partition(' =>')[0]}" for file, row in ROWS])
def test_an_input_is_refused_in_one_line_or_right(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, file: str, row: str
) -> None:
    del file
    line, _, wanted = row.partition(" =>")
    code, *words = shlex.split(line)
    variables = {}
    while words and "=" in words[0] and words[0].partition("=")[0].isupper():
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    arguments = [_file(word, tmp_path) for word in words]
    with (
        patch.dict(os.environ, {**without_settings(os.environ), **variables}, clear=True),
        pytest.raises(SystemExit) as ended,
    ):
        run_app(make_app(), arguments)
    said = capsys.readouterr().err
    errors = [text for text in said.splitlines() if not text.startswith(("warning: ", "{"))]
    assert str(ended.value.code) == code, said
    assert "Traceback" not in said
    if code != "0" and wanted.strip():
        assert len(errors) == 1, said
        assert errors[0].startswith("error: ")
    for word in filter(None, (part.strip() for part in wanted.split(";"))):
        assert word in said, (word, said)


def _file(word: str, folder: Path) -> str:
    if not word.startswith("toml:"):
        return word
    path = folder / "job.toml"
    path.write_bytes(word.removeprefix("toml:").encode().decode("unicode_escape").encode("latin-1"))
    return str(path)
