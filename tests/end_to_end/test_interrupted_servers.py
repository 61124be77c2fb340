"""A server that is asked to end while others wait for it: it ends at once, and they are told why."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest
from support.cluster import Member, layout_of, make_job
from support.daemons import Process, Start, listening, ring_address, wait_for

from taihu.core.base.errors import RunError
from taihu.core.coordination.client.client import CoordinatorClient
from taihu.core.coordination.membership.members import MemberId, Role
from taihu.core.coordination.status import fetch_status
from taihu.core.job import Job, job_to_toml
from taihu.protos import coordinator_pb2
from taihu.protos import parameter_server_pb2 as pb
from taihu.protos.coordinator_pb2_grpc import CoordinatorServiceStub

LAYOUT = layout_of(8)


def start_servers(start: Start, folder: Path, job: Job, indices: tuple[int, ...]) -> tuple[Job, list[Process]]:
    """The job with its coordinator's address, and its servers."""
    servers = []
    for index in indices:
        (folder / "job.toml").write_text(job_to_toml(job))
        server = start("taihu.ps_server", "job.toml", "--index", str(index), "--bind", "127.0.0.1:0")
        address, _ = listening(server)
        if index == 0:
            cluster = job.cluster.model_copy(update={"coordinator": address})
            job = job.model_copy(update={"cluster": cluster})
        servers.append(server)
    return job, servers


def wait_for_members(job: Job, count: int) -> None:
    coordinator = job.cluster.coordinator
    assert coordinator is not None
    wait_for(lambda: len(fetch_status(coordinator, 120).members) >= count, f"there are no {count} members")


def test_a_worker_whose_join_is_held_is_told(start: Start, tmp_path: Path) -> None:
    job, (server,) = start_servers(start, tmp_path, make_job(2, 1), (0,))
    assert job.cluster.coordinator is not None
    with (
        CoordinatorClient.at(job.cluster.coordinator, job, MemberId(Role.WORKER, 0), 1) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        joined = pool.submit(client.join, layout=LAYOUT)
        wait_for_members(job, 2)
        server.terminate()
        with pytest.raises(RunError, match=r"^server 0: interrupted by SIGTERM$"):
            joined.result()
        assert server.wait(timeout=600) == 130


@pytest.mark.parametrize("kind", ["server", "ring"])
def test_a_worker_that_is_interrupted_while_its_join_is_held_is_not_waited_for(
    start: Start, tmp_path: Path, kind: str
) -> None:
    job = make_job(2, 3, exchange={"kind": kind})
    if kind == "server":
        job, (first,) = start_servers(start, tmp_path, job, (0,))
    else:
        (tmp_path / "job.toml").write_text(job_to_toml(job))
        first = start("taihu.worker", "job.toml", "--rank", "0", "--bind", "127.0.0.1:0")
        coordinator = ring_address(first)
        job = job.model_copy(update={"cluster": job.cluster.model_copy(update={"coordinator": coordinator})})
        (tmp_path / "job.toml").write_text(job_to_toml(job))
    wait_for_members(job, 1)
    (tmp_path / "job.toml").write_text(job_to_toml(job))
    held = start("taihu.worker", "job.toml", "--rank", "1")
    wait_for_members(job, 2)
    held.terminate()
    assert held.wait(timeout=600) == 130
    assert first.wait(timeout=600) == 1
    assert (tmp_path / "0.log").read_text().splitlines()[-1] == "error: worker 1: interrupted by SIGTERM"


def test_a_worker_that_waits_for_initial_parameters_is_told(start: Start, tmp_path: Path) -> None:
    job, (server,) = start_servers(start, tmp_path, make_job(1, 2), (0,))
    with Member(job, 1, LAYOUT) as waiting, grpc.insecure_channel(waiting.addresses[0]) as channel:
        fetch: grpc.UnaryStreamMultiCallable[pb.FetchRequest, bytes] = channel.unary_stream(
            "/taihu.v1.ParameterServerService/Fetch", pb.FetchRequest.SerializeToString
        )
        life = waiting.identity.incarnation
        call = fetch(
            pb.FetchRequest(job=job.name, rank=1, incarnation=life, layout_digest=LAYOUT.digest), timeout=600
        )
        # Calls of one channel arrive in order: when this one has been answered, the other is there.
        CoordinatorServiceStub(channel).GetStatus(coordinator_pb2.GetStatusRequest(), timeout=600)
        server.terminate()
        with pytest.raises(grpc.RpcError, match="server 0: interrupted by SIGTERM"):
            list(call)
        assert server.wait(timeout=600) == 130


@pytest.mark.parametrize("index", [0, 1])
def test_workers_in_a_step_are_told_and_the_other_server_ends(start: Start, tmp_path: Path, index: int) -> None:
    job, servers = start_servers(start, tmp_path, make_job(2, 2), (0, 1))
    wait_for_members(job, 2)
    with ExitStack() as stack:
        first, second = (stack.enter_context(Member(job, rank, LAYOUT)) for rank in range(2))
        first.exchange.start()
        second.exchange.start()
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(second.step, 1, np.ones(8, dtype=np.float32))
            first.step(1, np.ones(8, dtype=np.float32))
            other.result()
        servers[index].terminate()
        with pytest.raises(RunError, match=rf"^server {index}: interrupted by SIGTERM$"):
            first.step(2, np.ones(8, dtype=np.float32))
    assert [server.wait(timeout=600) for server in servers] == [130 if i == index else 1 for i in range(2)]
    assert (tmp_path / f"{1 - index}.log").read_text().splitlines()[-1] == (
        f"error: server {index}: interrupted by SIGTERM"
    )


def test_a_server_is_interrupted_before_anyone_else_has_joined(start: Start, tmp_path: Path) -> None:
    job, servers = start_servers(start, tmp_path, make_job(2, 1), (0, 1))
    wait_for_members(job, 2)
    servers[1].terminate()
    assert [server.wait(timeout=600) for server in servers] == [1, 130]
    assert (tmp_path / "0.log").read_text().splitlines()[-1] == "error: server 1: interrupted by SIGTERM"
