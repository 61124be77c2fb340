"""`taihu example`: examples are listed, written whole, never over something else, and are what pages show."""

from __future__ import annotations

import shlex
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_lines import parse
from support.readme import README, files

Taihu = Callable[..., subprocess.CompletedProcess[str]]

ROOT = README.parent
EXAMPLES: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "examples" / "examples.toml").read_text())
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_all_examples_are_listed_each_on_a_line(taihu: Taihu) -> None:
    lines = taihu("example").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(EXAMPLES)
    assert all(len(line) < 120 for line in lines)


def test_every_file_of_an_example_is_there_and_none_is_left_out() -> None:
    named = {name for example in EXAMPLES.values() for name in example["files"]}
    there = {str(path.relative_to(ROOT / "examples")) for path in (ROOT / "examples").rglob("*") if path.is_file()}
    assert {name for name in there if "__pycache__" not in name} - {"examples.toml"} == named


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_says_what_it_needs_and_how_it_is_run(name: str) -> None:
    example = EXAMPLES[name]
    assert set(example.get("extras", ())) <= EXTRAS.keys()
    written = {Path(file).name for file in example["files"]}
    assert len(written) == len(example["files"])
    for command in example["run"]:
        program, *arguments = shlex.split(command)
        if program == "pip":
            break  # commands behind it need what it brings
        assert program == "taihu"
        parse(arguments)
        scripts = {word.partition(":")[0] for word in arguments if word.partition(":")[0].endswith((".py", ".toml"))}
        assert scripts <= written


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_written_as_it_is(name: str, taihu: Taihu, tmp_path: Path) -> None:
    done = taihu("example", name, "--into", str(tmp_path / "new" / "folder"))
    assert done.returncode == 0, done.stderr
    written = {path.name: path.read_bytes() for path in (tmp_path / "new" / "folder").iterdir()}
    assert written == {Path(file).name: (ROOT / "examples" / file).read_bytes() for file in EXAMPLES[name]["files"]}
    assert f"cd {tmp_path}/new/folder" in done.stdout
    assert all(f"  {command}\n" in done.stdout for command in EXAMPLES[name]["run"])


def test_what_is_there_is_not_written_over_unless_it_is_asked_for(taihu: Taihu, tmp_path: Path) -> None:
    arguments = ("example", "own-model", "--into", str(tmp_path))
    assert taihu(*arguments).returncode == 0
    assert taihu(*arguments).returncode == 0, "the same files are no conflict"
    (tmp_path / "job.toml").unlink()
    (tmp_path / "mine.py").write_text("mine")
    refused = taihu(*arguments)
    assert refused.returncode == 2
    expected = "expected no such file, or the example's; --force writes over it, --into names another place"
    assert refused.stderr == f"error: {tmp_path}/mine.py: {expected}\n"
    assert (tmp_path / "mine.py").read_text() == "mine"
    assert not (tmp_path / "job.toml").exists(), "all or nothing"
    assert taihu(*arguments, "--force").returncode == 0
    assert (tmp_path / "mine.py").read_text() == (ROOT / "examples" / "own_model" / "mine.py").read_text()


def test_a_name_that_is_none_is_told_with_those_that_are(taihu: Taihu) -> None:
    assert taihu("example", "toch").stderr == "error: toch: no example has that name; did you mean torch?\n"
    others = ", ".join(EXAMPLES)
    assert taihu("example", "xyz").stderr == f"error: xyz: no example has that name; expected one of {others}\n"


def test_a_folder_that_cannot_be_made_is_one_line(taihu: Taihu, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = taihu("example", "torch", "--into", str(tmp_path / "file"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write ")
    assert done.stderr.count("\n") == 1


def test_pages_show_the_examples() -> None:
    shown = files(README.read_text() + (ROOT / "docs" / "guide.md").read_text())
    for name, file in (("train.py", "torch"), ("mine.py", "own_model"), ("job.toml", "own_model")):
        assert shown[name] == (ROOT / "examples" / file / name).read_text()
