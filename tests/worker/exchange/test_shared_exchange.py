"""Workers and servers of one machine exchange values in memory that they share, and fall back to messages."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from support.cluster import Cluster, Member, Values, initial_parameters, layout_of, make_job, momentum_sgd

from taihu.core.wire.links.shared_memory import SharedBuffer, SharedDescriptor, buffer_to_message
from taihu.protos import parameter_server_pb2 as pb
from taihu.worker.memory.arenas import Arenas, allocate_arenas

LAYOUT = layout_of(1, 700, 3, 4096, 2500, 2)


def gradients(rank: int, step: int) -> Values:
    return np.random.default_rng([rank, step]).standard_normal(LAYOUT.elements, dtype=np.float32)


def names_of_this_process() -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"taihu-*-{os.getpid()}-*")]  # noqa: S108 - only looked at


def share(member: Member, descriptor: SharedDescriptor, job: str = "taihu") -> pb.ShareResponse:
    """The server's answer to an offer of other memory than the worker's."""
    with grpc.insecure_channel(member.addresses[0]) as channel:
        call = channel.unary_unary(
            "/taihu.v1.ParameterServerService/Share",
            pb.ShareRequest.SerializeToString,
            pb.ShareResponse.FromString,
        )
        request = pb.ShareRequest(job=job, rank=0, incarnation=1000, gradients=buffer_to_message(descriptor))
        response: pb.ShareResponse = call(request, timeout=120)
    return response


def test_workers_that_share_and_workers_that_do_not_end_with_the_same_bits() -> None:
    job = make_job(2, 3, exchange={"plan": "bucket:5kB", "frame_bytes": 4096, "transport": "auto"})
    ends: dict[int, Values] = {}

    def work(member: Member) -> None:
        assert member.exchange.path == ("tcp" if member.rank == 1 else "same-host")
        for step in range(1, 5):
            ends[member.rank] = member.step(step, gradients(member.rank, step))

    def arenas_of(rank: int) -> Arenas:
        return allocate_arenas(LAYOUT.elements, shared=rank != 1)

    with Cluster(job) as cluster:
        cluster.run(LAYOUT, work, arenas_of)
    steps = [[gradients(rank, step) for rank in range(3)] for step in range(1, 5)]
    expected = momentum_sgd(initial_parameters(LAYOUT), steps, rate=0.05, momentum=0.9)
    np.testing.assert_allclose(ends[0], expected, rtol=1e-5, atol=1e-6)
    assert {end.tobytes() for end in ends.values()} == {ends[0].tobytes()}


def test_names_are_gone_when_the_exchange_begins() -> None:
    def work(member: Member) -> None:
        member.step(1, gradients(member.rank, 1))
        assert names_of_this_process() == []

    with Cluster(make_job(2, 2, exchange={"transport": "same-host"})) as cluster:
        cluster.run(LAYOUT, work)


def test_names_are_gone_when_the_run_fails_before_the_exchange() -> None:
    job = make_job(1, 2, exchange={"transport": "same-host"})
    with Cluster(job) as cluster:
        with cluster.member(0, LAYOUT) as member:
            member.exchange.start()
            assert len(names_of_this_process()) == 1  # the server's, for worker 1
            member.client.finish(failure="out of paper")
        cluster.join()
        assert names_of_this_process() == []


@pytest.mark.parametrize("wrong", ["boot_id", "path", "token"])
def test_memory_that_is_not_what_it_is_said_to_be_is_not_shared(wrong: str) -> None:
    job = make_job(1, 1, exchange={"transport": "auto"})
    with (
        Cluster(job) as cluster,
        cluster.member(0, LAYOUT) as member,
        SharedBuffer.create(LAYOUT.elements * 4) as buffer,
    ):
        member.exchange.start()
        right = buffer.descriptor
        other: dict[str, object] = {
            "boot_id": "another",
            "path": right.path + "0",
            "token": bytes(16),
        }
        assert share(member, right).HasField("parameters")
        assert not share(member, replace(right, **{wrong: other[wrong]})).HasField("parameters")  # type: ignore[arg-type]
        member.step(1, gradients(0, 1))


def test_nothing_is_shared_with_another_job() -> None:
    job = make_job(1, 1, exchange={"transport": "auto"})
    with (
        Cluster(job) as cluster,
        cluster.member(0, LAYOUT) as member,
        SharedBuffer.create(LAYOUT.elements * 4) as buffer,
    ):
        member.exchange.start()
        with pytest.raises(grpc.RpcError, match="worker 0 belongs to job 'other'"):
            share(member, buffer.descriptor, job="other")


def test_nothing_is_shared_before_there_are_parameters() -> None:
    job = make_job(1, 1, exchange={"transport": "auto"})
    with (
        Cluster(job) as cluster,
        cluster.member(0, LAYOUT) as member,
        SharedBuffer.create(LAYOUT.elements * 4) as buffer,
        pytest.raises(grpc.RpcError, match="no parameters yet"),
    ):
        share(member, buffer.descriptor)
