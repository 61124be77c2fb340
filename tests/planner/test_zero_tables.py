"""Tables 1 and 2 of the ZeRO paper, as they are printed, and against the formulas; and what its sentences say."""

from __future__ import annotations

from fractions import Fraction

import pytest

from taihu.core.planner.zero_tables import activations, memory_per_device, model_sizes, trained_alone

TABLE_1 = """
1     120   120   120    2048  2048  2048  16000  16000  16000
4     52.5  41.3  30     896   704   512   7000   5500   4000
16    35.6  21.6  7.5    608   368   128   4750   2875   1000
64    31.4  16.6  1.88   536   284   32    4187   2218   250
256   30.4  15.4  0.47   518   263   8     4046   2054   62.5
1024  30.1  15.1  0.12   513   257   2     4011   2013   15.6
"""
TABLE_2 = """
1   64    2B   7.6B    14.4B   128B
2   128   4B   15.2B   28.8B   256B
4   256   8B   30.4B   57.6B   0.5T
8   512   16B  60.8B   115.2B  1T
16  1024  32B  121.6B  230.4B  2T
"""
UNITS = {"B": 10**9, "T": 10**12}


def rows_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


def bytes_per_parameter(stage: int, devices: int) -> Fraction:
    """docs/methods.md section 5, with K = 12."""
    return [
        Fraction(16),
        4 + Fraction(12, devices),
        2 + Fraction(14, devices),
        Fraction(16, devices),
    ][stage]


def test_table_1_is_the_printed_one() -> None:
    title, *rows = memory_per_device()
    assert len(title) == len(rows[0])
    assert rows == rows_of(TABLE_1)


def test_table_2_is_the_printed_one() -> None:
    title, *rows = model_sizes()
    assert title == ["MP", "GPUs", "Baseline", "Pos", "Pos+g", "Pos+g+p"]
    assert rows == rows_of(TABLE_2)


@pytest.mark.parametrize("row", rows_of(TABLE_1))
def test_table_1_follows_from_the_formulas(row: list[str]) -> None:
    """Each cell to a unit of its last digit: it is rounded in one column, and cut off in the others."""
    for place, (printed, parameters) in enumerate(zip(row[1:], [7.5] * 3 + [128] * 3 + [1000] * 3, strict=True)):
        exact = bytes_per_parameter(place % 3 + 1, int(row[0])) * Fraction(parameters)
        unit = Fraction(1, 10 ** len(printed.partition(".")[2]))
        assert abs(exact - Fraction(printed)) < unit, (row[0], printed)


@pytest.mark.parametrize("row", rows_of(TABLE_2))
def test_table_2_follows_from_the_formulas(row: list[str]) -> None:
    """32 GB hold a part of as many times the parameters as there are parts; the first row is cut to a digit."""
    degree = int(row[0])
    assert int(row[1]) == 64 * degree
    for stage, printed in enumerate(row[2:]):
        exact = degree * 32 * 10**9 / bytes_per_parameter(stage, 64)
        shown = Fraction(printed[:-1]) * UNITS[printed[-1]]
        assert 0 <= exact - shown < max(degree * 10**8, 10**11 * (printed[-1] == "T"))


def test_activations_are_twelve_times_the_inputs_of_all_layers() -> None:
    """Of 1.5 billion parameters the paper's 60 GB; on 16 devices twice what it prints, with and without Pa."""
    title, *rows = activations()
    for row in rows:
        told = dict(zip(title[:4], row[:4], strict=True))
        inputs = int(told["layers"]) * int(told["width"]) * 32 * 1024 * 2
        every, kept, divided = row[4], row[6], row[8]
        assert kept == f"{inputs / 1e9:.1f}"
        assert every == (f"{12 * inputs / 1e9:.1f}" if told["MP"] == "1" else "-")
        assert divided == (f"{inputs / int(told['MP']) / 1e9:.1f}" if told["MP"] != "1" else "-")
    printed = {(row[0], row[3]): (row[5], row[7], row[9]) for row in rows}
    assert printed == {
        ("1.5B", "1"): ("60", "8", "-"),
        ("100B", "1"): ("-", "60", "-"),
        ("100B", "16"): ("-", "33", "2"),
    }
    # A hundred billion parameters, of which a layer has 12 times its width squared.
    assert {round(12 * int(row[1]) * int(row[2]) ** 2 / 1e9, 1) for row in rows} == {1.5, 100.7}


def test_models_that_were_trained_alone_fit_by_their_states() -> None:
    title, *rows = trained_alone()
    assert title[2:] == ["trained", "GB of states", "GB left", "states alone allow"]
    for (_, devices, trained, states, left, most), stage in zip(rows, (0, 2), strict=True):
        each = bytes_per_parameter(stage, int(devices))
        assert states == f"{float(each * Fraction(trained[:-1])):.1f}"
        assert float(states) + float(left) == pytest.approx(32.0)
        assert 0 <= 32 / each - Fraction(most[:-1]) < Fraction(1, 10)
