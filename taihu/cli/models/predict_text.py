"""`taihu predict` of a model of text: what follows each prompt."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import typer
from numpy.typing import NDArray

from taihu.core.base.errors import DataError
from taihu.worker.saved.continuation import Draw, continued, next_chances
from taihu.worker.saved.prediction import LoadedModel

_USUAL_LENGTH: Final = 100
_STDIN: Final = Path("-")


@dataclass(frozen=True)
class TextOptions:
    """Options that models of text alone have; None where they were not given."""

    length: int | None
    temperature: float | None
    seed: int | None

    @property
    def given(self) -> str | None:
        """The name of one that was given."""
        values = {"--length": self.length, "--temperature": self.temperature, "--seed": self.seed}
        return next((name for name, value in values.items() if value is not None), None)


def predict_text(loaded: LoadedModel, files: Sequence[Path], options: TextOptions, top: int) -> list[dict[str, Any]]:
    """Print what follows the text in each of `files`; returns the rows of the results.

    Raises:
        DataError: a file cannot be read, or is empty.
    """
    length = _USUAL_LENGTH if options.length is None else options.length
    rows = []
    for number, file in enumerate(files):
        prompt = _read(file)
        draw = Draw(options.temperature or 0.0, np.random.default_rng([options.seed or 0, number]))
        text = _readable(bytes(islice(continued(loaded, prompt, draw), length)))
        following = _likeliest(next_chances(loaded, prompt), top)
        if length:
            typer.echo(f"{file}: {text}" if len(files) > 1 else text)
        else:
            typer.echo("  ".join([str(file), *(f"{each['text']!r} {each['probability']:.4f}" for each in following)]))
        rows.append({"sample": str(file), "text": text, "next": following})
    return rows


def _read(file: Path) -> bytes:
    try:
        prompt = sys.stdin.buffer.read() if file == _STDIN else file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); give a text file, or - for stdin") from None
    if not prompt:
        raise DataError(f"{file}: is empty; give it the text that the model is to go on from")
    return prompt


def _likeliest(chances: NDArray[np.float32], top: int) -> list[dict[str, Any]]:
    best = np.argsort(-chances, kind="stable")[:top]
    return [
        {"byte": int(byte), "text": _readable(bytes([int(byte)])), "probability": float(chances[byte])}
        for byte in best
    ]


def _readable(text: bytes) -> str:
    """UTF-8 without what a terminal would obey."""
    decoded = text.decode("utf-8", errors="replace")
    return "".join(each if each.isprintable() or each in "\n\t" else "\N{REPLACEMENT CHARACTER}" for each in decoded)
