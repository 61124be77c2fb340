"""`taihu plan` on files and on a coordinator: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from taihu.cli.planning.time import profile_of_running_job
from taihu.core.base.errors import ConfigError, PeerUnreachableError
from taihu.core.planner.decide import choose_fc_of, decide
from taihu.core.planner.fc_mode import FcLayer
from taihu.core.planner.profile import Compression, LayerCost, LinearCost, LinkCost, Profile
from taihu.core.traits.methods import METHODS
from taihu.protos import coordinator_pb2 as pb

PROFILE = Profile(
    layers=tuple(LayerCost(f"l{i}", n, 0.01) for i, n in enumerate((4_000_000, 100, 9_000_000, 50_000, 10, 800_000))),
    forward_seconds=0.03,
    scan=LinearCost(1e-5, 1e-9),
    top_k=LinearCost(3e-5, 5e-9),
    link=LinkCost(1e-3, 2e-8, 4e-8),
    workers=3,
    servers=1,
)
DLGS = ("--compression", "dlgs")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE.to_json()))
    return path


@pytest.fixture
def results(run_plan: Run, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def command(*arguments: object) -> dict[str, Any]:
        code, _, errors = run_plan(*arguments, "--json", tmp_path / "plan.json")
        assert code == 0, errors
        written: dict[str, Any] = json.loads((tmp_path / "plan.json").read_text())
        return written

    return command


def test_a_plan_says_which_times_were_modelled(run_plan: Run, tmp_path: Path, file: Path) -> None:
    assert "modelled" not in run_plan(file)[1]
    modelled = tmp_path / "modelled.json"
    modelled.write_text(json.dumps(replace(PROFILE, compute="sw26010").to_json()))
    assert "compute         modelled (sw26010); links and compression as measured" in run_plan(modelled)[1]


def test_a_plan_is_the_decision(results: Callable[..., dict[str, Any]], file: Path) -> None:
    compression = Compression(METHODS["lags"], 0.02, 8, downlink="doublesqueeze")
    written = results(
        file,
        *("--compression", "lags", "--density", "0.02", "--refresh-every", 8),
        *("--downlink", "doublesqueeze", "--plan", "bucket:3MB"),
    )
    decision = decide(PROFILE, compression, "bucket:3MB")
    timeline = decision.timeline
    assert [(g["first_layer"], g["last_layer"]) for g in written["groups"]] == [(0, 0), (1, 2), (3, 5)]
    assert [g["elements"] for g in written["groups"]] == [4_000_000, 9_000_100, 850_010]
    # Two of 100 values of four bytes and the bits of their gaps, both ways; the union of three pushes is larger.
    assert written["groups"][0]["bytes_up"] == pytest.approx(0.02 * 4_000_000 * (4 + 7.1 / 8), rel=0.01)
    exact = results(file, *DLGS, "--density", "0.02", "--plan", "bucket:3MB")["groups"][0]
    assert exact["bytes_up"] == written["groups"][0]["bytes_up"] < exact["bytes_down"] / 2
    assert [g["seconds_ready"] for g in written["groups"]] == [times.ready for times in timeline.groups]
    stages = [[g[f"seconds_{name}"] for name in ("compressed", "sent", "done")] for g in written["groups"]]
    assert stages == [list(times.ends) for times in timeline.groups]
    assert written["predicted_seconds_per_step"] == decision.seconds
    parts = [written[f"seconds_{name}"] for name in ("compute", "compress", "wait")]
    assert parts == [timeline.compute_seconds, timeline.compress_seconds, timeline.wait_seconds]
    assert written["alternatives"] == dict(decision.alternatives)
    assert written["compression_pays"] is decision.pays is True
    assert (written["compression"], written["density"]) == ("lags", 0.02)


def test_nothing_is_assumed_of_a_bare_profile(results: Callable[..., dict[str, Any]], file: Path) -> None:
    written = results(file)
    assert (written["compression"], written["density"]) == ("none", 1.0)
    assert written["predicted_seconds_per_step"] == decide(PROFILE, Compression(METHODS["none"]), "auto").seconds


RUNS: tuple[tuple[dict[str, object], tuple[str, ...], Compression], ...] = (
    ({}, (), Compression(METHODS["none"])),
    ({"compression": "none", "density": 1.0, "downlink": "dense"}, (), Compression(METHODS["none"])),
    ({"compression": "none", "density": 1.0, "downlink": "dense"}, DLGS, Compression()),
    (
        {"compression": "lags", "density": 0.05, "downlink": "dense"},
        (),
        Compression(METHODS["lags"], 0.05, downlink="dense"),
    ),
    ({"compression": "lags", "density": 0.05}, ("--density", "0.1", *DLGS), Compression(METHODS["dlgs"], 0.1)),
    (
        {"compression": "dlgs", "density": 0.05, "refresh_every": 4, "threshold": "layer"},
        (),
        Compression(METHODS["dlgs"], 0.05, 4),
    ),
    ({"compression": "dlgs", "density": 0.05}, (), Compression(METHODS["dlgs"], 0.05, threshold="group")),
    ({"compression": "dlgs", "density": 0.05}, ("--threshold", "layer"), Compression(METHODS["dlgs"], 0.05)),
    ({"compression": "dlgs", "density": 0.05}, ("--compression", "none"), Compression(METHODS["none"])),
)


@pytest.mark.parametrize(("ran", "arguments", "expected"), RUNS)
def test_a_run_is_predicted_as_it_was_unless_asked(
    results: Callable[..., dict[str, Any]],
    tmp_path: Path,
    ran: dict[str, object],
    arguments: tuple[str, ...],
    expected: Compression,
) -> None:
    training = tmp_path / "training.json"
    training.write_text(json.dumps({**ran, "profile": PROFILE.to_json()}))
    written = results(training, *arguments)
    assert written["compression"] == expected.method.key
    assert written["predicted_seconds_per_step"] == decide(PROFILE, expected, "auto").seconds


def papers_step(groups: list[dict[str, Any]]) -> float:
    """t_iter of the paper for layers that are sent as `groups`; one frame each, of 4-byte values."""
    clock, link_free = PROFILE.forward_seconds, 0.0
    for group in groups:
        layers = group["last_layer"] - group["first_layer"] + 1
        exact, reused = (
            cost.base_seconds + group["elements"] * cost.seconds_per_element for cost in (PROFILE.top_k, PROFILE.scan)
        )
        clock += 0.01 * layers + (exact + 31 * reused) / 32
        sending = 1e-3 + 2e-8 * group["bytes_up"] + 4e-8 * group["bytes_down"]
        link_free = max(clock, link_free) + sending
    return link_free


def test_the_papers_equations_can_be_asked_for(
    results: Callable[..., dict[str, Any]], run_plan: Run, file: Path
) -> None:
    asked = (file, *DLGS, "--plan", "per-layer")
    seconds = {name: results(*asked, "--timeline", name) for name in ("overlapped", "inline", "paper")}
    paper = seconds["paper"]
    assert paper["predicted_seconds_per_step"] == pytest.approx(papers_step(paper["groups"]), rel=1e-6)
    assert [each["timeline"] for each in seconds.values()] == list(seconds)
    ends = [each["predicted_seconds_per_step"] for each in seconds.values()]
    assert ends == sorted(set(ends))
    assert results(*asked)["predicted_seconds_per_step"] == ends[0]
    words = "timeline        compression on the thread that computes"
    assert [words in run_plan(*asked, "--timeline", name)[1] for name in seconds] == [False, True, True]


def test_a_training_result_holds_a_profile(results: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    training = tmp_path / "training.json"
    training.write_text(json.dumps({"steps": 10, "profile": PROFILE.to_json()}))
    assert results(training)["workers"] == 3


def test_a_table_has_a_line_for_each_group(run_plan: Run, file: Path) -> None:
    code, out, _ = run_plan(file, *DLGS, "--plan", "bucket:3MB")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "6 layers, 13,850,110 parameters, 1 server, 3 workers"
    assert lines[1] == "compression     dlgs, density 0.01, downlink exact"
    assert lines[2].split("  ")[0] == "group"
    assert [line.split()[0] for line in lines[3:6]] == ["0", "1", "2"]
    assert ("l0" in lines[3], "l1 .. l2" in lines[4], "9,000,100" in lines[4]) == (True, True, True)
    assert len({len(line) for line in lines[2:6]}) == 1
    decision = decide(PROFILE, Compression(), "bucket:3MB")
    assert lines[6].startswith(f"predicted step  {decision.seconds * 1e3:.1f} ms: compute 90.0, compress ")
    named = dict(line.split(maxsplit=1) for line in lines[7:])
    assert named == {name: f"{seconds * 1e3:.1f} ms" for name, seconds in decision.alternatives.items()}


def test_fully_connected_layers_are_predicted_both_ways(
    run_plan: Run, results: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "fc.json"
    layers = (FcLayer("fc1", 9216, 4096), FcLayer("fc2", 64, 10))
    profile = replace(PROFILE, fc_layers=layers, batch=32)
    path.write_text(json.dumps(profile.to_json()))
    code, out, _ = run_plan(path)
    assert code == 0
    table = out.splitlines()[-4:]
    assert table[0] == "fully connected layers, 32 examples a worker: gradients exchanged, or sharded"
    shown = [line.split() for line in table[2:]]
    expected = choose_fc_of(profile)
    for words, choice in zip(shown, expected, strict=True):
        assert words[:4] == [choice.layer.name, str(choice.layer.inputs), "x", str(choice.layer.outputs)]
        assert words[4:6] == [f"{choice.data_seconds * 1e3:.2f}", f"{choice.shard_seconds * 1e3:.2f}"]
        assert words[6:] == [choice.choice, choice.rule]
    # One server's link carries the gradients of three workers, one start-up and both ways at once.
    assert expected[0].data_seconds == pytest.approx(1e-3 + 4 * 9217 * 4096 * 2e-8)
    lean = 2 * 2 * 32 * 9216 + 2 * 32 * 4096 * 2 / 3
    assert expected[0].shard_seconds == pytest.approx(4 * 0.5e-3 + 4 * lean * 2e-8 / 3)
    assert [row["choice"] for row in results(path)["fc"]] == ["shard", "data"]


def test_it_says_when_compression_does_not_pay(run_plan: Run, file: Path) -> None:
    _, out, _ = run_plan(file, *DLGS, "--rate", "1000gbit")
    assert "do not compress: sending everything takes " in out
    assert "do not compress" not in run_plan(file, *DLGS, "--rate", "100mbit")[1]
    assert "do not compress" not in run_plan(file, "--rate", "1000gbit", "--compression", "none")[1]


def test_it_says_when_compression_was_not_measured(run_plan: Run, tmp_path: Path) -> None:
    free = replace(PROFILE, scan=LinearCost(0.0, 0.0), top_k=LinearCost(0.0, 0.0))
    (tmp_path / "free.json").write_text(json.dumps(free.to_json()))
    assert "no measurements of compression" in run_plan(tmp_path / "free.json", *DLGS)[1]
    assert "no measurements of compression" not in run_plan(tmp_path / "free.json", "--compression", "none")[1]


@pytest.mark.parametrize(("workers", "busiest"), [(None, 3), (1, 1), (12, 12)])
def test_a_rate_replaces_the_links(
    results: Callable[..., dict[str, Any]], file: Path, workers: int | None, busiest: int
) -> None:
    more = () if workers is None else ("--workers", workers)
    written = results(file, *DLGS, "--rate", "100mbit", *more)
    per_byte = busiest * 8 / 100e6 * 1514 / 1448
    profile = replace(PROFILE, link=LinkCost(1e-3, per_byte, per_byte), workers=workers or 3)
    assert written["workers"] == (workers or 3)
    assert written["predicted_seconds_per_step"] == pytest.approx(decide(profile, Compression(), "auto").seconds)


def test_workers_alone_scale_the_measured_links(results: Callable[..., dict[str, Any]], file: Path) -> None:
    expected = decide(PROFILE.with_workers(9), Compression(), "auto").seconds
    assert results(file, *DLGS, "--workers", 9)["predicted_seconds_per_step"] == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["neither", "PROFILE.json", "--coordinator"]),
        (["FILE", "--coordinator", "127.0.0.1:1"], ["both", "--coordinator"]),
        (["missing.json"], ["cannot read missing.json"]),
        (["FILE", "--compression", "dgc"], ["--compression", "dgc"]),
        (["FILE", "--density", "0", *DLGS], ["density 0", "above 0"]),
        (["FILE", "--density", "0.1"], ["--density 0.1", "nothing is compressed", "--compression"]),
        (["FILE", "--plan", "fastest"], ["plan 'fastest'", "bucket:SIZE"]),
        (["FILE", "--compression", "topk", "--plan", "per-layer"], ["topk", "single"]),
        (["FILE", "--rate", "fast"], ["--rate fast", "1gbit"]),
        (["FILE", "--workers", "0"], ["--workers", "greater than or equal to 1"]),
        (["FILE", "--refresh-every", "0"], ["refresh_every 0"]),
        (["FILE", "--json", "nowhere/plan.json"], ["nowhere"]),
        (["--coordinator", "nowhere"], ["nowhere"]),
    ],
)
def test_a_mistake_is_one_line(run_plan: Run, file: Path, arguments: list[str], words: list[str]) -> None:
    code, _, errors = run_plan(*(str(file) if argument == "FILE" else argument for argument in arguments))
    assert code == 2
    assert errors.startswith("error: ")
    assert len(errors.splitlines()) == 1
    for word in words:
        assert word in errors, (word, errors)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ('{"profile": null}', "more than exchange.calibration_steps steps"),
        ('{"steps": 3}', "layers: Field required"),
        ("[]", "profile: "),
        (json.dumps({"compression": "dlgs", "density": "x", "profile": PROFILE.to_json()}), "density 'x'"),
        (
            json.dumps({"compression": "gzip", "density": 0.1, "profile": PROFILE.to_json()}),
            "expected 'none', 'topk', 'lags', 'dlgs', 'quantized', 'powersgd' or 'auto', got 'gzip'",
        ),
    ],
)
def test_a_file_without_a_profile_is_named(run_plan: Run, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    code, _, errors = run_plan(path)
    assert (code, len(errors.splitlines())) == (2, 1)
    assert str(path) in errors
    assert words in errors


@pytest.fixture
def coordinator() -> Iterator[tuple[list[str], str]]:
    """A server's answers to requests for a profile, last item first, and its address."""
    answers = [json.dumps(PROFILE.to_json())] * 2

    def get_profile(request: pb.GetProfileRequest, context: grpc.ServicerContext) -> pb.GetProfileResponse:
        return pb.GetProfileResponse(profile_json=answers.pop() if answers else "")

    method = grpc.unary_unary_rpc_method_handler(
        get_profile, pb.GetProfileRequest.FromString, pb.GetProfileResponse.SerializeToString
    )
    name = pb.DESCRIPTOR.services_by_name["CoordinatorService"].full_name
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"GetProfile": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield answers, f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_a_running_job_tells_its_profile(
    results: Callable[..., dict[str, Any]], coordinator: tuple[list[str], str]
) -> None:
    answers, address = coordinator
    assert profile_of_running_job(address) == PROFILE
    written = results("--coordinator", address)
    assert written["predicted_seconds_per_step"] == decide(PROFILE, Compression(METHODS["none"]), "auto").seconds
    assert not answers
    with pytest.raises(ConfigError, match="has not measured its costs yet"):
        profile_of_running_job(address)


def test_a_job_that_does_not_answer_is_named() -> None:
    with pytest.raises(PeerUnreachableError, match=r"127\.0\.0\.1:1: no answer"):
        profile_of_running_job("127.0.0.1:1", timeout_s=0.2)
