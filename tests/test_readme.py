"""README.md and docs/guide.md show commands that exist; `make test-deploy` runs those that need nothing."""

from __future__ import annotations

import re
import shlex
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from support.command_lines import parse
from support.readme import README, Command, commands, files, taihu_arguments

from taihu.core.job import load_job
from taihu.core.job.reading import parse_assignments

PAGES = (README, README.parent / "docs" / "guide.md")
TEXT = "\n".join(page.read_text() for page in PAGES)
COMMANDS = list(commands(TEXT))
# What every machine of a user's has after `make train`, and programs that a needed thing brings.
OF_ALL = {"make", "taihu", ".", "cd", "git"}
BROUGHT = {
    "podman": "podman",
    "docker": "docker",
    "kubectl": "kubectl",
    "mpirun": "hosts",
    "srun": "hosts",
    "torchrun": "hosts",
    "pip": "network",
    "python3": "network",
}


def program(command: Command) -> str:
    return next(word for word in shlex.split(command.text) if not re.fullmatch(r"[A-Z_]+=.*", word))


def test_there_are_commands_and_both_kinds_of_files() -> None:
    assert len(COMMANDS) > 10
    assert {"job.toml", "mine.py", "train.py"} <= files(TEXT).keys()


def test_the_readme_is_read_in_two_minutes() -> None:
    assert len(README.read_text().splitlines()) <= 120


@pytest.mark.parametrize("command", [each for each in COMMANDS if "taihu" in each.text], ids=lambda each: each.text)
def test_every_option_of_a_command_exists(command: Command) -> None:
    for arguments in taihu_arguments(command.text):
        parse(arguments)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each.text)
def test_a_command_says_what_it_needs(command: Command) -> None:
    name = program(command)
    assert name in OF_ALL or BROUGHT.get(name, name) in command.needs, f"{command.text}: say that it needs {name}"
    if re.search(r"\b(fashion-mnist|cifar10)(?![\w])", command.text):
        assert command.needs, f"{command.text}: say which data it needs"


@pytest.mark.parametrize("command", [each for each in COMMANDS if "--set" in each.text], ids=lambda each: each.text)
def test_what_is_set_can_be_set(command: Command) -> None:
    for arguments in taihu_arguments(command.text):
        given = [value for option, value in pairwise(arguments) if option == "--set"]
        load_job(None, parse_assignments(given))


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (README.parent / "Makefile").read_text(), re.M))
    asked = {word for each in COMMANDS if program(each) == "make" for word in shlex.split(each.text)[1:]}
    assert {word for word in asked if "=" not in word} <= targets


def test_the_files_shown_are_valid(tmp_path: Path) -> None:
    for name, text in files(TEXT).items():
        (tmp_path / name).write_text(text)
        if name.endswith(".py"):
            compile(text, name, "exec")
        elif name == "job.toml":
            load_job(tmp_path / name)
        else:
            tomllib.loads(text)


def test_links_to_files_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)


SAMPLE = """
```sh
# a comment alone
A=1 taihu train --name 'a#b' \\
    --steps 3    # needs torch for it
mpirun -n 2 taihu node | tee log
```
<!-- needs: podman, hosts -->
```sh
podman build -t taihu .
```
```toml
x = 1
```
```toml other.toml
x = 2
```
"""


def test_commands_are_found_with_what_they_need() -> None:
    found = list(commands(SAMPLE))
    assert [each.needs for each in found] == [("torch",), (), ("podman", "hosts")]
    assert shlex.split(found[0].text) == ["A=1", "taihu", "train", "--name", "a#b", "--steps", "3"]
    assert [taihu_arguments(each.text) for each in found] == [
        [["train", "--name", "a#b", "--steps", "3"]],
        [["node"]],
        [],
    ]
    assert files(SAMPLE) == {"job.toml": "x = 1\n", "other.toml": "x = 2\n"}
