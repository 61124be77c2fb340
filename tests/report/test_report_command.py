"""`taihu report`: what it reads and writes, and what it says of what it cannot read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.report_runs import made_results, made_trace, write_run

from taihu.cli.main import make_app
from taihu.core.process.entry import run_app
from taihu.report.reading import read_run


def report(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        run_app(make_app(), ["report", *map(str, arguments)])
    return int(str(ended.value.code))


def test_the_page_lies_in_the_folder_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "first", made_results())
    assert report(folder) == 0
    assert str(folder / "report.html") in capsys.readouterr().out
    page = (folder / "report.html").read_text(encoding="utf-8")
    # The folder belongs to its results.
    assert report(folder / "results.json", "--out", tmp_path / "mine.html") == 0
    assert (tmp_path / "mine.html").read_text(encoding="utf-8") == page
    alone = tmp_path / "alone.json"
    alone.write_text(json.dumps(made_results()))
    (tmp_path / "steps.json").write_text(json.dumps(made_trace()))
    assert report(alone, "--trace", tmp_path / "steps.json") == 0
    assert "Timeline of a step" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("gone", None, "no such file or folder; give a run's folder, or what --json wrote"),
        ("results.json", "{", "not JSON"),
        ("results.json", b"\xff\xfe", "not a text"),
        ("results.json", "[" * 100_000, "not JSON"),
        (
            "results.json",
            "[1]",
            "expected what `taihu train --json` or `taihu simulate run --json` wrote, not a JSON list",
        ),
        ("results.json", '{"rows": [{"paper": 1}]}', "it holds 'rows'"),
        ("results.json", '{"format": "taihu results 9"}', "its format is taihu results 9, this taihu reads up to 1"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(
    name: str, content: str | bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert report(tmp_path / name) == 2
    said = capsys.readouterr().err.strip()
    assert words in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (None, "", "neither results.json nor steps.csv in it; expected a run's folder"),
        ("steps.csv", "a,b\n1,2\n", "expected a table with a column step, its first line is 'a,b'"),
        ("steps.csv", "", "expected a table with a column step"),
        ("settings.toml", "[", "not TOML"),
        ("trace.json", "{}", "expected a trace"),
    ],
)
def test_a_folder_with_a_broken_file_is_refused(
    name: str | None, content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    if name is None:
        folder.mkdir()
    else:
        (write_run(folder, made_results()) / name).write_text(content)
    assert report(folder) == 2
    assert words in capsys.readouterr().err


def test_a_run_that_ended_in_the_middle_of_a_line_is_shown_up_to_there(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    for name in ("steps.csv", "events.jsonl"):
        path = folder / name
        path.write_text(path.read_text()[:-9])
    assert report(folder) == 0
    assert "end with step 39" in (folder / "report.html").read_text(encoding="utf-8")


def test_rows_whose_steps_do_not_ascend_are_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path, steps=5) / "steps.csv"
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([head, rows[1], rows[0], rows[1], rows[4], rows[3].replace("4", "nan", 1)]) + "\n")
    assert read_run(tmp_path).steps["step"] == (2.0, 5.0)
