"""The table of searches beside real runs is that of its rows, and holds what it is to show."""

from __future__ import annotations

from pathlib import Path

from benchmarks.base.rows import in_page, load_rows
from benchmarks.planning.search import PAIRS, SOURCE, table
from taihu.search.ways import PRECISIONS, Way

ROOT = Path(__file__).parent.parent
ROWS = load_rows(ROOT / "benchmarks" / "results" / "search.json")


def test_the_page_shows_the_rows() -> None:
    page = (ROOT / "docs" / "simulation.md").read_text()
    assert in_page(page, SOURCE, table(ROWS)) == page


def test_nine_of_ten_choices_are_the_fastest_or_within_five_percent() -> None:
    measured = {
        row["pair"]: [run["seconds_per_step"]["median"] for run in row["runs"]] for row in ROWS if "runs" in row
    }
    assert list(measured) == [f"{pair.rate}, {pair.name}" for pair in PAIRS]
    assert sum(seconds[0] <= 1.05 * min(seconds) for seconds in measured.values()) >= 9
    assert {len(seconds) for seconds in measured.values()} == {3}


def test_no_run_went_beyond_what_its_pair_allows() -> None:
    allowed = {f"{pair.rate}, {pair.name}": pair for pair in PAIRS}
    for row in ROWS:
        for run in row.get("runs", ()):
            way, pair = Way(**run["way"]), allowed[row["pair"]]
            assert way.density >= (1.0 if pair.min_density is None else pair.min_density)
            assert way.precision in (pair.precisions or PRECISIONS[0]).split(",")
