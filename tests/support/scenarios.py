"""Replays scenarios: text files of commands, each followed by what came of it.

    # A frame that arrives twice is counted once.
    push worker 0 step 1 group 0 offset 0 count 4
    > pending

Lines that start with `#` are comments, lines that start with `>` the recorded outcome. With TAIHU_REWRITE=1 in the
environment the outcomes are recorded anew instead of compared; read the difference before committing it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from taihu.core.base.errors import TaihuError

__all__ = ["check_scenario", "parse_options", "replay", "scenario_paths"]

Interpreter = Callable[[str], str]
"""Carries out one command line and says what came of it; a TaihuError is an outcome too."""


def scenario_paths(folder: str) -> list[Path]:
    """The scenarios of `testdata/<folder>`; there must be some."""
    paths = sorted((Path(__file__).parents[1] / "testdata" / folder).glob("*.txt"))
    assert paths, f"no scenarios in testdata/{folder}"
    return paths


def check_scenario(path: Path, interpret: Interpreter) -> None:
    """Compare what comes of the commands in `path` with what is recorded there."""
    recorded = path.read_text(encoding="utf-8")
    replayed = replay(recorded, interpret)
    if os.environ.get("TAIHU_REWRITE") == "1":
        path.write_text(replayed, encoding="utf-8")
        return
    lines = difflib.unified_diff(recorded.splitlines(), replayed.splitlines(), "recorded", "replayed", lineterm="")
    assert recorded == replayed, "\n".join([f"{path.name}: TAIHU_REWRITE=1 records the outcome anew", *lines])


def replay(script: str, interpret: Interpreter) -> str:
    """The script with the outcomes of this run in place of the recorded ones."""
    replayed = []
    for number, line in enumerate(script.splitlines(), 1):
        if line.startswith(">"):
            continue
        replayed.append(line)
        if line and not line.startswith("#"):
            replayed += [f"> {outcome}" for outcome in _outcome(interpret, line, number).splitlines()]
    return "\n".join(replayed) + "\n"


def parse_options(words: Sequence[str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Read `key value ...` pairs; a value goes on until the next key of `defaults`, which holds every known key."""
    options = dict(defaults)
    key = ""
    for word in words:
        if word in defaults:
            key = word
            options[key] = ""
        elif key:
            options[key] = f"{options[key]} {word}".strip()
        else:
            raise ValueError(f"{word!r}: expected one of {', '.join(defaults)}")
    return options


def _outcome(interpret: Interpreter, line: str, number: int) -> str:
    try:
        return interpret(line)
    except TaihuError as error:
        return f"refused, {type(error).__name__}: {error}"
    except Exception as error:
        error.add_note(f"in line {number} of the scenario: {line}")
        raise
