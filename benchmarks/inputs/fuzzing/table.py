"""The one table of targets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.inputs.fuzzing import files, ring, services, wire
from benchmarks.inputs.fuzzing.target import Target

__all__ = ["CORPUS", "TARGETS", "corpus_of"]

TARGETS: Final[Mapping[str, Target]] = {
    target.name: target for target in (*wire.TARGETS, *ring.TARGETS, *services.TARGETS, *files.TARGETS)
}
CORPUS: Final = Path(__file__).parents[3] / "tests" / "testdata" / "fuzz"
"""Inputs that were once more than a documented error, a folder for each target."""


def corpus_of(name: str) -> list[bytes]:
    """The kept inputs of a target."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*.bin"))]
