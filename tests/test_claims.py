"""Claims of the papers and tables of what was measured: none is missing, and pages show what files hold."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_lines import parse

from benchmarks.__main__ import runs
from benchmarks.base.rows import in_page
from benchmarks.compression import compression
from benchmarks.exchange import fc_memory, larger_batches, ps_and_ring, three_ways, transports
from benchmarks.learning import accuracy_by_method, fc_batch, threshold_slack
from benchmarks.peers import peers
from benchmarks.planning import claims, figures, paced_processor

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results"
SPANS = re.compile(r"`([^`]+)`")


def numbered_claims() -> list[tuple[str, int]]:
    """Section and number of every claim that docs/methods.md lists."""
    found = []
    for part in re.split(r"^##+ ", (DOCS / "methods.md").read_text(), flags=re.MULTILINE)[1:]:
        section = part.split()[0].rstrip(".")
        for numbers in re.findall(r"Claims\b[^\n]*\n(?:\n\(.*\)\n)?\n((?:\d\. .*\n(?:   .*\n)*)+)", part):
            found += [(section, int(number)) for number in re.findall(r"^(\d)\. ", numbers, re.MULTILINE)]
    return found


def test_every_claim_has_a_row() -> None:
    listed = numbered_claims()
    assert [section for section, number in listed if number == 1] == ["1.4", "2", "3", "4", "5", "6"]
    assert [(claim.section, claim.number) for claim in claims.CLAIMS] == listed


def test_rows_have_six_columns() -> None:
    assert {line.count("|") for line in claims.table(claims.Measured(RESULTS)).splitlines()} == {7}


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: f"{claim.section}-{claim.number}")
def test_what_shows_a_claim_exists(claim: claims.Claim) -> None:
    spans = SPANS.findall(claim.shown)
    assert spans
    for span in spans:
        words = shlex.split(span)
        if words[:2] == ["python", "-m"]:
            assert words[2] == "benchmarks"
            check_benchmark(words[3], words[4:])
        elif words[0] == "taihu":
            parse([word for word in words[1:] if word != "--help"])
        else:
            assert (ROOT / words[0]).is_file(), span


def check_benchmark(name: str, arguments: list[str]) -> None:
    source = runs()[name].read_text()
    missing = [word for word in arguments if word.startswith("--") and word != "--help" and f'"{word}"' not in source]
    assert not missing, f"{name} has no {missing}"
    written = [word for word in arguments if word.startswith(("docs/", "benchmarks/"))]
    assert not [name for name in written if not (ROOT / name).exists()], written


PAGES: list[tuple[str, str, str, Callable[[Any], str]]] = [
    ("exchange.md", "measured by benchmarks.exchange.transports", "transports", transports.table),
    ("allreduce.md", "measured by benchmarks.exchange.ps_and_ring", "ps_and_ring", ps_and_ring.table),
    (
        "compression.md",
        "measured by benchmarks.learning.accuracy_by_method",
        "accuracy_by_method",
        accuracy_by_method.told,
    ),
    (
        "compression.md",
        "measured by benchmarks.learning.threshold_slack",
        "threshold_slack",
        threshold_slack.table,
    ),
    ("explanation/comparison.md", "measured by benchmarks.peers.peers", "peers", peers.table),
    (
        "compression.md",
        "measured by benchmarks.compression.compression",
        "methods_in_cells",
        compression.side_by_side,
    ),
    ("allreduce.md", "measured by benchmarks.exchange.three_ways", "three_ways", three_ways.table),
    ("fc.md", fc_memory.SOURCE, "fc_memory", fc_memory.told),
    ("fc.md", fc_batch.SOURCE, "fc_batch", fc_batch.table),
    ("zero.md", larger_batches.SOURCE, "larger_batches", larger_batches.table),
    ("simulation.md", figures.SOURCE, "figures", figures.table),
    (
        "simulation.md",
        "measured by benchmarks.planning.paced_processor",
        "paced_processor",
        paced_processor.table,
    ),
]


@pytest.mark.parametrize(("page", "mark", "name", "table"), PAGES, ids=[name for _, _, name, _ in PAGES])
def test_a_page_shows_what_was_measured(page: str, mark: str, name: str, table: Callable[[Any], str]) -> None:
    text = (DOCS / page).read_text()
    assert in_page(text, mark, table(json.loads((RESULTS / f"{name}.json").read_text()))) == text


def test_the_table_of_claims_follows_from_what_was_measured() -> None:
    text = (DOCS / "methods.md").read_text()
    assert in_page(text, "made by benchmarks.planning.claims", claims.table(claims.Measured(RESULTS))) == text


def test_what_is_far_from_a_figure_is_explained_and_all_are_drawn() -> None:
    results = json.loads((RESULTS / "figures.json").read_text())["figures"]
    assert sorted(path.stem for path in (DOCS / "figures").glob("*.svg")) == sorted(results)
    for name, figure in results.items():
        far = [row["case"] for row in figure["rows"] if abs(row["deviation"] or 0.0) > 0.2 and not row["term"]]
        assert not far, name
        assert figure["constants"]
    claimed = [figures.simulated({"figures": results}, claim.section, claim.number) for claim in claims.CLAIMS]
    assert {each[0] for each in claimed if each is not None} == set(results)


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"^error: the page has no lines <!-- a mark --> and <!-- end -->$"):
        in_page("text", "a mark", "table")


TABLE = (
    "Told.\n\n| way | links | ms |\n|---|---|---:|\n| a, b | fast | 1 |\n| a, b | slow |  |\n| c | fast | 3 |\n\nAll."
)


@pytest.mark.parametrize(
    ("choice", "shown"),
    [
        ("", TABLE),
        (
            "columns: way; ms",
            TABLE.replace(" fast |", "").replace(" slow |", "").replace(" links |", "").replace("|---|---|", "|---|"),
        ),
        (
            "rows: way = a, b; links = fast",
            "Told.\n\n| way | links | ms |\n|---|---|---:|\n| a, b | fast | 1 |\n\nAll.",
        ),
        ("columns: ms\nrows: links = fast or slow; way = c", "Told.\n\n| ms |\n|---:|\n| 3 |\n\nAll."),
    ],
)
def test_a_page_shows_the_part_of_a_table_that_its_mark_chooses(choice: str, shown: str) -> None:
    begin = f"<!-- a mark\n{choice}\n-->" if choice else "<!-- a mark -->"
    page = f"Before\n{begin}\n{shown}\n<!-- end -->\nBehind\n"
    assert in_page(page, "a mark", TABLE) == page
    assert in_page(page.replace(shown, "old\n"), "a mark", TABLE) == page


def test_a_column_that_a_table_lacks_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"^error: the table has no column host, node$"):
        in_page("<!-- a mark\ncolumns: way; host\nrows: node = 1\n-->\n<!-- end -->", "a mark", TABLE)


def test_ways_that_promise_the_same_bits_have_them() -> None:
    rows = json.loads((RESULTS / "three_ways.json").read_text())
    assert three_ways.differing(rows) == []
    other = [{**row, "parameters_sha256": row["parameters_sha256"][::-1]} for row in rows if row["way"] == "1 server"]
    rest = [row for row in rows if row["way"] != "1 server"]
    assert len(three_ways.differing([*rest, *other])) == len(other)


def halving_and_doubling(nodes: int, supernode: int, slower: float) -> float:
    """Seconds of every message of recursive halving and doubling, for a byte a second and a buffer of one byte."""
    seconds, distance, size = 0.0, nodes // 2, 0.5
    while distance:
        seconds += size * (slower if distance >= supernode else 1.0)
        distance, size = distance // 2, size / 2
    return 2 * seconds


def test_the_papers_allreduce_is_that_of_all_its_messages() -> None:
    ring = 2 * 511 / 512
    assert ps_and_ring.allreduce_ratio(None) == pytest.approx(halving_and_doubling(512, 256, 4.0) / ring)
    # 243.9 MB are added in as many seconds as the ring takes 1022 chunks of a 512th to pass at 4.46 GB/s, and more.
    added = 511 / 512 * 243.9e6 / 1e9
    longer = added / (ring * 243.9e6 / 4.46e9)
    assert ps_and_ring.allreduce_ratio(1e9) - ps_and_ring.allreduce_ratio(None) == pytest.approx(longer)


@pytest.mark.parametrize(
    ("model", "workers", "printed", "within"),
    [("alexnet", 256, 10, 0.2), ("googlenet", 32, 77, 0.35), ("resnet50", 32, 98, 0.27)],
)
def test_the_model_of_servers_and_ring_comes_near_the_papers_ratios(
    model: str, workers: int, printed: float, within: float
) -> None:
    """Its constants are of another figure."""
    assert ps_and_ring.paper_ratio(model, workers) == pytest.approx(printed, rel=within)
    assert ps_and_ring.paper_ratio(model, workers, start_ups=False) == pytest.approx(2)


def test_the_model_of_columns_meets_all_cells_of_the_paper() -> None:
    sizes, batches = (2, 4, 8), (1, 2, 4, 8, 16, 32, 64, 128)
    faster = {
        layer: {(p, m) for p in sizes for m in batches if ps_and_ring.columns_ratio(*layer, p, m) > 1}
        for layer in ((25088, 4096), (4096, 4096), (4096, 1000))
    }
    everywhere = {(p, m) for p in sizes for m in batches}
    assert faster[25088, 4096] == everywhere
    assert faster[4096, 4096] == everywhere - {(8, 128)}
    assert faster[4096, 1000] == {(2, m) for m in batches if m <= 64} | {(4, 1)}
