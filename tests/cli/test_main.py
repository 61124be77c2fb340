"""The front door: commands are listed without being imported, and start without what they do not need."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from typer.core import TyperGroup

from taihu import __version__
from taihu.cli.lazy import LazyCommand
from taihu.cli.main import make_app
from taihu.core.job.environment import without_settings
from taihu.core.process.entry import run_app

Taihu = Callable[..., subprocess.CompletedProcess[str]]

# Runs one statement after another, and tells what was imported until the end of each.
LISTING = """
import json, sys
from taihu.__main__ import main
imported = []
for statement in json.loads(sys.argv[1]):
    sys.stdout = open("/dev/null", "w")
    try:
        exec(statement)
    except SystemExit as ended:
        if ended.code:
            raise
    sys.stdout.close()
    imported.append(sorted(sys.modules))
print(json.dumps(imported), file=sys.__stdout__)
"""
COMPILING = {"numba", "llvmlite"}
NUMERIC = COMPILING | {"numpy"}
HEAVY = NUMERIC | {"grpc", "google.protobuf", "structlog", "pydantic", "yaml"}


def commands(group: TyperGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], LazyCommand]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, (*path, name))
        else:
            assert isinstance(command, LazyCommand)
            yield (*path, name), command


COMMANDS = dict(commands(make_app()))


def imported_by(*statements: str) -> list[set[str]]:
    """The modules imported until the end of each statement, in one process."""
    done = subprocess.run(
        [sys.executable, "-c", LISTING, json.dumps(statements)],
        env=without_settings(os.environ),
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return [set(modules) for modules in json.loads(done.stdout)]


def imported_by_commands(*lines: str) -> list[set[str]]:
    """The modules imported until the end of each command, in one process."""
    return imported_by(*(f"sys.argv[:] = ['taihu', *{line.split()!r}]; main()" for line in lines))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_what_is_listed_of_a_command_is_the_first_paragraph_of_its_docstring(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    text = inspect.getdoc(command.load())
    assert text is not None
    assert command.help == " ".join(text.split("\n\n")[0].split())


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_command_has_its_own_help(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        run_app(make_app(), [*path, "--help"])
    assert f"{' '.join(path)} [OPTIONS]" in capsys.readouterr().out


def test_help_and_version_import_no_command() -> None:
    for modules in imported_by_commands("--help", "dev bench --help", "--version"):
        assert not modules & (HEAVY - {"pydantic"})  # which Typer parses with
        rooms = {"taihu.worker", "taihu.ps_server", "taihu.allreduce", "taihu.kernels"}
        assert not [name for name in modules if name.rpartition(".")[0].startswith(tuple(rooms))]


def test_help_of_a_command_computes_nothing_and_connects_to_nothing() -> None:
    connecting = ["status --help", "top --help", "manifest --help"]
    lines = ["train --help", "server --help", "worker --help", "plan --help", *connecting]
    for line, modules in zip(lines, imported_by_commands(*lines), strict=True):
        assert not modules & NUMERIC, line
        assert line in connecting or "grpc" not in modules, line


def test_who_only_looks_on_needs_no_arrays() -> None:
    looking_on = ("taihu.local.training", "taihu.cli.runs.status", "taihu.cli.runs.top")
    for name, modules in zip(looking_on, imported_by(*(f"import {name}" for name in looking_on)), strict=True):
        assert {name, "grpc"} <= modules
        assert not modules & NUMERIC, name


def test_the_inputs_of_workers_are_checked_without_arrays() -> None:
    statement = "from taihu.worker.preflight import check_inputs; from taihu.core.job import Job; check_inputs(Job())"
    assert not imported_by(statement)[0] & NUMERIC


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["wokrer"], "No such command 'wokrer'. Did you mean 'worker'?; see '{} --help'"),
        (
            ["dev", "bench", "exchagne"],
            "No such command 'exchagne'. Did you mean 'exchange'?; see '{} dev bench --help'",
        ),
    ],
)
def test_a_wrong_command_is_refused_with_the_nearest_one(taihu: Taihu, arguments: list[str], words: str) -> None:
    done = taihu(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {words.format('python -m taihu')}\n"


@pytest.mark.parametrize("arguments", [(), ("dev", "bench")])
def test_a_group_alone_shows_its_help_and_no_error(taihu: Taihu, arguments: tuple[str, ...]) -> None:
    done = taihu(*arguments)
    assert (done.returncode, done.stderr) == (2, "")
    assert "Commands" in done.stdout


def test_the_version(taihu: Taihu) -> None:
    done = taihu("--version")
    assert (done.returncode, done.stdout) == (0, f"taihu {__version__}\n")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_examples_of_a_command_can_be_parsed(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    text = inspect.getdoc(command.load())
    assert text is not None
    examples = re.findall(rf"^  .*\btaihu {' '.join(path)}\b(.*)", text, re.MULTILINE)
    assert examples
    for example in examples:
        arguments = re.split(r"  +| \| | >>? | && ", example.strip())[0]
        command.make_context(command.name, shlex.split(arguments))
