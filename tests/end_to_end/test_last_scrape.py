"""The end of a run can be seen after it: by metrics that linger, and by servers that hold."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from prometheus_client.parser import text_string_to_metric_families
from support.daemons import Process, Start, free_port, listening, page, wait_for

from taihu.core.process.memory.limit import memory_limit_bytes

FLAGS = ("--servers", "1", "--workers", "1", "--set", "train.evaluate=false", "--set", "cluster.threads=1")
PARAMETER_SERVER = "taihu.v1.ParameterServerService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def health(address: str, service: str) -> int | None:
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        try:
            status: int = check(health_pb2.HealthCheckRequest(service=service), timeout=5).status
        except grpc.RpcError:
            return None
    return status


def samples(port: int) -> dict[tuple[str, str], float]:
    """Values by name, and by the label that tells states or members apart."""
    found = {}
    for family in text_string_to_metric_families(page(port)):
        for sample in family.samples:
            found[sample.name, sample.labels.get("state", sample.labels.get("member", ""))] = sample.value
    return found


def run(start: Start, steps: int, settings: tuple[str, ...], *options: str) -> tuple[Process, str, int, Process, str]:
    """A server that has `options` too, its address and metrics port; a worker and its address."""
    flags = (*FLAGS, "--set", f"train.steps={steps}", *settings)
    server = start("taihu.ps_server", *flags, "--bind", "127.0.0.1:0", *options)
    address, port = listening(server)
    own = f"127.0.0.1:{free_port()}"
    worker = start("taihu.worker", *flags, "--rank", "0", "--coordinator", address, "--bind", own)
    return server, address, port, worker, own


def test_a_server_that_holds_is_healthy_not_ready_and_ends_well_when_told(start: Start) -> None:
    server, address, port, worker, own = run(start, 40, (), "--hold")
    wait_for(lambda: health(own, "") == SERVING, "the worker does not say that it lives")
    wait_for(lambda: health(address, PARAMETER_SERVER) == NOT_SERVING, "the run did not end")
    assert worker.wait(timeout=600) == 0
    assert health(address, "") == SERVING
    seen = samples(port)
    assert seen["taihu_run_state", "finished"] == 1
    assert seen["taihu_run_state", "running"] == 0
    assert seen["taihu_missing_members", ""] == 0
    assert seen["taihu_member_lost", "worker 0"] == 0
    assert seen["taihu_member_step", "worker 0"] == 40
    assert server.poll() is None
    server.terminate()
    assert server.wait(timeout=600) == 0


def test_who_was_lost_can_be_scraped_after_the_run_has_failed(start: Start) -> None:
    soon = ("--set", "cluster.lost_after_s=5")
    server, address, port, worker, _ = run(start, 1_000_000, soon, "--linger", "600", "--hold")
    wait_for(lambda: samples(port).get(("taihu_member_step", "worker 0"), 0) > 3, "no steps")
    assert samples(port)["taihu_run_state", "running"] == 1
    worker.kill()
    wait_for(lambda: samples(port)["taihu_member_lost", "worker 0"] == 1, "nobody is missed")
    wait_for(lambda: samples(port)["taihu_run_state", "failed"] == 1, "the run did not fail")
    wait_for(lambda: health(address, PARAMETER_SERVER) == NOT_SERVING, "still ready")
    assert server.poll() is None
    server.terminate()
    assert server.wait(timeout=600) == 1


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"memory.max": "max\n"}, None),
        ({"memory.max": "1048576\n"}, 1 << 20),
        ({"memory/memory.limit_in_bytes": "2097152\n"}, 2 << 20),
        ({"memory/memory.limit_in_bytes": f"{2**63 - 4096}\n"}, None),
    ],
)
def test_the_memory_limit_is_the_control_groups(files: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    machine = memory_limit_bytes(tmp_path / "nowhere")
    assert machine > 1 << 28
    assert memory_limit_bytes(tmp_path) == (machine if expected is None else expected)
