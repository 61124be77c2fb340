"""Draws the dashboard's panels from what a Prometheus holds, with the dashboard's own queries.

python deploy/grafana/draw.py http://localhost:9090 panels.png --minutes 5
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

mpl.use("Agg")

_FILE = Path(__file__).parent / "taihu.json"
_COLUMNS = 3
_STEP_S = 5
_UNITS = {"s": (1e3, "ms"), "Bps": (1e-6, "MB/s"), "percentunit": (100.0, "%"), "short": (1.0, "")}


def main() -> int:
    """Returns 1 when a query brought nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prometheus")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--interval", default="20s", help="in the place of $__rate_interval")
    given = parser.parse_args()
    panels = json.loads(_FILE.read_text())["panels"]
    rows = math.ceil(len(panels) / _COLUMNS)
    figure, axes = plt.subplots(rows, _COLUMNS, figsize=(5 * _COLUMNS, 3 * rows), constrained_layout=True)
    empty = [
        f"{panel['title']}: {target['expr']}"
        for panel, axis in zip(panels, axes.flat, strict=False)
        for target in _draw(panel, axis, given.prometheus, given.minutes, given.interval)
    ]
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    figure.savefig(given.picture, dpi=80)
    print(f"{sum(len(panel['targets']) for panel in panels)} queries, {len(empty)} without data", *empty, sep="\n  ")
    return int(bool(empty))


def _draw(panel: dict[str, Any], axis: Any, prometheus: str, minutes: float, interval: str) -> list[dict[str, Any]]:
    """Draw one panel; returns the targets that brought nothing."""
    defaults = panel["fieldConfig"]["defaults"]
    stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    over = {each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]}
    factor, unit = _UNITS[defaults["unit"]]
    base: dict[float, float] = {}
    empty = []
    for target in panel["targets"]:
        series = _range(prometheus, target["expr"], minutes, interval)
        empty += [] if series else [target]
        for one in series:
            points = {float(t): float(v) * factor for t, v in one["values"] if math.isfinite(float(v))}
            label = _name(target["legendFormat"], one["metric"])
            times = [(t - time.time()) / 60 for t in points]
            if stacked and target["legendFormat"] not in over:
                low = [base.get(t, 0.0) for t in points]
                high = [base.get(t, 0.0) + v for t, v in points.items()]
                axis.fill_between(times, low, high, alpha=0.6, label=label)
                base |= dict(zip(points, high, strict=True))
            else:
                axis.plot(times, list(points.values()), "--" if stacked else "-", label=label, linewidth=1.2)
    axis.set_title(panel["title"], fontsize=10)
    axis.set_ylabel(unit)
    axis.set_xlabel("minutes")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=6, loc="best")
    return empty


def _name(legend: str, labels: dict[str, str]) -> str:
    """A legend with labels in the place of `{{label}}`."""
    for label, value in labels.items():
        legend = legend.replace(f"{{{{{label}}}}}", value)
    return legend


def _range(prometheus: str, expression: str, minutes: float, interval: str) -> list[dict[str, Any]]:
    expression = expression.replace("$__rate_interval", interval).replace("$job", ".*")
    now = _STEP_S * (time.time() // _STEP_S)  # all series of a stack at the same times
    asked = urllib.parse.urlencode({"query": expression, "start": now - 60 * minutes, "end": now, "step": _STEP_S})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query_range?{asked}", timeout=30) as answer:  # noqa: S310
        rows: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return rows


if __name__ == "__main__":
    sys.exit(main())
