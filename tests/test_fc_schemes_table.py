"""The table of schemes: its figures follow from its rows, and a setting that was measured is known again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.base.rows import in_page
from benchmarks.exchange.fc_schemes import SOURCE, Setting, growth, table

MODELLED = Setting("100mbit", 4, 0.6, 9216, 2048, 16)


DOCS = Path(__file__).parent.parent / "docs"
RESULTS = DOCS.parent / "benchmarks" / "results"


def test_the_page_shows_what_was_measured() -> None:
    page, rows = (DOCS / "fc.md").read_text(), json.loads((RESULTS / "fc_schemes.json").read_text())
    assert in_page(page, SOURCE, table(rows)) == page


def row(setting: Setting, scheme: str, seconds: float, **more: Any) -> dict[str, Any]:
    """A row as `taihu dev bench fc` makes it, with the setting."""
    return {
        **vars(setting),
        "scheme": scheme,
        "seconds": {"min": seconds - 0.1, "median": seconds, "max": seconds + 0.2},
        "hidden_ratio": 0.5,
        "hidden_in_ratio": 0.74,
        "hidden_back_ratio": 0.9,
        **more,
    }


def modelled(setting: Setting, scheme: str, seconds: float, transfers: float) -> dict[str, Any]:
    spread = {"min": transfers, "median": transfers, "max": transfers}
    return row(setting, scheme, seconds, products_seconds=2.0, transfers_seconds=spread, saved_ratio=0.5)


def test_a_line_compares_schemes_with_gather_and_with_the_claim() -> None:
    seconds = {"gather": (2.5, 0.5), "turns": (3.0, 0.8), "slices": (2.25, 0.6)}
    (line,) = table([modelled(MODELLED, name, *each) for name, each in seconds.items()]).splitlines()[2:]
    assert line == "| 100mbit | 4 | 0.6 | 2500, 0.25 | 1.200, 0.40, 0.740 | 0.900, 0.30, 0.740 | 0.750 |"


def test_computed_products_have_no_modelled_columns() -> None:
    setting = Setting("1gbit", 2, None, 9216, 1024, 16)
    rows = [row(setting, scheme, 2.0) for scheme in ("gather", "turns", "slices")]
    assert table(rows).splitlines()[2] == (
        "| 1gbit | 2 | computed | 2000, - | 1.000, -, 0.740 | 1.000, -, 0.740 | 0.500 |"
    )
    assert growth([row(setting, "gather", 2.0)]) == ""


def test_growth_is_told_by_scheme_and_speed() -> None:
    eight = Setting("100mbit", 8, 0.6, 9216, 4096, 16)
    rows = [modelled(MODELLED, "slices", 2.3, 0.6), modelled(eight, "slices", 2.3, 0.7)]
    assert growth(rows) == ("slices at 0.6 GFLOP/s, 100mbit: transfers / products 0.30, 0.35 with 4, 8 workers")


def test_a_setting_knows_its_rows() -> None:
    assert MODELLED.is_of(modelled(MODELLED, "turns", 1.0, 1.0))
    others = [Setting("1gbit", 4, 0.6, 9216, 2048, 16), Setting("100mbit", 4, None, 9216, 2048, 16)]
    assert not any(other.is_of(modelled(MODELLED, "turns", 1.0, 1.0)) for other in others)
