"""The page of a run: whole in itself, true to its files, and safe whatever names a run has."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.report_runs import PARTS, Page, made_results, made_trace, parse_value, step_rows, write_run

from taihu.report.page import comparison_of, page_of
from taihu.report.reading import read_run
from taihu.report.run import Run, StepTable, check_results

FIGURES = {
    *("Loss", "Accuracy on the test set", "Learning rate"),
    *(
        "Time of a step, over the run",
        "Beside computing, over the run",
        "A step as predicted and as measured",
        "Time by layer",
    ),
    *(
        "Timeline of a step, predicted",
        "Bytes of a step",
        "Bytes of a step by worker",
        "Density",
        "Drift of thresholds",
    ),
    *("Drift by layer", "Selected over asked for, by layer", "Time of a step by worker"),
    *("Memory, planned and measured", "Events", "All settings of the job"),
}
HOSTILE = '</script></title><script>alert(1)</script><img src=x onerror=alert(2)>"\' onload="x" &lt; \0\u202e'


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(page_of(read_run(write_run(tmp_path_factory.mktemp("run"), made_results()))))


def check_whole(page: Page) -> None:
    """The page is balanced, its ids are its own, what it refers to is in it, and nothing is elsewhere."""
    assert page.unbalanced == []
    ids = [each.attributes["id"] for each in page.elements if "id" in each.attributes]
    assert len(ids) == len(set(ids))
    for each in page.elements:
        for name in ("aria-labelledby", "aria-describedby", "data-values"):
            assert set(each.attributes.get(name, "").split()) <= set(ids)
        assert not {"src", "srcset", "style-src", "integrity"} & each.attributes.keys()
        assert each.tag not in {"link", "iframe", "object", "embed", "base", "form", "image"}
        assert not [name for name in each.attributes if name.startswith("on")]
        href = each.attributes.get("href", "#")
        assert href == "#" or href.removeprefix("#") in ids
    assert len(page.root.all("script")) == 1
    assert len(page.root.all("style")) == 1
    for code in ("page.css", "page.js"):
        assert not re.search(
            r"https?:|//\w|url\(|@import|fetch\(|innerHTML", files("taihu.report").joinpath(code).read_text()
        )


def test_the_page_needs_nothing_else(page: Page) -> None:
    check_whole(page)


def test_every_chart_has_a_title_a_description_and_its_values(page: Page) -> None:
    charts = page.root.all("svg")
    assert len(charts) == len(FIGURES) - 2
    for chart in charts:
        assert chart.all("title")[0].whole_text
        assert chart.all("desc")[0].whole_text
    for figure in page.root.all("figure"):
        assert figure.all("tbody")[0].all("tr")


def test_nothing_that_was_measured_is_left_out(page: Page) -> None:
    assert set(page.titles()) == FIGURES
    missing = [each.whole_text for each in page.root.all("dt")]
    assert [each for each in missing if "timeline" in each] == ["the timeline of a real step"]


def test_the_values_of_steps_are_those_of_the_table(page: Page) -> None:
    told = page.rows("Time of a step, over the run")
    asked = step_rows(40)
    assert [int(row["step"]) for row in told] == [row["step"] for row in asked]
    parts = [("compute", "compute_seconds", 0.0), ("wait for compression", "compress_wait_seconds", 0.0)]
    for column, name, less in (*parts, ("wait for others", "wait_seconds", 0.0005)):
        expected = [row[name] - less for row in asked]
        assert [parse_value(row[column]) for row in told] == pytest.approx(expected, rel=6e-3)
    exchange = [parse_value(row["exchange"]) for row in page.rows("Beside computing, over the run")]
    assert exchange == pytest.approx([row["exchange_seconds"] for row in asked], rel=5e-3)
    # What the plan predicts holds for the steps behind it.
    assert [row["step as predicted"] for row in told] == ["-"] * 8 + ["11.4\xa0ms"] * 32
    losses = {row["step"]: row for row in page.rows("Loss")}
    assert [parse_value(losses[str(row["step"])]["worker 0, each step"]) for row in asked] == pytest.approx(
        [row["worker_0_loss"] for row in asked], rel=5e-3
    )
    assert (losses["14"]["test"], losses["28"]["test"], losses["15"]["test"]) == ("1.5", "0.75", "-")


def test_the_values_of_ranks_and_memory_are_those_of_the_results(page: Page) -> None:
    results = made_results()
    for row, rank in zip(page.rows("Time of a step by worker"), results["by_rank"], strict=True):
        assert parse_value(row["compute"]) == pytest.approx(rank["seconds_compute"]["median"], rel=5e-3)
    # Worker 2 computes in 10 ms, worker 1 in 9.
    said = page.figure("Time of a step by worker").all("p")[0].whole_text
    assert "is 1.11 times the one in the middle" in said
    assert "was 20\xa0ms, of worker 2" in said
    worker, server = page.rows("Memory, planned and measured")
    assert (parse_value(worker["measured"]), parse_value(worker["activations"])) == (2.5e6, 7e5)
    assert (server["measured"], parse_value(server["optimizer"])) == ("-", 76.6e3)


def test_bars_are_as_long_as_their_values(page: Page) -> None:
    results = made_results()
    rects = page.figure("Time of a step by worker").all("rect")
    told = [rank[f"seconds_{part}"]["median"] for rank in results["by_rank"] for part in ("compute", "wait")]
    widths = [float(rect.attributes["width"]) for rect in rects]
    assert widths == pytest.approx([value * widths[0] / told[0] for value in told], abs=0.02)
    for first, second in zip(rects[::2], rects[1::2], strict=True):
        assert float(second.attributes["x"]) == pytest.approx(
            float(first.attributes["x"]) + float(first.attributes["width"]), abs=0.02
        )
        assert first.attributes["y"] == second.attributes["y"]
    assert [rect.all("title")[0].whole_text for rect in rects[:1]] == ["worker 0: compute 8\xa0ms"]


def test_lines_go_through_their_values(page: Page) -> None:
    (path,) = [
        each for each in page.figure("Learning rate").all("path") if each.attributes["class"].startswith("line")
    ]
    points = [tuple(map(float, point.split())) for point in path.attributes["d"].removeprefix("M").split("L")]
    rates = [row["learning_rate"] for row in step_rows(40)]
    # Steps go from the left edge to the right one, and a rate that falls evenly is a straight line downwards.
    assert [x for x, _ in points] == pytest.approx([1000 * place / 39 for place in range(40)], abs=0.06)
    (_, first), (_, last) = points[0], points[-1]
    assert first < last
    slope = (last - first) / (rates[-1] - rates[0])
    assert [y for _, y in points] == pytest.approx([first + slope * (rate - rates[0]) for rate in rates], abs=0.2)


def test_ticks_stand_where_their_values_are(page: Page) -> None:
    def ticks(title: str, side: str, kind: str) -> list[tuple[float, float]]:
        (axis,) = [each for each in page.figure(title).all("div") if each.attributes.get("class") == kind]
        return [
            (parse_value(tick.whole_text), float(tick.attributes["style"].removeprefix(f"{side}:").rstrip("%")))
            for tick in axis.all("span")
        ]

    # Of 40 steps the first one stands at the left edge.
    across = ticks("Bytes of a step", "left", "across")
    assert len(across) >= 3
    assert [share for _, share in across] == pytest.approx([100 * (step - 1) / 39 for step, _ in across], abs=0.01)
    for title, side, kind in (
        ("Bytes of a step", "bottom", "up"),
        ("Time of a step by worker", "left", "across"),
    ):
        found = ticks(title, side, kind)
        most, _ = found[-1]
        assert len(found) >= 3
        assert [share for _, share in found] == pytest.approx([100 * value / most for value, _ in found], abs=0.01)


def test_all_bytes_and_events_are_told(page: Page) -> None:
    said = page.figure("Bytes of a step").all("p")[0].whole_text
    sent, received = (sum(row[f"{way}_bytes"] for row in step_rows(40)) for way in ("sent", "received"))
    assert f"In all {round(sent / 1000)}\xa0kB sent and {round(received / 1000)}\xa0kB received." in said
    planned, finished = page.rows("Events")
    assert planned == {"after step": "8", "after": "0\xa0s", "event": "planned", "what": planned["what"]}
    assert planned["what"] == "version 2, predicted 11.4\xa0ms"
    assert (finished["after"], finished["what"]) == ("4\xa0s", "")
    assert "2026-07-28 12:00:05 UTC" in page.figure("Events").all("p")[0].whole_text


def test_tests_are_joined_by_a_line_over_the_steps_between_them(page: Page) -> None:
    lines = [each for each in page.figure("Loss").all("path") if each.attributes["class"].startswith("line")]
    assert [each.attributes["d"].count("L") for each in lines] == [39, 1, 1]


def test_a_step_is_shown_beside_its_prediction(page: Page) -> None:
    predicted, measured = page.rows("A step as predicted and as measured")
    results = made_results()
    compute, compress, wait = (results[f"seconds_{name}"]["median"] for name in (PARTS[0], "compress_wait", "wait"))
    assert parse_value(measured["compute"]) == pytest.approx(compute, rel=5e-3)
    assert parse_value(measured["wait for compression"]) == pytest.approx(min(compress, wait), rel=5e-3)
    profile = results["profile"]
    backward = sum(layer["backward_seconds"] for layer in profile["layers"])
    assert parse_value(predicted["compute"]) == pytest.approx(profile["forward_seconds"] + backward, rel=5e-3)


def test_layers_share_out_the_time_of_their_groups(page: Page) -> None:
    by_layer = page.rows("Time by layer")
    spans = page.rows("Timeline of a step, predicted")
    assert [row["layer"] for row in by_layer] == ["conv1", "conv2", "fc1", "fc2"]
    for way in ("compress", "up", "down"):
        whole = sum(parse_value(span["takes"]) for span in spans if span["track"] == way)
        assert sum(parse_value(row[way]) for row in by_layer) == pytest.approx(whole, rel=0.02)


def test_a_trace_shows_the_step_of_the_median_time(tmp_path: Path) -> None:
    folder = write_run(tmp_path, made_results())
    (folder / "trace.json").write_text(json.dumps(made_trace()))
    page = Page(page_of(read_run(folder)))
    # Of the inner steps 2, 3 and 4, which take 30, 40 and 50 ms, that is the third one.
    spans = page.rows("Timeline of a step")
    own = [row for row in spans if row["of"].startswith("step 3")]
    assert [(row["process"], row["what"], row["starts"], row["takes"]) for row in own] == [
        ("worker 0", "forward", "0\xa0s", "10\xa0ms"),
        ("worker 0", "backward", "10\xa0ms", "30\xa0ms"),
        ("worker 0", "push", "20\xa0ms", "20\xa0ms"),
    ]
    # The update of the step before reaches into it.
    assert [(row["process"], row["of"], row["takes"]) for row in spans if row not in own] == [
        ("server 0", "step 2, group 0", "1\xa0ms")
    ]


def test_without_results_there_is_what_the_tables_say(tmp_path: Path) -> None:
    page = Page(page_of(read_run(write_run(tmp_path))))
    check_whole(page)
    assert {"Loss", "Time of a step, over the run", "Events"} <= set(page.titles())
    assert "There are no results" in page.root.all("header")[0].whole_text


def test_long_runs_are_shown_by_medians(tmp_path: Path) -> None:
    rows = Page(page_of(read_run(write_run(tmp_path, steps=400)))).rows("Bytes of a step")
    assert len(rows) <= 150
    first = [int(step) for step in rows[0]["step"].split(" to ")]
    assert parse_value(rows[0]["sent"]) == pytest.approx(15_000 + sum(first) / 2, rel=5e-3)


def hostile(value: Any) -> Any:
    """All texts but those that a reader asks for by name are hostile."""
    if isinstance(value, dict):
        return {key: hostile(item) for key, item in value.items()}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return HOSTILE if isinstance(value, str) else value


def test_names_of_whatever_kind_stay_texts(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, made_results()))
    # What is no Unicode at all may come in, too; a profile with such a name is none.
    names = {"name": HOSTILE + "\ud800", HOSTILE: HOSTILE}
    evil = Run(
        HOSTILE + "\ud800",
        {
            **hostile({**run.results, HOSTILE: HOSTILE}),
            "compression": "dlgs",
            "downlink": "exact",
            "threshold": "layer",
        },
        run.steps,
        StepTable({**run.tests.columns, f"test_{HOSTILE}": run.tests["step"]}),
        {"model": names, "data": names, HOSTILE: names},
        tuple({**event, HOSTILE: HOSTILE} for event in run.events),
        hostile(made_trace()) | {"traceEvents": hostile(made_trace()["traceEvents"])},
    )
    page = Page(page_of(evil).encode().decode())
    check_whole(page)
    assert "Time by layer" in page.titles()
    assert "alert(1)" in page.rows("Time by layer")[0]["layer"]


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)


@st.composite
def changed_results(draw: st.DrawFn) -> dict[str, Any]:
    """Results in which one value, anywhere, is another."""
    results: Any = copy.deepcopy(made_results())
    place = results
    while True:
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if isinstance(place[key], dict | list) and place[key] and draw(st.integers(0, 3)):
            place = place[key]
        else:
            place[key] = draw(VALUES)
            changed: dict[str, Any] = results
            return changed


@settings(max_examples=12)
@given(changed_results())
def test_a_value_that_nobody_wrote_costs_its_figure_at_most(results: dict[str, Any]) -> None:
    page = Page(page_of(Run("changed", results)))
    assert page.unbalanced == []
    assert page.titles()


def luminance(colour: str) -> float:
    """WCAG 2: the relative luminance of a colour `#rrggbb`."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_texts_and_colours_stand_out_by_day_and_by_night() -> None:
    style = files("taihu.report").joinpath("page.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
    for scheme in (light, dark):
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", scheme))
        for ground in ("page", "card"):
            assert min(contrast(colours[name], colours[ground]) for name in ("ink", "soft", "link")) >= 4.5
            series = ("blue", "orange", "purple", "teal", "gold", "red", "grey")
            assert min(contrast(colours[name], colours[ground]) for name in series) >= 3


def simulated(nodes: int) -> dict[str, Any]:
    return {
        "nodes": nodes,
        "servers": 2,
        "seconds_per_step": 0.2 + nodes / 100,
        "seconds_compute": 0.2,
        "seconds_wait": nodes / 100,
        "efficiency": 0.9,
        "speed_up": 0.9 * nodes,
        "bytes_per_process": {"worker": {"sent": 1000 * nodes, "received": 7}},
        "memory_per_process": {"worker": 5_000_000, "server": 2_000_000},
    }


def test_a_simulated_run_and_a_sweep_are_shown() -> None:
    page = Page(page_of(Run("one", check_results({**simulated(8), "network": "taihulight"}, "one.json"))))
    check_whole(page)
    assert {"The parts of a step", "Bytes of a step by process", "Memory by process, planned"} <= set(page.titles())
    assert "simulated on taihulight" in page.root.all("header")[0].whole_text
    sweep = Page(page_of(Run("many", check_results({"rows": [simulated(8), simulated(2)]}, "many.json"))))
    check_whole(sweep)
    assert [parse_value(row["speed-up over one worker"]) for row in sweep.rows("Speed-up")] == [1.8, 7.2]
    assert [row["nodes"] for row in sweep.rows("Time of a step")] == ["2", "8"]
    assert [parse_value(row["worker: sent"]) for row in sweep.rows("Bytes of a step")] == [2000, 8000]
    assert [parse_value(row["server"]) for row in sweep.rows("Memory, planned")] == [2e6, 2e6]


def test_several_runs_stand_beside_each_other(tmp_path: Path) -> None:
    slow = made_results() | {"seconds_compute": {"min": 1.0, "median": 2.0, "max": 3.0}, "test_accuracy": 0.5}
    one, other = (
        read_run(write_run(tmp_path / name / "run", results, steps))
        for name, results, steps in (("a", made_results(), 40), ("b", slow, 30))
    )
    page = Page(comparison_of([one, replace(other, settings={"train": {"batch": 64}})]))
    check_whole(page)
    losses = page.rows("Loss of worker 0")
    # Runs of one name are told apart; where one of them has ended the other goes on.
    assert [parse_value(row["run"]) for row in losses] == pytest.approx(
        [2.3 / step for step in range(1, 41)], rel=6e-3
    )
    assert [row["run (2)"] == "-" for row in losses] == [step > 30 for step in range(1, 41)]
    assert [row["compute"] for row in page.rows("Time of a step")] == ["8\xa0ms", "2\xa0s"]
    assert {"key": "train.batch", "run": "32", "run (2)": "64"} in page.rows("Settings that differ")
    # Tests after steps 14 and 28; the first step takes 250 ms, each other one 13 ms.
    over_time = [parse_value(row["seconds of steps"]) for row in page.rows("Accuracy over time")]
    assert over_time == pytest.approx([0.25 + 13 * 0.013, 0.25 + 27 * 0.013], rel=6e-3)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_runs_of_hardly_a_step_are_shown(steps: int, tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, steps=steps))
    page = Page(page_of(replace(run, tests=StepTable())))
    check_whole(page)
    assert ("Bytes of a step" in page.titles()) == (steps > 0)
