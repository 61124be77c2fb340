"""Habits of every command: -h, --version, completion; and JSON on standard output."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from test_main import COMMANDS

from taihu import __version__
from taihu.cli.main import make_app
from taihu.core.base.words import counted, listed
from taihu.core.process.command_line import command_of
from taihu.core.process.entry import run_app
from taihu.core.process.options import JsonOption
from taihu.core.process.results import as_json, write_json
from taihu.ps_server.command import server
from taihu.worker.command import worker


def run(app: object, *arguments: str) -> int:
    assert callable(app)
    with pytest.raises(SystemExit) as ended:
        run_app(app, arguments)
    return int(str(ended.value.code))


@pytest.mark.parametrize("path", [(), ("plan",), ("simulate",), ("dev",), ("dev", "bench"), *COMMANDS], ids=" ".join)
def test_every_command_tells_version_and_help(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(make_app(), *path, "--version") == 0
    assert capsys.readouterr().out == f"taihu {__version__}\n"
    assert run(make_app(), *path, "-h") == 0
    assert "--version" in capsys.readouterr().out


@pytest.mark.parametrize("function", [server, worker])
def test_the_modules_of_daemons_have_the_same(function: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(function)
    assert run(command_of(function), "--version") == 0
    assert run(command_of(function), "-h") == 0
    assert "-h" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("taihu tra", {"train"}),
        ("taihu dev bench all", {"allreduce"}),
        ("taihu train --optim", {"--optimizer"}),
        ("taihu worker --model resn", {"resnet20", "resnet50"}),
        ("taihu train --zer", {"--zero"}),
    ],
)
def test_the_shell_is_told_how_a_word_may_go_on(
    words: str, offered: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_TAIHU_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    monkeypatch.setattr("sys.argv", ["taihu"])
    with pytest.raises(SystemExit, match="0"):
        run_app(make_app())
    assert set(capsys.readouterr().out.split()) == offered


def test_the_script_of_a_shell_can_be_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("typer._completion_shared.shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    monkeypatch.setattr("sys.argv", ["taihu"])
    with pytest.raises(SystemExit, match="0"):
        run_app(make_app(), ["--show-completion"])
    assert "complete -o default -F _taihu_completion taihu" in capsys.readouterr().out


def test_json_on_standard_output_stands_alone(capfd: pytest.CaptureFixture[str]) -> None:
    def measure(json_file: JsonOption = None) -> None:
        print("for people")  # noqa: T201
        if json_file is not None:
            write_json(json_file, {"seconds": 0.5})

    assert run(command_of(measure), "--json", "-") == 0
    out, err = capfd.readouterr()
    assert (json.loads(out), err) == ({"seconds": 0.5}, "for people\n")


def test_json_has_no_numbers_that_are_none(tmp_path: Path) -> None:
    values = {"a": math.nan, "b": [1.0, math.inf, {"c": (-math.inf, 2)}], "d": "NaN", "e": True}
    assert json.loads(as_json(values), parse_constant=pytest.fail) == {
        "a": None,
        "b": [1.0, None, {"c": [None, 2]}],
        "d": "NaN",
        "e": True,
    }
    write_json(tmp_path / "file.json", values)
    assert "NaN," not in (tmp_path / "file.json").read_text().replace('"NaN"', "")


def test_one_is_singular_and_all_else_plural() -> None:
    assert [counted(number, "group") for number in (0, 1, 2, 1000)] == [
        "0 groups",
        "1 group",
        "2 groups",
        "1,000 groups",
    ]
    assert [listed(["a", "b", "c"][:count]) for count in range(4)] == ["", "a", "a and b", "a, b and c"]
