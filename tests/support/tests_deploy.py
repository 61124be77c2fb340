"""Common parts of the tests of deploy/."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

__all__ = ["DEPLOY", "Object", "Write", "by_kind", "objects_of", "problems", "settings_of"]

DEPLOY = Path(__file__).parents[2] / "deploy"

Object = dict[str, Any]
Write = Callable[..., str]


def problems(objects: Iterable[Object]) -> list[str]:
    from validate import problems as found  # noqa: PLC0415 - not in every process that collects this test

    return found(objects)


def objects_of(text: str) -> list[Object]:
    # As `safe_load_all` in C, ten times as fast.
    return [item for item in yaml.load_all(text, Loader=yaml.CSafeLoader) if item]


def by_kind(objects: list[Object], kind: str) -> Object:
    (found,) = [item for item in objects if item["kind"] == kind]
    return found


def settings_of(objects: list[Object]) -> dict[str, str]:
    (found,) = [item for item in objects if item["metadata"]["name"].endswith("-settings")]
    data: dict[str, str] = found["data"]
    return data
