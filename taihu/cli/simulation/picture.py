"""The curve of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taihu.errors import ConfigError

__all__ = ["draw"]

_PARTS = ("seconds_per_step", "seconds_compute", "seconds_wait")


def draw(path: Path, key: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw the seconds of a step and its parts, and the speed-up beside its ideal, over `key` of the rows.

    Raises:
        ConfigError: matplotlib is not installed, or knows no such kind of file.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415 - it comes with an extra
    except ImportError:
        raise ConfigError("--picture: needs matplotlib; pip install 'taihu[pictures]'") from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    values = [row[key] for row in rows]
    for part in _PARTS:
        left.plot(values, [row[part] for row in rows], marker="o", label=part.replace("_", " "))
    right.plot(values, [row["speed_up"] for row in rows], marker="o", label="speed-up")
    right.plot(values, [row["nodes"] for row in rows], linestyle=":", label="ideal")
    for axes, label in ((left, "seconds"), (right, "times one worker")):
        axes.set(xlabel=key, ylabel=label, xscale="log", yscale="log")
        axes.legend()
        axes.grid(visible=True, alpha=0.3)
    try:
        figure.savefig(path)
    except ValueError as error:
        raise ConfigError(f"--picture {path}: {str(error).splitlines()[0]}") from None
    finally:
        plt.close(figure)
