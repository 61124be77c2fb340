"""A run beside connections that say nothing, and calls that nobody can read: it ends as it would without them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from support.certificates import MEMBERS, TestAuthority
from support.cluster import Cluster, Member, layout_of, make_job
from support.worker import Values

from benchmarks.exchange.idle_connections import Strangers
from benchmarks.inputs.strangers.calls import streams, undecodable
from benchmarks.inputs.strangers.target import Target
from taihu.core.job import Job
from taihu.core.security.identity import COORDINATOR, dns_name
from taihu.core.wire.base.address import free_port, split_address
from taihu.ps_server.daemon import ServerOptions

LAYOUT = layout_of(3000, 500)
STEPS = 5
CONNECTIONS = 100


def gradients(rank: int, step: int) -> Values:
    return np.random.default_rng([rank, step]).standard_normal(LAYOUT.elements, dtype=np.float32)


def ends(cluster: Cluster) -> list[bytes]:
    """The parameters of both workers after all steps."""
    found = {}

    def work(member: Member) -> None:
        for step in range(1, STEPS + 1):
            found[member.rank] = member.step(step, gradients(member.rank, step)).tobytes()

    cluster.run(LAYOUT, work)
    return [found[rank] for rank in range(2)]


class WithPage(Cluster):
    """A cluster whose server listens for direct connections at a known port, and serves its metrics."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.direct_port = free_port("127.0.0.1")

    def options(self, index: int) -> ServerOptions:
        return ServerOptions(index, bind="127.0.0.1:0", direct_port=self.direct_port, metrics_port=0)

    @property
    def ports(self) -> list[int]:
        metrics = self.servers[0].metrics_port
        assert metrics is not None
        return [split_address(self.servers[0].address)[1], self.direct_port, metrics]


def test_a_run_beside_connections_that_say_nothing_ends_as_without_them() -> None:
    job = make_job(1, 2)
    with Cluster(job) as alone:
        expected = ends(alone)
        alone.join()
    with WithPage(job) as cluster, Strangers(cluster.ports, CONNECTIONS) as strangers:
        assert strangers.connected == CONNECTIONS
        assert ends(cluster) == expected
        cluster.join()
    assert expected[0] == expected[1]


def test_a_run_beside_calls_that_nobody_can_read_ends_as_without_them(tmp_path: Path) -> None:
    """In plain text, and by somebody with a certificate; `python -m benchmarks strangers` is the long form."""
    with Cluster(make_job(1, 2)) as alone:
        expected = ends(alone)
        alone.join()
    ours = TestAuthority(tmp_path)
    for place in MEMBERS:
        ours.sign(place)
    for settings, files in ({}, None), (dict(ours.settings()), ours.files("worker/0")):
        job = make_job(1, 2, security=settings, exchange={"transport": "grpc"})
        with Cluster(job) as cluster, ThreadPoolExecutor(2) as pool:
            target = Target(cluster.servers[0].address, files, dns_name(COORDINATOR, "taihu"))
            strangers = [pool.submit(kind, target, 120) for kind in (undecodable, streams)]
            assert ends(cluster) == expected
            for each in strangers:
                assert each.result().keys() <= {"INVALID_ARGUMENT", "PERMISSION_DENIED", "UNAVAILABLE", "OK"}
            cluster.join()
