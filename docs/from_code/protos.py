"""The services of the wire contract, from protos/*.proto."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from from_code.cells import code, table

_FOLDER: Final = Path(__file__).parents[2] / "protos"
_HEAD: Final = """\
# Services

Processes speak gRPC, package `taihu.v1`. Messages and fields are in the files; an exchange's frames are
written and read without protobuf's copies ([why](../adr/0002-frame-encoding.md)). Every daemon has gRPC's
health and reflection, too.

This page is made from the code: `make reference`.
"""
_SERVICE: Final = re.compile(r"((?:^//.*\n)+)^service (\w+) \{\n(.*?)^\}", re.M | re.S)
_CALL: Final = re.compile(r"((?:^  //.*\n)*)^  rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);", re.M)


def page() -> str:
    """The page of all services and their calls."""
    parts = [_HEAD]
    for file in sorted(_FOLDER.glob("*.proto")):
        for comment, name, body in _SERVICE.findall(file.read_text(encoding="utf-8")):
            parts += [f"## {name}", "", f"{_text(comment)} File: [{file.name}](../../protos/{file.name}).", ""]
            parts += [*table(("call", "asks", "answers", "meaning"), _calls(body)), ""]
    return "\n".join(parts)


def _calls(body: str) -> Iterator[tuple[str, str, str, str]]:
    for comment, name, asks_stream, asks, answers_stream, answers in _CALL.findall(body):
        yield code(name), asks_stream + code(asks), answers_stream + code(answers), _text(comment)


def _text(comment: str) -> str:
    return " ".join(line.strip().removeprefix("//").strip() for line in comment.splitlines())
