"""The table of transports: it follows from what benchmarks/results/transports.json holds."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.exchange.transports import table

DOCS = Path(__file__).parent.parent / "docs"
RESULTS = DOCS.parent / "benchmarks" / "results"


def test_rows_follow_from_all_their_rounds() -> None:
    for row in json.loads((RESULTS / "transports.json").read_text()):
        medians = {name: statistics.median(seconds) for name, seconds in row["seconds"].items()}
        assert {name: round(median, 6) for name, median in medians.items()} == {
            name: quartiles[1] for name, quartiles in row["quartiles"].items()
        }
        assert row["auto_over_better"] == medians["own"] / min(medians["grpc"], medians["tcp"])


def test_a_row_has_medians_and_ratios() -> None:
    row: dict[str, Any] = {
        "rate": "10gbit",
        "model": "resnet50",
        "ways": "2+2",
        "quartiles": {"grpc": [0.35, 0.36, 0.4], "tcp": [0.22, 0.24, 0.25], "own": [0.23, 0.2424, 0.26]},
        "auto_took": ["tcp", "grpc", "tcp"],
        "auto_over_better": 1.01,
    }
    assert table([row]).splitlines()[2] == (
        "| 10gbit | resnet50 | 2+2 | 0.360 | 0.240 | direct and gRPC | 0.242 | 1.010 |"
    )
