"""Benches between processes: what they refuse before anything starts, and what they hand on."""

from __future__ import annotations

import pytest

from taihu.cli.bench.allreduce import allreduce
from taihu.cli.bench.exchange import bench_job, exchange
from taihu.cli.bench.ranks import assignments_of
from taihu.core.base.errors import ConfigError

CLUSTER: dict[str, object] = {"servers": 1, "workers": 3, "coordinator": "10.0.0.1:7070"}


@pytest.mark.parametrize("key", ["compression.method=dlgs", "train.seed=3", "exchange.zero=2", "optimizer.name=adam"])
def test_an_allreduce_has_no_use_for_what_is_set_of_steps(key: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^{key.partition('=')[0]}: bench allreduce makes no use of it.*leave it out$"
    ):
        allreduce(assignments=[key])


@pytest.mark.parametrize(
    ("against", "assignments", "words"),
    [
        ("gloo", [], "^--against gloo: expected grpc, tcp, or grpc,tcp$"),
        ("grpc,grpc", [], "^--against grpc,grpc: expected"),
        ("grpc", [], "^--against grpc: values lie in shared memory here; add --set exchange.transport=tcp$"),
    ],
)
def test_carriers_that_cannot_take_turns_are_refused(against: str, assignments: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        exchange(against=against, assignments=assignments)


@pytest.mark.parametrize(
    "assignments",
    [
        [],
        ["compression.method=topk", "compression.density=0.001", "compression.value_type=bf16"],
        ["train.precision=fp16", "train.loss_scale=256", "exchange.zero=3", "exchange.plan=per-layer"],
        ["exchange.kind=ring", "optimizer.name=adam", "optimizer.clip_norm=1.5", "cluster.heartbeat_s=0.1"],
    ],
)
def test_every_process_gets_all_that_was_set(assignments: list[str]) -> None:
    job = bench_job(assignments, CLUSTER)
    handed_on = [word.removeprefix("--set=") for word in assignments_of(job)]
    assert bench_job(handed_on, CLUSTER).shared_settings == job.shared_settings
    assert not any("coordinator" in word or "cluster.workers" in word for word in handed_on)


def test_every_process_gets_the_way_to_its_certificate() -> None:
    shown = {"ca": "/c/ca.pem", "certificate": "/c/{member}.pem", "key": "/c/{member}-key.pem"}
    job = bench_job([f"security.{key}={value}" for key, value in shown.items()], CLUSTER)
    handed_on = bench_job([word.removeprefix("--set=") for word in assignments_of(job)], CLUSTER)
    assert handed_on.security == job.security


def test_a_bench_merges_layers_by_4_mb_unless_it_cannot() -> None:
    assert bench_job([], CLUSTER).exchange.plan == "bucket:4MB"
    assert bench_job(["exchange.plan=single"], CLUSTER).exchange.plan == "single"
    assert bench_job([], CLUSTER, plan="per-layer").exchange.plan == "per-layer"
    assert bench_job(["exchange.plan=single"], CLUSTER, plan="per-layer").exchange.plan == "single"
    assert bench_job(["compression.method=topk"], CLUSTER).exchange.plan == "auto"
