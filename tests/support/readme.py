"""The commands and files that README.md shows.

A command needs what a comment behind it says (`# needs torch`), or a comment before its block
(`<!-- needs: podman, hosts -->`). A block of TOML or Python is a file: the one that its fence names after the
language (```toml job.toml), else job.toml and mine.py for the first of each.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["README", "Command", "commands", "files", "taihu_arguments", "typed"]

README = Path(__file__).parents[2] / "README.md"
_BLOCK = re.compile(
    r"(?:^<!-- needs: (?P<needs>[^>]*?) *-->\n)?^```(?P<language>\w+)(?: (?P<name>\S+))?\n(?P<text>.*?)^```$",
    re.M | re.S,
)
_USUAL_NAMES = {"toml": "job.toml", "python": "mine.py"}
_BESIDE = re.compile(r"\bneeds:? ([A-Za-z0-9_-]+)")


@dataclass(frozen=True)
class Command:
    """One line of a block, without its comment; `needs` is empty for what runs on any machine."""

    text: str
    needs: tuple[str, ...]


def commands(readme: str) -> Iterator[Command]:
    """Every line of the blocks of shell commands; lines that end with a backslash go on in the next one."""
    for block in _BLOCK.finditer(readme):
        if block["language"] not in ("sh", "bash", "console"):
            continue
        of_block = re.split(r",\s*", block["needs"]) if block["needs"] else []
        for line in block["text"].replace("\\\n", " ").splitlines():
            command, _, comment = re.match(r"((?:[^#]|(?<=\S)#)*)(#?)(.*)", line).groups()  # type: ignore[union-attr]
            if command.strip():
                yield Command(command.strip(), (*of_block, *_BESIDE.findall(comment)))


def files(readme: str, usual_names: Mapping[str, str] = _USUAL_NAMES) -> dict[str, str]:
    """Text by name of the files that are shown; those without a name have the usual one of their language, if any."""
    found: dict[str, str] = {}
    for block in _BLOCK.finditer(readme):
        name = block["name"] or usual_names.get(block["language"])
        if name is not None and name not in found:
            found[name] = block["text"]
    return found


def typed(page: str) -> str:
    """The lines of Python that a page has its reader type, one block after another."""
    blocks = _BLOCK.finditer(page)
    return "\n".join(block["text"] for block in blocks if block["language"] == "python" and not block["name"])


def taihu_arguments(command: str) -> list[list[str]]:
    """The arguments of every `taihu` in a line, behind variables, launchers and pipes as well."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lines: list[list[str]] = [[]]
    for word in lexer:
        if word and set(word) <= set("|&;"):
            lines.append([])
        else:
            lines[-1].append(word)
    return [line[line.index("taihu") + 1 :] for line in lines if "taihu" in line and not _builds_image(line)]


def _builds_image(words: list[str]) -> bool:
    """Whether `taihu` is the name of an image."""
    return words[0] in ("podman", "docker", "kubectl")
