"""`taihu plan memory`: the numbers of a job, what it says when they are too large, and what it takes for free."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.core.base.errors import ConfigError
from taihu.core.job import load_job, parse_assignments
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.optimization import OptimizerShard
from taihu.core.planner.groups import Group
from taihu.core.planner.memory import server_memory, worker_memory
from taihu.core.planner.partition import Shard
from taihu.core.process.memory.free import free_bytes
from taihu.local.display.display import human_bytes
from taihu.worker.engine import build_model
from taihu.worker.fc.connected import spreadable
from taihu.worker.fc.hybrid import HybridModel
from taihu.worker.training.planned_memory import memory_job

Run = Callable[..., tuple[int, str, str]]

DATA = "data.name=synthetic:1x8x8:classes=10:samples=32"
# Two convolutions and two fully connected layers on 8 x 8 x 1, in backward order.
SMALL_CNN = (64 * 10 + 10, 512 * 64 + 64, 9 * 16 * 32 + 32, 9 * 16 + 16)
P = sum(SMALL_CNN)
TINY = (
    *("exchange.bucket_bytes=4096", "exchange.window_frames=1", "exchange.frame_bytes=4096"),
    *("train.batch=1", "train.evaluate=false", "train.recompute=memory"),
)
"""Each layer is a group, so that stages 2 and 3 hold two of the four; frames and activations hardly count."""
KINDS = ("parameters", "gradients", "optimizer", "residuals", "buffers", "activations", "data")


@pytest.fixture
def memory(run_memory: Run, tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any], str]]:
    """`--memory` with settings and arguments; returns exit code, results, stderr."""

    def command(*given: str, of: tuple[str, ...] = ()) -> tuple[int, dict[str, Any], str]:
        file = tmp_path / "memory.json"
        assignments = (f"--set={item}" for item in (DATA, *of))
        code, _, said = run_memory(*assignments, *given, "--json", file)
        # That buckets have no effect before stage 2 is said too.
        errors = "".join(line for line in said.splitlines(keepends=True) if "exchange.bucket_bytes" not in line)
        return code, json.loads(file.read_text()), errors

    return command


Memory = Callable[..., tuple[int, dict[str, Any], str]]


def bytes_of(row: dict[str, int]) -> list[int]:
    """States and buffers, in the order of `KINDS`."""
    return [row[f"bytes_{kind}"] for kind in KINDS[:5]]


def beside(written: dict[str, Any]) -> int:
    """Bytes of a worker beside them: activations and data."""
    return int(written["worker"]["bytes_activations"] + written["worker"]["bytes_data"])


def test_the_demo_job_in_bytes(memory: Memory) -> None:
    code, written, errors = memory()
    assert (code, errors) == (0, "")
    assert (written["model"], written["parameters"]) == ("small_cnn", P)
    assert (written["servers"], written["workers"], written["zero"]) == (2, 3, 1)
    assert bytes_of(written["worker"]) == [4 * P, 4 * P, 0, 0, 0]
    # SGD with momentum, on half of the parameters; four frames of 512 KiB from each of three workers.
    frames = 3 * 4 * 512 * 1024
    assert bytes_of(written["server"]) == [2 * P, 0, 2 * P, 0, frames]
    assert bytes_of(written["all"]) == [3 * 4 * P + 4 * P, 3 * 4 * P, 4 * P, 0, 2 * frames]
    for row in (written["worker"], written["server"], written["all"]):
        assert row["bytes_total"] == sum(row[f"bytes_{kind}"] for kind in KINDS) < row["bytes_free"]
    assert written["worker"]["bytes_activations"] > 32 * 4 * 8 * 8 * (16 + 32)
    assert written["all"]["bytes_data"] == 3 * written["worker"]["bytes_data"]
    assert (written["fits"], written["remedy"]) == (True, None)


def test_what_is_printed_is_what_is_written(run_memory: Run, tmp_path: Path) -> None:
    code, out, _ = run_memory("--set", DATA, "--json", tmp_path / "memory.json")
    written = json.loads((tmp_path / "memory.json").read_text())
    title, header, *rows, note, held = out.partition("\n\n")[0].splitlines()
    assert code == 0
    assert title == f"small_cnn: {P:,} parameters, 2 servers, 3 workers, batch 32, exchange.zero = 1"
    assert header.split() == ["process", *KINDS, "total", "free"]
    for line, (name, key) in zip(rows, [("worker",) * 2, ("server",) * 2, ("all 5", "all")], strict=True):
        assert len(line) == len(header)
        assert line.startswith(f"{name} ")
        shown = [human_bytes(written[key][f"bytes_{kind}"]) for kind in (*KINDS, "total", "free")]
        assert line.removeprefix(name).split() == " ".join(shown).split()
    assert "not counted" in note
    # Parameters and momentum of half the model, twice.
    assert written["held_bytes"] == {"worker": 0, "server": 2 * 2 * 4 * P // 2}
    assert held.endswith(f"a worker 0 B, a server {human_bytes(8 * P)} (checkpoint.in_memory)")
    columns, *stages, note = out.partition("\n\n")[2].splitlines()
    assert columns.split() == ["largest", "batch", "of", "a", "worker", "recompute", "none", "recompute", "memory"]
    by_place = {(row["zero"], row["recompute"]): row["batch"] for row in written["largest_batches"]}
    assert [line.split()[-2:] for line in stages] == [
        [str(by_place[zero, "none"]), str(by_place[zero, "memory"])] for zero in range(4)
    ]
    assert "as it is" in stages[1]
    assert note.startswith("10 are all the samples")


def test_a_ring_has_workers_only(memory: Memory) -> None:
    code, written, _ = memory(of=("exchange.kind=ring", "optimizer.name=adam"))
    assert (code, written["servers"], written["server"]) == (0, 0, None)
    assert bytes_of(written["worker"]) == [4 * P, 4 * P, 8 * P, 0, 0]
    assert bytes_of(written["all"]) == [12 * P, 12 * P, 24 * P, 0, 0]


def test_a_job_file_and_the_number_of_workers(memory: Memory, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('[exchange]\nzero = 0\n[optimizer]\nname = "adamw"\n[cluster]\nservers = 1\n')
    code, written, _ = memory(str(tmp_path / "job.toml"), "--workers", "7")
    assert (code, written["zero"], written["workers"], written["servers"]) == (0, 0, 7, 1)
    assert bytes_of(written["worker"]) == [4 * P, 4 * P, 8 * P, 0, 0]
    assert bytes_of(written["server"])[:4] == [0, 4 * P, 0, 0]


@pytest.mark.parametrize(
    ("of", "worker", "server"),
    [
        (("compression.method=lags", "optimizer.momentum=0"), 1, 0),
        (("compression.method=lags", "optimizer.momentum=0.9"), 1, 0),
        (("compression.method=lags", "compression.momentum_at=workers"), 2, 0),
        (("compression.method=lags", "compression.momentum_at=servers", "compression.downlink=dense"), 1, 0),
        (("compression.method=dlgs", "compression.downlink=doublesqueeze"), 1, 2),
        (("compression.method=dlgs", "compression.downlink_value_type=int4"), 1, 1),
    ],
)
def test_residuals_are_counted(memory: Memory, of: tuple[str, ...], worker: int, server: int) -> None:
    _, written, _ = memory(of=of)
    assert written["worker"]["bytes_residuals"] == 4 * P * worker
    assert written["server"]["bytes_residuals"] == 2 * P * server


@pytest.mark.parametrize(("optimizer", "arrays"), [("sgd", 2), ("adamw", 3)])
def test_local_steps_keep_what_all_have_and_state_of_their_own(memory: Memory, optimizer: str, arrays: int) -> None:
    own = (f"optimizer.name={optimizer}", "exchange.local_steps=4")
    _, written, _ = memory(of=own)
    assert written["worker"]["bytes_optimizer"] == 4 * P * arrays
    assert written["server"]["bytes_optimizer"] == 0
    _, written, _ = memory(of=(*own, "exchange.outer_momentum=0.9"))
    assert written["server"]["bytes_optimizer"] == 2 * P


def test_stage_3_says_how_much_may_stay(memory: Memory) -> None:
    of = (*TINY, "exchange.zero=3")
    least = memory(of=of)[1]["worker"]
    room = least["bytes_total"] + 1000
    free = ("--free-worker", f"{room}B", "--free-server", "1GB")
    code, written, _ = memory(*free, of=of)
    most = written["most_live_bytes"]
    assert (code, most) == (0, least["bytes_parameters"] + 1000)
    code, written, _ = memory(*free, of=(*of, f"exchange.live_bytes={most}"))
    assert (code, written["worker"]["bytes_total"], written["most_live_bytes"]) == (0, room, most)
    code, written, errors = memory(*free, of=(*of, f"exchange.live_bytes={most + 1}"))
    assert (code, written["remedy"], written["most_live_bytes"]) == (2, "exchange.live_bytes = 0", None)
    assert "set exchange.live_bytes = 0" in errors
    assert memory(*free)[1]["most_live_bytes"] is None


def test_stages_2_and_3_hold_two_groups(memory: Memory) -> None:
    two = 4 * (SMALL_CNN[1] + SMALL_CNN[2])
    for zero, expected in (("2", [4 * P, two, 0, 0, 0]), ("3", [two, two, 0, 0, 0])):
        code, written, _ = memory(of=(*TINY, f"exchange.zero={zero}"))
        assert code == 0
        assert bytes_of(written["worker"]) == expected


@pytest.mark.parametrize(
    ("worker_states", "server_free", "remedy"),
    [
        (305_000, "1MB", "exchange.zero = 2"),
        (301_000, "0.001GB", "exchange.zero = 3"),
        (1_000_000, "90kB", "cluster.servers = 4"),
        (300_000, "90kB", "exchange.zero = 3 and cluster.servers = 4"),
    ],
)
def test_the_cheapest_remedy_is_named_and_works(
    memory: Memory, worker_states: int, server_free: str, remedy: str
) -> None:
    room = worker_states + beside(memory(of=TINY)[1])
    free = ("--free-worker", f"{room}B", "--free-server", server_free)
    code, written, errors = memory(*free, of=TINY)
    assert code == 2
    assert errors.startswith("error: a ")
    assert errors.endswith(f"; set {remedy}\n")
    assert len(errors.splitlines()) == 1
    assert (written["fits"], written["remedy"], written["all"]) == (False, remedy, None)
    code, written, errors = memory(*free, of=(*TINY, *remedy.replace(" = ", "=").split(" and ")))
    assert (code, errors) == (0, "")
    assert (written["fits"], written["remedy"]) == (True, None)


def test_computing_again_and_smaller_batches_are_remedies_too(memory: Memory) -> None:
    """States of stage 3 cannot be less; of cifar10_quick a batch of eight takes less when computed again."""
    of = ("model.name=cifar10_quick", "train.batch=8", "train.evaluate=false", "exchange.zero=3")
    plain, again = (memory(of=(*of, f"train.recompute={way}"))[1] for way in ("none", "memory"))
    states = sum(bytes_of(plain["worker"]))
    assert beside(again) < beside(plain)
    room = states + beside(again)
    free = ("--free-worker", f"{room}B", "--free-server", "1GB")
    code, written, errors = memory(*free, of=of)
    assert (code, written["remedy"]) == (2, "train.recompute = 'memory'")
    assert errors.endswith("; set train.recompute = 'memory'\n")
    assert memory(*free, of=(*of, "train.recompute='memory'"))[0] == 0
    free = ("--free-worker", f"{room - 100_000}B", "--free-server", "1GB")
    code, written, errors = memory(*free, of=of)
    batch = max(row["batch"] for row in written["largest_batches"] if (row["zero"], row["recompute"]) == (3, "none"))
    assert (code, written["remedy"]) == (2, f"train.batch = {batch}")
    assert 0 < batch < 8
    assert memory(*free, of=(*of, f"train.batch={batch}"))[0] == 0
    assert memory(*free, of=(*of, f"train.batch={batch + 1}"))[0] == 2


def test_the_largest_batches_fit_and_no_larger_ones(memory: Memory) -> None:
    states = memory(of=("train.evaluate=false",))[1]["worker"]["bytes_total"]
    free = ("--free-worker", f"{states}B", "--free-server", "20MB")
    samples = "data.name=synthetic:1x8x8:classes=10:samples=4096"
    rows = memory(*free, of=("train.evaluate=false", samples))[1]["largest_batches"]
    assert [(row["zero"], row["recompute"]) for row in rows] == [
        (zero, way) for zero in range(4) for way in ("none", "memory")
    ]
    for row in (rows[0], rows[-1]):
        of = ("train.evaluate=false", samples, f"exchange.zero={row['zero']}", f"train.recompute={row['recompute']}")
        for batch, code in ((row["batch"], 0), (row["batch"] + 1, 2)):
            assert memory(*free, of=(*of, f"train.batch={batch}"))[0] == code


def test_only_what_the_job_allows_is_in_the_table(memory: Memory) -> None:
    rows = memory(of=("train.precision=bf16",))[1]["largest_batches"]
    assert {row["zero"] for row in rows} == {2, 3}
    rows = memory(of=("train.recompute=spill", "exchange.kind=ring"))[1]["largest_batches"]
    assert {row["recompute"] for row in rows} == {"none", "memory", "spill"}
    rows = memory(of=("cluster.compute=sw26010", "model.name=cifar10_quick"))[1]["largest_batches"]
    assert {row["recompute"] for row in rows} == {"none", "memory"}


def test_the_papers_tables(run_memory: Run, tmp_path: Path) -> None:
    code, out, _ = run_memory("--table", "--json", tmp_path / "tables.json")
    assert code == 0
    first, second, third, fourth = (part.splitlines() for part in out.strip().split("\n\n"))
    assert first[0].startswith("table 1: GB")
    assert first[2].split() == ["1", *["120"] * 3, *["2048"] * 3, *["16000"] * 3]
    assert second[-1].split() == ["16", "1024", "32B", "121.6B", "230.4B", "2T"]
    written = json.loads((tmp_path / "tables.json").read_text())
    assert third[2].split() == ["1.5B", "48", "1600", "1", "60.4", "60", "5.0", "8", "-", "-"]
    assert fourth[-1].split() == ["Pos+g", "128", "13B", "27.4", "4.6", "15.1B"]
    assert {name: len(rows) for name, rows in written.items()} == {
        "table_1": 7,
        "table_2": 6,
        "activations": 4,
        "trained_alone": 3,
    }


@pytest.mark.parametrize(("size", "free"), [("700000B", 7e5), ("2.5MB", 2.5e6), ("4GB", 4e9), ("0.3TB", 3e11)])
def test_units_are_decimal(memory: Memory, size: str, free: float) -> None:
    _, written, _ = memory("--free-worker", size, "--free-server", "1GB")
    assert written["worker"]["bytes_free"] == free


def test_who_is_too_large_is_named(run_memory: Run, memory: Memory) -> None:
    tiny = [f"--set={item}" for item in (DATA, *TINY)]
    takes = 8 * P + beside(memory(of=TINY)[1])
    _, _, errors = run_memory(*tiny, "--free-worker", f"{takes - 1000}B", "--free-server", "1MB")
    assert f"a worker takes {human_bytes(takes)} where {human_bytes(takes - 1000)} are free" in errors
    _, _, errors = run_memory(*tiny, "--free-worker", "1MB", "--free-server", "20kB")
    assert "a server takes 165 kB where 20 kB are free" in errors


def test_nothing_helps(run_memory: Run) -> None:
    code, out, errors = run_memory("--set", DATA, "--free-worker", "1kB", "--free-server", "1GB")
    assert code == 2
    assert "no exchange.zero, train.recompute, train.batch or cluster.servers that the job allows helps" in errors
    assert out.splitlines()[2].startswith("worker ")


@pytest.mark.parametrize(
    "of",
    [
        ("exchange.kind=ring",),
        ("compression.method=lags",),
        ("exchange.transport=same-host",),
    ],
)
def test_no_remedy_is_named_that_the_job_does_not_allow(memory: Memory, of: tuple[str, ...]) -> None:
    """Whatever may be combined: each stage that would fit and is allowed is found, and no other."""
    free = ("--free-worker", f"{300_000 + beside(memory(of=(*TINY, *of))[1])}B", "--free-server", "1GB")
    code, written, _ = memory(*free, of=(*TINY, *of))
    assert code == 2
    allowed = []
    for zero in (1, 2, 3):
        try:
            load_job(None, parse_assignments((DATA, *TINY, *of, f"exchange.zero={zero}")))
        except ConfigError:
            continue
        code, _, _ = memory(*free, of=(*TINY, *of, f"exchange.zero={zero}"))
        allowed += [f"exchange.zero = {zero}"] if code == 0 else []
    assert written["remedy"] == (allowed[0] if allowed else None)


def test_on_one_machine_all_processes_share_what_is_free(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    together = 3 * (8 * P + beside(memory(of=TINY)[1])) + 2 * (4 * P + 3 * 4096)
    monkeypatch.setattr("taihu.cli.planning.memory.free_bytes", lambda: together)
    code, written, _ = memory(of=TINY)
    assert (code, written["all"]["bytes_total"], written["all"]["bytes_free"]) == (0, together, together)
    monkeypatch.setattr("taihu.cli.planning.memory.free_bytes", lambda: together - 1)
    code, written, errors = memory(of=TINY)
    assert code == 2
    took = human_bytes(together)
    assert f"all 5 processes together take {took} where {took} are free; set exchange.zero = 2" in errors
    # Whoever names a coordinator, or what is free, has other machines than this one in mind.
    elsewhere = "cluster.coordinator=10.0.0.1:7070"
    assert memory(of=(*TINY, elsewhere))[0] == 0
    code, written, _ = memory("--free-worker", "1GB", of=TINY)
    assert (code, written["all"], written["server"]["bytes_free"]) == (0, None, together - 1)
    code, written, _ = memory("--free-server", "1GB", of=TINY)
    assert (code, written["all"], written["worker"]["bytes_free"]) == (0, None, together - 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rate", "1gbit"], ["--rate"]),
        (["missing.toml"], ["missing.toml", "not found"]),
        (["--table", "--set", "cluster.workers=4"], ["--set", "not of a job"]),
        (["--table", "--free-worker", "4GB"], ["--free-worker", "not of a job"]),
        (["--free-worker", "lots"], ["--free-worker lots", "4GB"]),
        (["--free-server", "4"], ["--free-server 4:", "4GB"]),
        (["--set", DATA, "--set", "model.name=large_cnn"], ["large_cnn", "small_cnn"]),
        (["--set", "exchange.zero=4"], ["exchange.zero"]),
        (["--json", "nowhere/memory.json"], ["nowhere"]),
    ],
)
def test_a_mistake_is_one_line(run_memory: Run, arguments: list[str], words: list[str]) -> None:
    code, _, errors = run_memory(*arguments)
    assert code == 2
    assert errors.startswith("error: ")
    assert len(errors.splitlines()) == 1
    for word in words:
        assert word in errors, (word, errors)


LAYOUT = Layout(tuple(LayerSpec(f"l{i}", (TensorSpec("w", (n,)),)) for i, n in enumerate((3000, 500, 7, 1200))))


@pytest.mark.parametrize("optimizer", ["name=sgd momentum=0", "name=sgd momentum=0.9", "name=adam", "name=adamw"])
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_a_server_takes_what_its_arrays_take(optimizer: str, servers: int) -> None:
    """Against the arrays that the largest shard's optimizer really allocates."""
    assignments = [f"optimizer.{item}" for item in optimizer.split()] + [f"cluster.servers={servers}"]
    job = load_job(None, parse_assignments(assignments))
    arenas = [np.zeros(Shard(LAYOUT, servers, index).elements, dtype=np.float32) for index in range(servers)]
    optimizers = [OptimizerShard(job.server_optimizer, arena) for arena in arenas]
    use = server_memory(memory_job(job, LAYOUT))
    assert use.parameters == max(arena.nbytes for arena in arenas)
    assert use.optimizer == max(optimizer.state_bytes for optimizer in optimizers)


@pytest.mark.parametrize("zero", [1, 3])
@pytest.mark.parametrize(("optimizer", "arrays"), [("sgd", 1), ("adam", 2)])
@pytest.mark.parametrize("workers", [1, 3, 12])
def test_spread_layers_take_what_their_arrays_take(zero: int, optimizer: str, arrays: int, workers: int) -> None:
    """Against the columns of the worker that has the most; layers with too few columns stay whole."""
    settings = [f"optimizer.name={optimizer}", f"cluster.workers={workers}", f"exchange.zero={zero}"]
    whole = [*settings, "exchange.bucket_bytes=4096"]
    job = load_job(None, parse_assignments([*whole, "exchange.fc=shard"]))
    model = build_model("small_cnn", (8, 8, 1), 10)
    known = spreadable(model)
    assert known.names == ("fc1", "fc2")
    memory = memory_job(job, model.layout, known)
    spread = {1: (), 3: ("fc1", "fc2"), 12: ("fc1",)}[workers]
    if not spread:
        assert memory == memory_job(load_job(None, parse_assignments(whole)), model.layout, known)
        return
    hybrid = HybridModel(model, spread, rank=workers - 1, size=workers, copied=zero > 1)
    alone = replace(memory, spread_elements=(), copied_elements=0)
    assert memory.elements == hybrid.layout.elements
    copied = 4 * (650 if workers == 12 and zero > 1 else 0)
    extra, use = worker_memory(alone), worker_memory(memory)
    assert use.parameters - extra.parameters == hybrid.shards.nbytes + copied
    assert use.optimizer - extra.optimizer == arrays * hybrid.shards.nbytes
    assert use.gradients - extra.gradients == min(4096, 4 * 513 * -(-64 // workers)) + copied


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_alexnet_takes_less_with_spread_layers_and_zero_than_with_either(workers: int) -> None:
    """The usual bucket is larger than all of its convolutions: there it follows what is left to exchange."""
    model = build_model("alexnet", (227, 227, 3), 1000)
    known = spreadable(model)

    def planned(*settings: str) -> int:
        job = load_job(None, parse_assignments([f"cluster.workers={workers}", "optimizer.name=sgd", *settings]))
        return worker_memory(memory_job(job, model.layout, known)).total

    spread, divided = ("exchange.fc=shard",), ("exchange.zero=3", "train.precision=bf16")
    usual = "exchange.bucket_bytes=16777216"
    assert planned(*spread, *divided) < planned(*spread) < planned(*divided)
    assert planned(*spread) < planned(*spread, usual) < planned(*spread, *divided, usual)


@pytest.mark.parametrize(
    ("strategy", "groups"),
    [
        ("per-layer", [(0, 0), (1, 1), (2, 2), (3, 3)]),
        ("single", [(0, 0), (1, 3)]),
        ("bucket:12400B", [(0, 1), (2, 3)]),
        ("auto", [(0, 0), (1, 3)]),
    ],
)
def test_groups_are_the_jobs_up_to_a_bucket(strategy: str, groups: list[tuple[int, int]]) -> None:
    bucket = 14_000 if strategy.startswith("bucket") else 12_400
    job = load_job(None, {"exchange": {"plan": strategy, "bucket_bytes": bucket, "zero": 3}})
    memory = memory_job(job, LAYOUT)
    assert memory.groups == tuple(Group(*pair) for pair in groups)
    sizes = [sum(memory.layer_elements[first : last + 1]) for first, last in groups]
    assert worker_memory(memory).parameters == 4 * max(a + b for a, b in pairwise(sizes))


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


MEMINFO = {"proc/meminfo": "MemTotal:       4000 kB\nMemFree:        100 kB\nMemAvailable:   3000 kB\n"}
AVAILABLE = 3000 * 1024
V2 = {"proc/self/cgroup": "0::/jobs/mine\n"}
V1 = {"proc/self/cgroup": "5:cpu,cpuacct:/other\n4:hugetlb,memory:/jobs/mine\n0::/\n"}


def group_v2(path: str, limit: object, used: object, dropped: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup{path}"
    stat = f"anon 77\ninactive_file {dropped}\nactive_file 55\n"
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{used}\n",
        f"{folder}/memory.stat": stat,
    }


def group_v1(path: str, limit: object, used: object, dropped: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup/memory{path}"
    stat = f"inactive_file 0\ntotal_inactive_file {dropped}\n"
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{used}\n",
        f"{folder}/memory.stat": stat,
    }


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, AVAILABLE),
        ({**V2}, AVAILABLE),
        ({**V2, **group_v2("/jobs/mine", 50_000, 20_000)}, 30_000),
        ({**V2, **group_v2("/jobs/mine", 50_000, 20_000, dropped=5000)}, 35_000),
        ({**V2, **group_v2("/jobs/mine", "max", 20_000)}, AVAILABLE),
        ({**V2, **group_v2("/jobs/mine", 10**12, 20_000)}, AVAILABLE),
        ({**V2, **group_v2("/jobs/mine", 20_000, 30_000)}, 0),
        ({**V2, **group_v2("/jobs/mine", "max", 9), **group_v2("/jobs", 8000, 5000)}, 3000),
        ({**V2, **group_v2("", 8000, 1000)}, 7000),  # the host's path, seen from inside of a container
        ({**V2, **group_v2("/jobs/others", 10, 5)}, AVAILABLE),
        ({**V1, **group_v1("/jobs/mine", 50_000, 20_000, dropped=1)}, 30_001),
        ({**V1, **group_v1("/jobs/mine", 9223372036854771712, 20_000)}, AVAILABLE),
        ({**V1, **group_v1("", 50_000, 20_000)}, 30_000),
        ({**V1, **group_v1("/other", 10, 5)}, AVAILABLE),
    ],
)
def test_free_is_the_least_that_any_limit_leaves(tmp_path: Path, files: dict[str, str], free: int) -> None:
    write(tmp_path, {**MEMINFO, **files})
    assert free_bytes(tmp_path) == free


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 4 * AVAILABLE), st.integers(0, 2 * AVAILABLE)), min_size=1, max_size=4))
def test_every_group_above_counts(chain: list[tuple[int, int]]) -> None:
    paths = ["".join(f"/g{level}" for level in range(depth)) for depth in range(len(chain))]
    files = {**MEMINFO, "proc/self/cgroup": f"0::{paths[-1] or '/'}\n"}
    for path, (limit, used) in zip(paths, chain, strict=True):
        files |= group_v2(path, limit, used)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), files)
        assert free_bytes(Path(folder)) == max(0, min(AVAILABLE, *(limit - used for limit, used in chain)))


def test_this_machine_tells_what_is_free() -> None:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert 0 < free_bytes() < int(lines["MemTotal"].split()[0]) * 1024


@pytest.mark.parametrize("files", [{}, {"proc/meminfo": "MemTotal: 4000 kB\n"}])
def test_a_system_that_does_not_tell_is_named(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, files)
    with pytest.raises(ConfigError, match="give --free-worker and --free-server"):
        free_bytes(tmp_path)
