"""`taihu plan search`: what it prints and writes, its limits, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from taihu.core.job import load_job
from taihu.core.planner.profile import LayerCost, LinearCost, LinkCost, Profile
from taihu.search.search import ALIKE
from taihu.search.ways import Way

Run = Callable[..., tuple[int, str, str]]
# As the layers of small_cnn on 8 x 8 x 1.
PROFILE = Profile(
    layers=tuple(LayerCost(f"l{i}", n, 0.002) for i, n in enumerate((650, 32_832, 4_640, 160))),
    forward_seconds=0.004,
    scan=LinearCost(1e-5, 1e-9),
    top_k=LinearCost(3e-5, 5e-9),
    link=LinkCost(1e-3, 2e-8, 4e-8),
    workers=3,
    servers=1,
)
MACHINES = '[network]\nalpha_seconds = 1e-4\nrate = "20mbit"\n[machines]\nhosts = 5\n'
JOB = 'name = "mine"\n[data]\nname = "synthetic:1x8x8:classes=10:samples=32"\n[train]\nbatch = 4\nevaluate = false\n'


@pytest.fixture
def search(run_search: Run, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """The command, with a job, a profile and machines, of which texts lie in files."""

    def command(*arguments: object, machines: str = MACHINES, job: str = JOB) -> tuple[int, str, str]:
        files = {"lab.toml": machines, "job.toml": job, "run.json": json.dumps({"profile": PROFILE.to_json()})}
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        lab, mine, measured = (tmp_path / name for name in files)
        return run_search(mine, "--machines", lab, "--profile", measured, *arguments)

    return command


def test_the_winner_is_told_and_its_job_file_is_it(search: Run, tmp_path: Path) -> None:
    out, file = tmp_path / "out.json", tmp_path / "best.toml"
    job = f"{JOB}[exchange]\nwindow_frames = 5\n[cluster]\nservers = 1\n"
    code, told, errors = search("--min-density", 0.01, "--out", file, "--json", out, job=job)
    assert code == 0, errors
    written = json.loads(out.read_text())
    best, *others = written["ranking"]
    seconds = [row["seconds_per_step"] for row in written["ranking"]]
    assert best["method"] != "none"
    assert len(written["ranking"]) == 10
    assert seconds[0] <= (1.0 + ALIKE) * min(seconds)
    assert written["ways"] == written["simulated"] + len(written["passed"]) + len(written["refused"])
    assert all(row["seconds_at_least"] > seconds[0] for row in written["passed"] if "preferred" not in row["reason"])
    assert best["reason"] is None
    assert all(row["reason"] in told for row in others)
    assert f"{written['as_it_is_seconds_per_step']:.4g} s" in told
    made = load_job(file)
    way = Way.of(made, beside=best["beside"])
    assert {key: best[key] for key in way.to_json()} == way.to_json()
    assert (made.name, made.cluster.workers, made.train.batch) == ("mine", 3, 4)
    # The window of servers has no effect in a ring.
    assert made.exchange.window_frames == (5 if way.servers else 4)
    assert best["where"] in file.read_text()


def test_by_default_all_is_sent_as_exactly_as_the_job_does(search: Run, tmp_path: Path) -> None:
    code, told, _ = search("--best", 3, "--json", tmp_path / "out.json")
    written = json.loads((tmp_path / "out.json").read_text())
    rows = [*written["ranking"], *written["passed"]]
    assert (code, len(written["ranking"])) == (0, 3)
    assert {(row["method"], row["precision"]) for row in rows} == {("none", "fp32")}
    assert "everything is sent; fp32; 5 hosts" in told
    assert {row["host_bytes"] for row in written["ranking"]} == {None}


def test_no_host_holds_more_than_it_has(search: Run, tmp_path: Path) -> None:
    """A ring on as many hosts as workers: what ZeRO saves in stage 1 is not enough. Threads take memory, too."""
    job = f'{JOB}[optimizer]\nname = "adam"\n[exchange]\nkind = "ring"\nbucket_bytes = 4096\n[cluster]\nthreads = 1\n'
    free = 616_000
    machines = f"{MACHINES.replace('hosts = 5', 'hosts = 3')}memory_bytes = {free}\n"
    code, told, errors = search("--json", tmp_path / "out.json", machines=machines, job=job)
    assert code == 0, errors
    written = json.loads((tmp_path / "out.json").read_text())
    assert all(0 < row["host_bytes"] <= free for row in written["ranking"])
    assert written["too_large"]
    assert f"{len(written['too_large'])} do not fit into a host" in told
    assert all(row["host_bytes"] > free and "616 kB" in row["reason"] for row in written["too_large"])
    assert [(row["servers"], row["zero"]) for row in written["ranking"][:1]] == [(0, 2)]
    assert "as it is        not allowed, too large" in told


def test_compression_that_no_stage_makes_small_enough_says_so(search: Run, tmp_path: Path) -> None:
    job = f'{JOB}[exchange]\nkind = "ring"\n[cluster]\nthreads = 1\n'
    machines = f"{MACHINES}memory_bytes = 700_000\n"
    code, told, errors = search(
        "--min-density", 0.1, "--best", 1, "--json", tmp_path / "out.json", machines=machines, job=job
    )
    assert code == 0, errors
    rows = json.loads((tmp_path / "out.json").read_text())["too_large"]
    compressed = [row["reason"] for row in rows if row["method"] == "lags"]
    assert compressed
    assert all("which zero" in reason for reason in compressed), compressed
    assert f"{len(compressed)} ways with lags, and no higher stage of ZeRO: " in told


def test_what_fits_nowhere_is_one_line_with_what_would(search: Run) -> None:
    code, _, errors = search(machines=f'{MACHINES}memory = "40kB"\n')
    assert (code, errors.count("\n")) == (2, 1), errors
    assert "fits in no way into 40 kB of a host: the least that one takes is" in errors
    assert "give hosts with so much" in errors
    large = JOB.replace("batch = 4", "batch = 20")
    code, _, errors = search(machines=f'{MACHINES}memory = "800kB"\n', job=large)
    assert (code, errors.count("\n")) == (2, 1), errors
    assert "or set train.batch = " in errors


@pytest.mark.parametrize(
    ("machines", "words"),
    [
        (MACHINES.replace("hosts = 5", "hosts = 2"), "machines.hosts 2: the job has 3 workers"),
        (MACHINES.replace("hosts = 5", "hosts = 'all'"), "machines.hosts 'all': expected a whole number"),
        (f"{MACHINES}memory = 16\n", "machines.memory: expected one such as '16GB'"),
        (f"{MACHINES}memory = '1GB'\nmemory_bytes = 9\n", "no memory_bytes beside it"),
        (f"{MACHINES}memory_bytes = -1\n", "machines.memory -1: expected more than nothing"),
        (MACHINES.replace("hosts", "host"), "unknown key machines.host; did you mean machines.hosts?"),
    ],
)
def test_wrong_machines_are_one_line(search: Run, machines: str, words: str) -> None:
    code, _, errors = search(machines=machines)
    assert (code, errors.count("\n")) == (2, 1), errors
    assert words in errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["job.toml", "result.json"], "nexpected extra argument"),
        (["job.toml", "--threshold", "group"], "o such option: --threshold"),
        (["--machines", "ethernet:1gbit", "--min-density", "0"], "--min-density 0: expected a share above 0"),
        (["nowhere.toml", "--machines", "ethernet:1gbit"], "job file nowhere.toml: not found"),
    ],
)
def test_a_mistake_is_one_line(run_search: Run, arguments: list[str], words: str) -> None:
    code, _, errors = run_search(*arguments)
    assert (code, errors.count("\n")) == (2, 1), errors
    assert words in errors


def test_machines_have_a_name_or_a_file(search: Run, run_search: Run, tmp_path: Path) -> None:
    assert search()[0] == 0
    mine = tmp_path / "job.toml"
    assert "--machines: missing; give taihulight" in run_search(mine)[2]
    assert "--machines ethernet:x: expected a rate" in run_search(mine, "--machines", "ethernet:x")[2]
    assert "--machines no.toml: No such file" in run_search(mine, "--machines", "no.toml")[2]
