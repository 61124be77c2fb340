"""The transformer example dense and with compressed gradients: `python -m benchmarks torch_curves`.

Three workers of `taihu run` on this machine train `examples/torch/transformer_text.py` in each way. Worker 0 prints
its losses, means of 50 steps, which are drawn. Rows that the file of --json holds are not trained again.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import matplotlib as mpl

from benchmarks.base.network import last_line
from benchmarks.base.rows import load_rows, publish, save_picture, save_rows

mpl.use("Agg")
from matplotlib import pyplot as plt

__all__ = ["draw", "table", "trained"]

_PAGE: Final = "measured by benchmarks.pytorch.torch_curves"
_ROOT: Final = Path(__file__).parents[2]
_LINE: Final = re.compile(r"step (\d+): loss ([\d.]+), ([\d.]+) s")
_DLGS: Final = ("--compression", "dlgs", "--density", "0.01")
_CLIPPED: Final = ("--set", "compression.clip=whole", "--set", "compression.clip_norm=1")
_FOUR_BITS: Final = (
    *("--servers", "1"),
    *("--set", "compression.value_type=int4", "--set", "compression.downlink_value_type=int4"),
)
_LOCAL: Final = ("--set", "exchange.local_steps=4")
_FASTER: Final = ("--lr", "2e-3")
_NEWEST: Final = ("--beta1", "0", *_FASTER)
_WAYS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = MappingProxyType(
    {
        "dense": ((), ()),
        "dense, twice the rate": ((), _FASTER),
        "dlgs 0.01, beta1 0.9": (_DLGS, ()),
        "dlgs 0.01, beta1 0, twice the rate": (_DLGS, _NEWEST),
        "the same, clipped": ((*_DLGS, *_CLIPPED), _NEWEST),
        "the same, 4 bits both ways": ((*_DLGS, *_CLIPPED, *_FOUR_BITS), _NEWEST),
        "powersgd, rank 4": (("--compression", "powersgd"), ()),
        "4 local steps, twice the rate": (_LOCAL, _FASTER),
        "4 local steps, dlgs 0.05, 4 bits both ways, twice the rate": (
            (*_DLGS, "--density", "0.05", *_FOUR_BITS, *_LOCAL),
            _FASTER,
        ),
    }
)
"""By way: what `taihu run` is given, and what the script is."""
_SIZES: Final = ("--batch", "12", "--context", "64", "--width", "96")


def trained(way: str, steps: int, workers: int = 3) -> dict[str, Any]:
    """A row: steps, losses and seconds of worker 0.

    Raises:
        SystemExit: the run failed; with its last words.
    """
    of_run, of_script = _WAYS[way]
    example = str(_ROOT / "examples" / "torch" / "transformer_text.py")
    script = [example, "--steps", str(steps), *_SIZES, *of_script]
    flags = ["--workers", str(workers), "--run-dir", "none", "--quiet", *of_run]
    command = [sys.executable, "-m", "taihu", "run", *flags, *script]
    told = []
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        for line in process.stdout or ():
            if found := _LINE.search(line):
                print(f"{way}: {line.rstrip()}", flush=True)
                told.append((int(found[1]), float(found[2]), float(found[3])))
        if process.wait():
            raise SystemExit(f"error: {way}: {last_line(errors)}")
    at, losses, seconds = (list(each) for each in zip(*told, strict=True))
    return {"way": way, "steps": at, "losses": losses, "seconds": seconds, "load": os.getloadavg()[0]}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The final losses as Markdown, and their gaps to the dense run's."""
    dense = next(row for row in rows if row["way"] == "dense")["losses"][-1]
    lines = ["| exchange | steps | loss of the last 50 | above dense |", "|---|---|---|---|"]
    for row in rows:
        final = row["losses"][-1]
        lines.append(
            f"| {row['way']} | {row['steps'][-1]} | {final:.3f} | {final - dense:+.3f} ({final / dense - 1:+.1%}) |"
        )
    return "\n".join(lines)


def draw(rows: Sequence[dict[str, Any]], picture: Path) -> None:
    """Loss over steps by way."""
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for row in rows:
        axes.plot(row["steps"], row["losses"], marker=".", label=row["way"])
    axes.set(
        xlabel="step", ylabel="training loss, mean of 50 steps", title="Transformer on Python's sources, 3 workers"
    )
    axes.grid(alpha=0.3)
    axes.legend()
    save_picture(figure, picture)


def main() -> None:
    """Train what is missing, draw, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--json", type=Path, help="write the rows, and train those that it lacks")
    parser.add_argument("--picture", type=Path, help="for example docs/torch_curves.png; the SVG comes beside it")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    rows = load_rows(options.json)
    known = {row["way"] for row in rows}
    for way in _WAYS:
        if way not in known:
            rows.append(trained(way, options.steps))
            save_rows(options.json, rows)
    if options.picture is not None:
        draw(rows, options.picture)
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
