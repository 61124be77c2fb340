"""A package of loggers that is installed into a folder, as pip would do it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["installed"]

_POINTS = """\
[taihu.loggers]
lines = own_loggers_package:Lines
failing = own_loggers_package:Failing
hanging = own_loggers_package:Hanging
number = own_loggers_package:NO_LOGGER
"""


def installed(folder: Path) -> Path:
    """The folder, for PYTHONPATH, with the package in it."""
    source = Path(__file__).with_name("own_loggers_package.py")
    metadata = folder / "own_loggers-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / source.name).write_text(source.read_text())
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-loggers\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(_POINTS)
    return folder
