"""Daemons started by hand, as a launcher would: in any order, found by the environment, watched from outside."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from support.daemons import Start, free_port, listening, page, wait_for

Taihu = Callable[..., subprocess.CompletedProcess[str]]

QUICK = ("--set", "train.evaluate=false", "--set", "cluster.threads=1")
STEPS = ("--set", "train.steps=20", *QUICK)


def status(taihu: Taihu, folder: Path, address: str) -> dict[str, object]:
    done = taihu("status", address, "--json", "status.json", "--timeout", "30")
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads((folder / "status.json").read_text())
    return answer


def test_workers_may_start_before_servers_and_be_found_by_a_launchers_environment(
    start: Start, start_by_hand: Start, tmp_path: Path
) -> None:
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    world |= {"WORLD_SIZE": "2", "TAIHU_CLUSTER__SERVERS": "2", "TAIHU_RUN__DIR": "kept/{name}"}
    ways = (start_by_hand, start)
    workers = [
        ways[rank]("taihu.worker", *STEPS, "--json", f"{rank}.json", environment={**world, "RANK": str(rank)})
        for rank in (0, 1)
    ]
    servers = [
        ways[index]("taihu.ps_server", *STEPS, environment={**world, "DMLC_SERVER_ID": str(index)})
        for index in (1, 0)
    ]
    assert [process.wait(timeout=600) for process in (*workers, *servers)] == [0, 0, 0, 0]
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert results[0]["parameters_sha256"] == results[1]["parameters_sha256"]
    assert results[0]["steps"] == 20
    # Worker 0 alone keeps what stays.
    (folder,) = (tmp_path / "kept").iterdir()
    assert folder.name == "small_cnn-on-digits"
    assert json.loads((folder / "results.json").read_text()) == results[0]
    assert len((folder / "steps.csv").read_text().splitlines()) == 1 + 20
    assert {path.name for path in folder.iterdir()} == {
        *("job.toml", "settings.toml", "steps.csv", "events.jsonl", "results.json", "model.safetensors"),
    }


def test_a_run_can_be_watched_from_outside(start: Start, taihu: Taihu, tmp_path: Path) -> None:
    flags: tuple[str, ...] = ("--servers", "1", "--workers", "1", "--set", "train.steps=1000000", *QUICK)
    flags += ("--set", "cluster.reflection=true")
    server = start("taihu.ps_server", *flags, "--bind", "127.0.0.1:0")
    address, server_metrics = listening(server)
    assert status(taihu, tmp_path, address)["state"] == "waiting"
    worker_metrics = free_port()
    found = ("--rank", "0", "--coordinator", address, "--metrics-port", str(worker_metrics))
    worker = start("taihu.worker", *flags, *found, "--run-dir", "kept")
    wait_for(lambda: value(page(worker_metrics), "taihu_step") > 5, "the worker made no steps")
    assert status(taihu, tmp_path, address)["state"] == "running"
    wait_for(lambda: value(page(server_metrics), "taihu_step") > 0, "the server does not tell of steps")
    shown = page(server_metrics)
    assert value(shown, "taihu_received_bytes_total") > 0
    assert value(shown, "taihu_state_bytes") > 0
    assert value(shown, "taihu_connected_workers") == 1
    assert value(page(worker_metrics), "taihu_wait_seconds_count") > 0
    for port in (server_metrics, worker_metrics):
        assert [page(port, path) for path in ("/healthz", "/readyz")] == ["ok\n", "ok\n"]
    with grpc.insecure_channel(address) as channel:
        for service in ("", "taihu.v1.ParameterServerService", "taihu.v1.CoordinatorService"):
            request = health_pb2.HealthCheckRequest(service=service)
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                health_pb2.HealthCheckRequest.SerializeToString,
                health_pb2.HealthCheckResponse.FromString,
            )
            answer = check(request, timeout=600)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        listing = reflection_pb2.ServerReflectionRequest(list_services="")
        info = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        names = {s.name for r in info(iter([listing])) for s in r.list_services_response.service}
        assert "taihu.v1.ParameterServerService" in names
    # Whoever is asked to stop, as a container is: all end in order, and what there is stays.
    worker.terminate()
    assert [process.wait(timeout=600) for process in (worker, server)] == [130, 130]
    kept = tmp_path / "kept"
    steps = json.loads((kept / "results.json").read_text())["steps"]
    assert 5 < steps < 1_000_000
    assert len((kept / "steps.csv").read_text().splitlines()) == 1 + steps
    assert (kept / "model.safetensors").is_file()


def value(text: str, name: str) -> float:
    """Of the metric; nan, which is not above anything, while it is not told."""
    line = next((line for line in text.splitlines() if line.startswith(f"{name}{{")), "nan")
    return float(line.rpartition(" ")[2])
