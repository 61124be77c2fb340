"""AlexNet with spread layers, with stage 3 of ZeRO in bf16, and with both: `python -m benchmarks fc_memory --help`.

Resident memory of real processes beside what is planned, as `exchange.memory` measures it, for images of 67 x 67,
which two cores compute; and what is planned for 227 x 227. With --seeds, every way also trains `small_cnn` on the
digits from so many seeds, for its accuracy. Ways and seeds that the file holds are not measured again; --docs puts
both tables into a page, between their markers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, Final

from benchmarks.base.rows import in_page, load_rows, save_rows
from benchmarks.exchange.memory import measure, options_of, planned
from taihu.core.planner.memory import worker_memory

__all__ = ["SOURCE", "WAYS", "accuracies", "options_for", "table", "told"]

SOURCE: Final = "measured by benchmarks.exchange.fc_memory"
WAYS: Final[Mapping[str, tuple[int, tuple[str, ...]]]] = MappingProxyType(
    {
        "neither": (1, ()),
        "spread layers": (1, ("exchange.fc=shard",)),
        "stage 3, bf16": (3, ("train.precision=bf16",)),
        "both": (3, ("exchange.fc=shard", "train.precision=bf16")),
    }
)
"""By name the stage of ZeRO and the settings."""

_SERVERS, _WORKERS = 2, 3
_WHOLE_IMAGE: Final = (227, 227, 3)


def options_for(way: str, steps: int) -> argparse.Namespace:
    """The options of `exchange.memory` that measure one way."""
    _, settings = WAYS[way]
    model = Path(__file__).parents[1] / "models" / "alexnet.py"
    arguments = ["--model", str(model), "--image", "67x67x3", "--workers", str(_WORKERS), "--batch", "2"]
    arguments += ["--steps", str(steps), "--plan", "auto", *(f"--set={each}" for each in settings)]
    return options_of([*arguments, "--set=optimizer.name=sgd"])


def memory(way: str, steps: int) -> dict[str, Any]:
    """The row of one way: bytes of its largest worker, measured and as planned."""
    zero, options = WAYS[way][0], options_for(way, steps)
    whole = worker_memory(planned(zero, _SERVERS, "build", options, _WHOLE_IMAGE)).total
    return {"way": way, "planned_whole_image": whole, **measure(zero, _SERVERS, options, {})}


def accuracy(way: str, seed: int) -> float:
    """The test accuracy of `small_cnn` on the digits."""
    zero, settings = WAYS[way]
    command = [sys.executable, "-P", "-m", "taihu", "train", "--servers", str(_SERVERS), "--workers", str(_WORKERS)]
    command += ["--zero", str(zero), "--seed", str(seed), *(f"--set={each}" for each in settings)]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command += ["--json", str(result), "--run-dir", "none"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return float(json.loads(result.read_text())["test_accuracy"])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Memory as Markdown; megabytes are 10^6 bytes."""
    lines = [
        "| way | stage | planned, 227 x 227 | planned, 67 x 67 | with the process | measured | step s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        worker = row["worker"]
        sizes = (row["planned_whole_image"], worker["planned"], worker["predicted"], worker["measured"])
        cells = [row["way"], str(row["zero"]), *(f"{size / 1e6:.1f}" for size in sizes)]
        lines.append(f"| {' | '.join(cells)} | {row['seconds_per_step']:.2f} |")
    return "\n".join(lines)


def accuracies(rows: Sequence[dict[str, Any]]) -> str:
    """Accuracies of the rows that have some as Markdown; the difference is that of the means."""
    lines = ["| way | mean accuracy, % | to neither |", "|---|---|---|"]
    means = {row["way"]: 100 * fmean(row["accuracies"]) for row in rows if row.get("accuracies")}
    for row in rows:
        if row["way"] in means:
            mean = means[row["way"]]
            gain = f"{mean - means['neither']:+.2f}" if "neither" in means else "-"
            lines.append(f"| {row['way']} | {mean:.2f} | {gain} |")
    return "\n".join(lines)


def told(rows: Sequence[dict[str, Any]]) -> str:
    """Both tables."""
    return f"{table(rows)}\n\n{accuracies(rows)}"


def main() -> None:
    """Measure the ways that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(name.replace(", ", "+") for name in WAYS), help="comma-separated")
    parser.add_argument("--steps", type=int, default=30, help="of a run whose memory is measured")
    parser.add_argument("--seeds", type=int, default=0, help="runs of every way for its accuracy")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    rows = load_rows(options.json)
    for way in (each.replace("+", ", ") for each in options.ways.split(",")):
        row = next((each for each in rows if each["way"] == way), None)
        if row is None:
            row = memory(way, options.steps)
            rows.append(row)
            save_rows(options.json, rows)
            print(table([row]).splitlines()[-1], flush=True)
        known = row.setdefault("accuracies", [])
        while len(known) < options.seeds:
            known.append(accuracy(way, 1 + len(known)))
            save_rows(options.json, rows)
    print(told(rows))
    if options.docs is not None:
        options.docs.write_text(in_page(options.docs.read_text(), SOURCE, told(rows)))


if __name__ == "__main__":
    main()
