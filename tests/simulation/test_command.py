"""`taihu simulate`: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taihu.core.planner.profile import LayerCost, LinearCost, LinkCost, Profile
from taihu.core.process.results import RESULTS_FORMAT
from taihu.simulation.machine_file import EXAMPLE

PROFILE = Profile(
    layers=tuple(LayerCost(f"l{i}", n, 0.01) for i, n in enumerate((400_000, 100, 900_000, 5_000))),
    forward_seconds=0.03,
    scan=LinearCost(1e-5, 1e-9),
    top_k=LinearCost(3e-5, 5e-9),
    link=LinkCost(1e-3, 2e-8, 4e-8),
    workers=3,
    servers=1,
)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"profile": PROFILE.to_json(), "compression": "none"}))
    return path


@pytest.fixture
def results(run_simulate: Run, tmp_path: Path, profile: Path) -> Callable[..., dict[str, Any]]:
    def command(*arguments: object) -> dict[str, Any]:
        code, _, errors = run_simulate("--profile", profile, *arguments, "--json", tmp_path / "out.json")
        assert code == 0, errors
        written: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
        return written

    return command


def test_the_help_names_all_that_a_file_of_a_network_may_hold(run_simulate: Run) -> None:
    code, out, _ = run_simulate("--help")
    assert code == 0
    said = out.split("A file of a network")[1].split("Examples:")[0].split()
    keys = [line.removeprefix("# ").split(" ")[0] for line in EXAMPLE.splitlines() if line]
    assert [word for word in said if word in keys] == keys


def test_a_step_is_told_and_written(run_simulate: Run, profile: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    code, out, _ = run_simulate("--profile", profile, "--network", "ethernet:1gbit", "--nodes", 8, "--json", file)
    assert code == 0
    written = json.loads(file.read_text())
    assert written["format"] == RESULTS_FORMAT
    assert written["nodes"] == 8
    assert written["network"] == "ethernet:1gbit"
    assert written["compute"] == "profile"
    assert f"{written['seconds_per_step']:.4g}" in out
    assert f"{written['efficiency']:.1%}" in out
    assert written["seconds_compute"] == pytest.approx(0.07)
    assert written["seconds_per_step"] == pytest.approx(0.07 + written["seconds_wait"])
    assert written["bytes_per_process"]["worker"]["sent"] > 4 * 1_305_100
    assert written["memory_per_process"]["server"] > 0


def test_activations_that_are_computed_again_take_time_and_spare_memory(run_simulate: Run, tmp_path: Path) -> None:
    """By modelled times, and as the planner rehearses them."""
    rows = []
    for way in ("none", "memory"):
        file, again = tmp_path / f"{way}.json", f"train.recompute={way}"
        code, out, errors = run_simulate(
            "--network", "taihulight", "--nodes", 1, "--set", "exchange.kind=ring", "--set", again, "--json", file
        )
        assert code == 0, errors
        rows.append(json.loads(file.read_text()))
        assert f"recompute {way}" in out
        assert "of activations, without the examples" in out
    once, again_s = (row["seconds_compute"] for row in rows)
    assert once < again_s < 2 * once
    of_worker = [row["memory_by_kind"]["worker"] for row in rows]
    assert 0 < of_worker[1]["activations"] < of_worker[0]["activations"]
    assert [row["memory_per_process"]["worker"] for row in rows] == [sum(kinds.values()) for kinds in of_worker]


def test_the_first_steps_of_a_run_change_their_plan(run_simulate: Run, profile: Path, tmp_path: Path) -> None:
    code, out, errors = run_simulate(
        *("--profile", profile, "--network", "ethernet:1gbit", "--nodes", 3, "--from-start", 13),
        *("--set", "exchange.calibration_steps=5", "--trace", tmp_path / "t.json", "--json", tmp_path / "out.json"),
    )
    assert code == 0, errors
    written = json.loads((tmp_path / "out.json").read_text())
    first, *others = written["plans"]
    assert (first["version"], first["from_step"], first["groups"], first["predicted_seconds"]) == (1, 1, 4, None)
    assert [plan["from_step"] for plan in others][:1] == [6]
    assert len(written["seconds_of_steps"]) == 13
    assert all(f"plan {plan['version']} from step {plan['from_step']}: " in out for plan in written["plans"])
    names = {event["name"] for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"]}
    assert {f"plan {plan['version']}" for plan in others} <= names


def test_a_member_is_lost_and_comes_back(run_simulate: Run, profile: Path, tmp_path: Path) -> None:
    code, out, errors = run_simulate(
        *("--profile", profile, "--network", "ethernet:1gbit", "--nodes", 3, "--lose", "worker:1@0.5+30"),
        *("--trace", tmp_path / "t.json", "--json", tmp_path / "out.json"),
    )
    assert code == 0, errors
    written = json.loads((tmp_path / "out.json").read_text())["lost"]
    assert (written["member"], written["resumed_seconds"], written["attempt"]) == ("worker 1", 30.5, 1)
    assert 30.0 <= written["seconds_lost"] < 30.5
    assert f"step {written['replayed_step']} is replayed from 30.5 s on, as attempt 1: " in out
    names = {event["name"] for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"]}
    assert "without worker 1" in names


def test_a_profile_of_another_model_says_nothing_of_activations(run_simulate: Run, profile: Path) -> None:
    out = run_simulate("--profile", profile, "--network", "taihulight")[1]
    assert "without activations: the profile is of another model" in out
    code, _, errors = run_simulate("--profile", profile, "--network", "taihulight", "--set", "train.recompute=spill")
    assert (code, errors.count("\n")) == (2, 1), errors
    assert "train.recompute = 'spill': the profile has 4 layers with 1,305,100 parameters, the job's" in errors


def test_the_network_of_the_profile_is_the_default(results: Callable[..., dict[str, Any]]) -> None:
    """One server, as measured: 3 workers at its port, whose rate follows."""
    measured = results("--nodes", 3, "--servers", 1)
    assert measured["network"] == "measured"
    wider = results("--nodes", 30, "--servers", 1)
    assert wider["seconds_per_step"] > 5 * measured["seconds_per_step"]


def test_a_sweep_has_a_row_for_each(results: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    picture = tmp_path / "curve.svg"
    written = results(
        "--network", "ethernet:10gbit", "--set", "exchange.kind=ring", "--sweep", "nodes=2..12", "--out", picture
    )
    assert [row["nodes"] for row in written["rows"]] == [2, 4, 8, 12]
    seconds = [row["seconds_per_step"] for row in written["rows"]]
    assert seconds == sorted(seconds)
    assert "<svg" in picture.read_text()
    servers = results("--network", "ethernet:1gbit", "--nodes", 8, "--sweep", "servers=1,4")["rows"]
    assert servers[1]["seconds_per_step"] < servers[0]["seconds_per_step"]


def test_a_trace_is_that_of_a_run(run_simulate: Run, profile: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    code, _, errors = run_simulate("--profile", profile, "--network", "taihulight", "--trace", file)
    assert code == 0, errors
    trace = json.loads(file.read_text())
    names = {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"}
    assert {"forward", "backward", "push", "pull", "update"} <= names
    assert {process["process"] for process in trace["otherData"]["processes"]} == {"worker 0", "server 0"}


def test_compression_and_zero_change_what_moves(results: Callable[..., dict[str, Any]]) -> None:
    network = ("--network", "ethernet:1gbit", "--nodes", 4)
    dense = results(*network)
    sparse = results(*network, "--set", "compression.method=dlgs", "--set", "compression.density=0.01")
    assert sparse["seconds_per_step"] < dense["seconds_per_step"]
    assert sparse["bytes_per_process"]["worker"]["sent"] < dense["bytes_per_process"]["worker"]["sent"] / 20
    whole = results(*network, "--set", "exchange.zero=3", "--set", "exchange.plan=per-layer")
    assert whole["bytes_per_process"]["worker"]["received"] > 1.2 * dense["bytes_per_process"]["worker"]["received"]
    ring = results(
        *network,
        "--set",
        "exchange.kind=ring",
        "--set",
        "compression.method=dlgs",
        "--set",
        "compression.density=0.01",
    )
    assert ring["bytes_per_process"]["worker"]["sent"] < dense["bytes_per_process"]["worker"]["sent"] / 4


def test_without_a_profile_compute_is_modelled(run_simulate: Run, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    code, out, errors = run_simulate("--network", "taihulight", "--nodes", 4, "--json", file)
    assert code == 0, errors
    assert "compute modelled (sw26010)" in out
    assert json.loads(file.read_text())["seconds_compute"] > 0


def test_the_example_of_a_network_file_is_one(results: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_text("\n".join(line.removeprefix("# ") for line in EXAMPLE.splitlines()))
    plain = tmp_path / "plain.toml"
    plain.write_text(EXAMPLE)
    assert results("--network", plain, "--nodes", 2)["network"] == str(plain)
    first, again, other = (
        results("--network", file, "--nodes", 2, "--set", f"train.seed={seed}") for seed in (1, 1, 2)
    )
    assert first == again
    assert first["seconds_per_step"] != other["seconds_per_step"]


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ("[network]\nalpha_seconds = 1e-6", "network.rate or bytes_per_second is missing"),
        ("[network]\nrate = '1gbit'", "network.alpha_seconds is missing"),
        (
            "[network]\nalpha_secs = 1\nrate = '1gbit'",
            "unknown key network.alpha_secs; did you mean network.alpha_seconds?",
        ),
        ("[network]\nalpha_seconds = -1\nrate = '1gbit'", "network.alpha_seconds -1: expected at least 0"),
        ("[network]\nalpha_seconds = '1ms'\nrate = '1gbit'", "network.alpha_seconds '1ms': expected a number"),
        ("[network]\nalpha_seconds = 0\nrate = '1 GB/s'", "network.rate: expected one such as '10gbit'"),
        ("[network]\nalpha_seconds = 0\nbytes_per_second = 0", "network.bytes_per_second 0: expected more than 0"),
        (
            "[network]\nalpha_seconds = 0\nrate = '1gbit'\nloss_ratio = 1.0",
            "network.loss_ratio 1: expected at most 0.9",
        ),
        ("[network]\nalpha_seconds = 0\nrate = '1gbit'\njitter = 1e6", "network.jitter 1e+06: expected at most 5"),
        ("[network]\nalpha_seconds = nan\nrate = '1gbit'", "network.alpha_seconds nan: expected at least 0"),
        ("[network]\nalpha_seconds = 0\nbytes_per_second = inf", "expected more than 0, and a finite number"),
        ("[network]\nalpha_seconds = 0\nbytes_per_second = 1" + "0" * 400, "expected a number of at most 1e+30"),
        ("[network]\nalpha_seconds = 0\nrate = '1gbit'\noversubscription = 0.5", "expected at least 1"),
        ("[network]\nalpha_seconds = 0\nrate = '1gbit'\nfull_duplex = 1", "expected true or false"),
        ("[network]\nalpha_seconds = 0\nrate = '1gbit'\n[machines]\njitter = 1e6", "machines.jitter 1e+06"),
        ("[network]\nalpha_seconds = 0\nrate = '1gbit'\n[machines]\nstraggler_slowdown = inf", "a finite number"),
        ("[network]\nalpha_seconds = 0\nrate = '1gbit'\n[machines]\nadd_bytes_per_second = 0", "more than 0"),
        ("", "network.alpha_seconds is missing"),
        ("[network]\nalpha_seconds = 0\nrate = '1gbit'\nsupernode = 2.5", "expected a whole number"),
        ("[network]\nalpha_seconds = 0\nrate = '1gbit'\n[machines]\nstragglers = 9", "expected at most 3"),
        (
            "[network]\nalpha_seconds = 0\nrate = '1gbit'\n[machines]\nhosts = 4",
            "3 workers and 2 servers take 5 hosts",
        ),
        ("[links]\n", "unknown key links"),
        ("network = 3", "expected a table, [network]"),
        ("rate = ", "not TOML"),
    ],
)
def test_a_wrong_network_is_one_line(
    run_simulate: Run, profile: Path, tmp_path: Path, network: str, words: str
) -> None:
    file = tmp_path / "lab.toml"
    file.write_text(network)
    code, _, errors = run_simulate("--profile", profile, "--network", file)
    assert (code, errors.count("\n")) == (2, 1), errors
    assert words in errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--network", "nowhere.toml"], "No such file"),
        (["--network", "ethernet:fast"], "expected a rate"),
        (["--sweep", "density=1..2"], "expected nodes=2..1024"),
        (["--sweep", "nodes=8..2"], "the first not after the last"),
        (["--sweep", "servers=1,2", "--set", "exchange.kind=ring"], "have no servers"),
        (["--sweep", "nodes=0..4"], "expected nodes=2..1024"),
        (["--sweep", "nodes=2,,3"], "expected nodes=2..1024"),
        (["--sweep", "nodes=1..99999999"], "from 1 to 10000"),
        (["--sweep", "nodes=2..4", "--nodes", "5"], "--nodes 5 is given as well"),
        (["--sweep", "servers=1,2", "--servers", "2"], "--servers 2 is given as well"),
        (["--sweep", "nodes=2,4", "--trace", "t.json"], "of one job; leave --sweep out"),
        (["--sweep", "nodes=2,4", "--from-start", "9"], "of one job; leave --sweep out"),
        (["--sweep", "nodes=2,4", "--lose", "worker:1@2"], "of one job; leave --sweep out"),
        (["--from-start", "9", "--lose", "worker:1@2"], "leave --from-start out"),
        (["--lose", "worker:1"], "for example worker:3@12.5+20"),
        (["--lose", "worker:1@0+3"], "above 0"),
        (["--lose", "worker:9@1"], "--lose worker:9: the job has worker 0 to 2"),
        (["--from-start", "1"], "greater than or equal to 2"),
        (["--servers-beside", "--set", "exchange.kind=ring"], "have no servers"),
        (["--network", ""], "expected taihulight, ethernet:1gbit or a file"),
        (["--network", "ethernet:0gbit"], "expected a rate"),
        (["--network", "/"], "Is a directory"),
        (["--trace", "nowhere/t.json"], "nowhere is not a folder"),
        (["--set", "exchange.fc=shard"], "has no fully connected layer at its end"),
        (["--nodes", "0"], "greater than or equal to 1"),
        (["--out", "x.png"], "--out x.png: a picture of which rows? give --sweep"),
        (["job.toml", "fc"], "nexpected extra argument"),
        (["--all"], "o such option: --all"),
        (["--servers-beside", "--servers", "9"], "at most one on each host"),
        (["--network", "ethernet:1gbit", "--nodes", "20000"], "20000"),
        (["ps-vs-ring"], "not found"),
    ],
)
def test_a_mistake_is_one_line(run_simulate: Run, profile: Path, arguments: list[str], words: str) -> None:
    code, _, errors = run_simulate("--profile", profile, *arguments)
    assert (code, errors.count("\n")) == (2, 1), errors
    assert words in errors


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[]", "expected an object|Input should be an object"),
        ("{}", "profile: layers: Field required"),
        ('{"profile": {"layers": []}}', "at least 1 item"),
        (json.dumps({"profile": {**PROFILE.to_json(), "forward_seconds": -1.0}}), "forward_seconds"),
    ],
)
def test_a_wrong_profile_is_one_line(run_simulate: Run, tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(text)
    code, _, errors = run_simulate("--profile", file, "--network", "taihulight")
    assert (code, errors.count("\n")) == (2, 1), errors
    assert re.search(words, errors), errors


def test_figures_are_listed_and_written(run_figure: Run, tmp_path: Path) -> None:
    file = tmp_path / "figure.json"
    assert "zero-memory" in run_figure()[1]
    code, out, _ = run_figure("zero-memory", "--json", file)
    rows = json.loads(file.read_text())["rows"]
    assert code == 0
    assert len(rows) == 54
    assert all(row["deviation"] == 0 for row in rows)
    assert "paper" in out


def test_the_compute_of_a_figure_comes_from_a_file(run_figure: Run, tmp_path: Path) -> None:
    rates = tmp_path / "rates.json"
    rates.write_text('{"resnet50": 662, "resnet20": 28000}')
    code, _, errors = run_figure("dlgs", "--rates", rates, "--json", tmp_path / "dlgs.json")
    assert code == 0, errors
    results = json.loads((tmp_path / "dlgs.json").read_text())
    assert "resnet50 662, resnet20 28000" in results["constants"]
    gains = {row["case"].partition(",")[0]: row["ours"] for row in results["rows"] if "over dense" in row["case"]}
    assert [gains["resnet50"], gains["resnet20"]] == pytest.approx([1.99, 1.99], rel=0.02)
    needed = {row["case"].partition(":")[0]: row["ours"] for row in results["rows"] if "gains 1.99" in row["case"]}
    assert [needed["resnet50"], needed["resnet20"]] == pytest.approx([662, 28000], rel=0.02)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("fc", "{}", "compute is that of figure dlgs alone"),
        ("dlgs", '{"resnet51": 1}', "models: resnet20, vgg16_cifar, resnet50"),
        ("dlgs", '{"resnet50": 0}', "0: expected an object of numbers above 0"),
        ("dlgs", '{"resnet50": true}', "True: expected an object of numbers above 0"),
        ("dlgs", "[1]", "expected an object of numbers above 0"),
        ("dlgs", "{", "expected an object of numbers above 0"),
        ("dlgs", None, "No such file"),
    ],
)
def test_rates_that_are_none_are_told_in_one_line(
    run_figure: Run, tmp_path: Path, name: str, text: str | None, words: str
) -> None:
    rates = tmp_path / "rates.json"
    if text is not None:
        rates.write_text(text)
    code, _, errors = run_figure(name, "--rates", rates)
    assert (code, errors.count("\n")) == (2, 1), errors
    assert f"--rates {rates}: " in errors
    assert words in errors


def test_figures_are_drawn(run_figure: Run, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    code, _, errors = run_figure("swdnn", "--out", folder, "--json", tmp_path / "figure.json")
    assert code == 0, errors
    assert sorted(file.name for file in folder.iterdir()) == ["swdnn.png", "swdnn.svg"]
    assert folder.joinpath("swdnn.png").read_bytes().startswith(b"\x89PNG")
    drawn = folder.joinpath("swdnn.svg").read_text()
    written = json.loads((tmp_path / "figure.json").read_text())
    assert [panel["title"] in drawn for panel in written["panels"]] == [True, True]
    assert "<dc:date>" not in drawn


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["zero"], "did you mean zero-memory?"),
        (["xyzzy"], "known: ps-vs-ring, "),
        (["fc", "--all"], "figure fc --all: expected one of the two"),
        (["--json", "x.json"], "which one is to be written?"),
        (["fc", "--nodes", "5"], "o such option: --nodes"),
        (["fc", "--out", "/dev/null"], "/dev/null is not a folder"),
        (["fc", "--json", "/nowhere/x.json"], "/nowhere is not a folder"),
    ],
)
def test_a_mistake_with_a_figure_is_one_line(run_figure: Run, arguments: list[str], words: str) -> None:
    code, _, errors = run_figure(*arguments)
    assert (code, errors.count("\n")) == (2, 1), errors
    assert words in errors
