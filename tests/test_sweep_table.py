"""The sweep over points and faults: what does not hold in a cell is found, and the table counts it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.recovery.sweep import Cell, cells, judged, table

CELL = Cell("ring", "kill", "worker 1", "push")
WELL: dict[str, Any] = {
    "code": 0,
    "words": "",
    "fault_s": 1.0,
    "seconds": 2.0,
    "went_on": True,
    "sha256": "a",
    "same": True,
    "left": {"processes": [], "files": [], "shared memory": []},
}
ENDED = {**WELL, "code": 1, "words": "error: worker 1 was killed by SIGKILL", "went_on": False, "same": False}


@pytest.mark.parametrize("row", [WELL, ENDED, {**WELL, "fault_s": None}])
def test_a_cell_holds_where_all_went_on_or_ended_and_named_the_member(row: dict[str, Any]) -> None:
    assert judged(CELL, row) == []


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({**WELL, "same": False}, "other parameters than the undisturbed run's"),
        ({**WELL, "seconds": 20.1}, "20.1 s until all had gone on or ended, not 20 s"),
        ({**WELL, "left": {"files": ["tmp/taihu-1"]}}, "files left: tmp/taihu-1"),
        ({**ENDED, "words": "error: worker 0 was lost"}, "the error names not worker 1: error: worker 0 was lost"),
        ({**WELL, "code": 130, "words": "worker 1"}, "the run was stopped"),
        ({**WELL, "code": None, "words": "it still ran after 200 s"}, "it still ran after 200 s"),
        ({**WELL, "fault_s": None, "code": 1}, "exit code 1 without the fault: "),
    ],
)
def test_what_does_not_hold_is_found(row: dict[str, Any], found: str) -> None:
    assert judged(CELL, row) == [found]


def test_every_member_has_every_fault_at_every_point_that_it_passes() -> None:
    all_cells = list(cells())
    assert len(all_cells) == len(set(all_cells))
    assert CELL in all_cells
    assert not any(cell.member.startswith("server") and cell.point in ("evaluation", "save") for cell in all_cells)


def test_the_table_counts_cells_and_names_those_that_failed() -> None:
    row = {"run": "ring", "fault": "kill", "member": "worker 1", "point": "push", **WELL, "problems": []}
    failed = {**row, "member": "worker 0", "seconds": 9.0, "problems": ["files left: a"]}
    not_passed = {**row, "point": "sum", "fault_s": None}
    lines = table([row, failed, not_passed]).splitlines()
    assert lines[2:4] == ["| SIGKILL | 2: 9.0 s, ring at push; **1 failed** | - |", ""]
    assert "1 of 2 cells hold." in lines
    assert lines[-1] == "- ring: kill worker 0 at push: files left: a"
