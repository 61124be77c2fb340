"""The bench of the exchange: it measures what its job says, by every way, and says what that was."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.certificates import MEMBERS, TestAuthority
from support.cluster import Cluster, layout_of

from taihu.cli.bench.exchange import bench_job
from taihu.core.base.errors import ConfigError
from taihu.core.job import Job
from taihu.core.wire.base.address import free_port
from taihu.core.wire.frames.headers import BYTES_PER_VALUE
from taihu.worker.bench.exchange import Rounds, exchange_rounds
from taihu.worker.bench.gradients import DrawnGradients

LAYOUT = layout_of(3000, 40_000, 7, 20_000)
CLUSTER: dict[str, object] = {"servers": 2, "workers": 2}


def measure(assignments: list[str], rounds: Rounds) -> dict[str, Any]:
    """The results of worker 0, all processes being threads of this one."""
    job = bench_job(["cluster.heartbeat_s=0.1", *assignments], CLUSTER)
    with ExitStack() as stack, ThreadPoolExecutor(job.cluster.workers) as pool:
        job = stack.enter_context(Cluster(job)).job if job.servers else at_free_port(job)
        workers = [pool.submit(exchange_rounds, job, rank, LAYOUT, rounds) for rank in range(job.cluster.workers)]
        results = [worker.result(timeout=120) for worker in workers]
    return results[0]


def at_free_port(job: Job) -> Job:
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    return job.model_copy(update={"cluster": job.cluster.model_copy(update={"coordinator": address})})


# What is set, what is said of it, and the bytes that go up and down in a round, of those of all values in fp32.
WAYS: dict[str, tuple[list[str], dict[str, object], tuple[float, float]]] = {
    "dense": (["exchange.transport=grpc"], {"path": "grpc", "zero": 1, "kind": "server"}, (1, 1)),
    "bf16": (["train.precision=bf16", "exchange.transport=grpc"], {"precision": "bf16", "zero": 2}, (0.5, 0.5)),
    "fetched": (
        ["exchange.zero=3", "exchange.transport=tcp", "exchange.plan=per-layer"],
        {"zero": 3, "path": "tcp"},
        # The last two layers in backward order, of which forward reads first, do not stay until backward.
        (1, 1 + 20_007 / LAYOUT.elements),
    ),
    "fp16": (
        ["train.precision=fp16", "exchange.transport=grpc"],
        {"precision": "fp16", "skipped_rounds": 0},
        (0.5, 0.5),
    ),
    "ring": (["exchange.kind=ring", "exchange.transport=grpc"], {"kind": "ring", "path": "grpc"}, (1, 1)),
    "dlgs": (
        ["compression.method=dlgs", "compression.density=0.05", "compression.downlink=dense"],
        {"compression": "dlgs", "density": 0.05, "downlink": "dense"},
        (0.06, 1),
    ),
    "topk, ring": (
        ["compression.method=topk", "compression.density=0.05", "exchange.kind=ring"],
        {"compression": "topk", "kind": "ring", "rounds_with_exact_thresholds": 3},
        (0.06, 0.06),
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_every_setting_is_measured(name: str) -> None:
    assignments, said, (up, down) = WAYS[name]
    results = measure(assignments, Rounds(3, 1))
    assert {key: results[key] for key in said} == said
    assert len(results["all_seconds"]["own"]) == 3
    size = LAYOUT.elements * BYTES_PER_VALUE
    moved = [results[f"bytes_{way}_per_round"] / size for way in ("sent", "received")]
    assert moved == pytest.approx([up, down], rel=0.2)
    assert (results["selected_ratio"] == 1.0) == (results["compression"] == "none")


def test_sums_over_a_workers_own_gradients_do_not_grow_from_round_to_round() -> None:
    """Doubled by each of 150 rounds they would be infinite, which ends a run."""
    results = measure(["exchange.kind=ring", "exchange.transport=grpc", "exchange.plan=single"], Rounds(150, 1))
    assert len(results["all_seconds"]["own"]) == 150


def test_rounds_go_under_tls(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    for place in (*MEMBERS, "server/1"):
        authority.sign(place)
    shown = [f"security.{key}={value}" for key, value in authority.settings().items()]
    job = bench_job([*shown, "exchange.transport=grpc", "cluster.heartbeat_s=0.1"], CLUSTER)
    with Cluster(job) as cluster, ThreadPoolExecutor(2) as pool:
        workers = [pool.submit(exchange_rounds, cluster.job, rank, LAYOUT, Rounds(2, 1)) for rank in range(2)]
        assert [worker.result(timeout=120)["path"] for worker in workers] == ["grpc", "grpc"]
        for index, server in enumerate(cluster.servers):
            labels = {"role": "server", "rank": str(index)}
            assert server.metrics.registry.get_sample_value("taihu_tls_handshakes_total", labels)


def test_carriers_take_turns() -> None:
    results = measure(["exchange.transport=grpc"], Rounds(6, 1, ("grpc", "tcp")))
    assert results["path"] == "grpc"
    assert {name: len(seconds) for name, seconds in results["all_seconds"].items()} == {"own": 6, "grpc": 6, "tcp": 6}
    assert {"grpc_seconds", "tcp_seconds"} <= results.keys()
    # Bytes are those of the job's own rounds.
    assert results["bytes_sent_per_round"] == pytest.approx(LAYOUT.elements * BYTES_PER_VALUE, rel=0.02)


@pytest.mark.parametrize(
    ("assignment", "key"),
    [
        ("train.batch=3", "train.batch"),
        ("model.name=alexnet", "model.name"),
        ("exchange.fc=shard", "exchange.fc"),
        ("optimizer.schedule=cosine", "optimizer.schedule"),
        ("exchange.plan=exact", "exchange.plan 'exact'"),
    ],
)
def test_what_has_no_part_in_it_is_refused(assignment: str, key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: ") as caught:
        bench_job([assignment], CLUSTER)
    assert "\n" not in str(caught.value)


def test_drawn_gradients_are_like_those_of_a_training() -> None:
    drawn = DrawnGradients(layout_of(50_000, 50_000), (3, 0))
    layers = drawn.values[:50_000].astype(np.float64), drawn.values[50_000:].astype(np.float64)
    for layer in layers:
        # Of a double exponential distribution of scale b: mean 0, mean magnitude b, variance 2 b^2.
        scale = np.abs(layer).mean()
        assert abs(layer.mean()) < 0.03 * scale
        assert layer.var() == pytest.approx(2 * scale**2, rel=0.05)
    scales = [np.abs(layer).mean() for layer in layers]
    assert max(scales) > 1.1 * min(scales)
    other = DrawnGradients(layout_of(50_000, 50_000), (3, 1)).values
    assert np.abs(other[:50_000]).mean() == pytest.approx(scales[0], rel=0.03)
    assert not np.array_equal(other, drawn.values)


def test_every_round_draws_the_values_of_each_layer_anew() -> None:
    drawn = DrawnGradients(layout_of(500, 1, 300), (1, 0))
    rounds = np.empty((3, 801), dtype=np.float32)
    for values in rounds:
        drawn.draw(values)
    for start, stop in ((0, 500), (500, 501), (501, 801)):
        for values in rounds:
            assert sorted(values[start:stop]) == sorted(drawn.values[start:stop])
    assert len({values.tobytes() for values in rounds}) == 3
