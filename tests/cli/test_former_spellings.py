"""Commands and options under their names of before: each is an error of one line that names the one of now."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from taihu.cli.main import make_app
from taihu.core.process.entry import run_app

FILE = Path(__file__).parents[1] / "testdata" / "former_spellings.txt"
ROWS = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("row", ROWS)
def test_a_former_spelling_names_the_one_of_now(row: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words, _, now = row.partition(" => ")
    with pytest.raises(SystemExit) as ended:
        run_app(make_app(), shlex.split(words))
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    [line] = said.err.splitlines()
    assert line.startswith("error: ")
    assert now in line
    assert list(tmp_path.iterdir()) == []
