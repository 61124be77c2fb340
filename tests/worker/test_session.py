"""A worker's part in a run, from joining to its end."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.cluster import Cluster, Member, initial_parameters, layout_of, make_job

from taihu.core.base.errors import RunError, TaihuError
from taihu.worker.exchange.session import Exchanged, Reporting, take_part
from taihu.worker.memory.arenas import Arenas, allocate_arenas

LAYOUT = layout_of(8, 3)


def exchanged() -> Exchanged:
    return Exchanged(LAYOUT, Arenas(initial_parameters(LAYOUT), np.ones(LAYOUT.elements, dtype=np.float32)))


def test_a_worker_that_fails_for_any_reason_tells_the_others_what_it_was() -> None:
    with Cluster(make_job(1, 2)) as cluster, ThreadPoolExecutor(1) as pool:

        def survive() -> None:
            with take_part(cluster.job, 0, exchanged(), Reporting()) as session:
                session.exchange.begin(1)
                session.exchange.push(0)
                session.exchange.wait(0)

        survivor = pool.submit(survive)
        with (
            pytest.raises(ZeroDivisionError, match=r"^out of paper$"),
            take_part(cluster.job, 1, exchanged(), Reporting()),
        ):
            raise ZeroDivisionError("out of paper")
        with pytest.raises(RunError, match=r"^worker 1: out of paper$"):
            survivor.result(timeout=120)
        cluster.join()
        assert str(cluster.outcomes[0]) == "worker 1: out of paper"


@pytest.mark.parametrize("kind", ["server", "ring"])
def test_shared_memory_of_an_exchange_that_never_starts_has_no_name_left(kind: str) -> None:
    """Nobody answers where the coordinator should be."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        cluster = {"coordinator": f"127.0.0.1:{nobody.getsockname()[1]}", "connect_timeout_s": 0.2}
        job = make_job(1, 2, cluster=cluster, exchange={"kind": kind})
        arenas = allocate_arenas(LAYOUT.elements, shared=True)
        assert arenas.shared is not None
        name = Path(arenas.shared.descriptor.path)
        assert name.exists()
        with (
            pytest.raises(TaihuError, match=r"127\.0\.0\.1"),
            take_part(job, 1, Exchanged(LAYOUT, arenas), Reporting()),
        ):
            raise AssertionError("nobody was there")
        assert not name.exists()


def test_the_time_of_updates_counts_complete_sums_alone() -> None:
    layout = layout_of(2000, 500)
    job = make_job(1, 3, exchange={"plan": "per-layer", "frame_bytes": 4096})

    def work(member: Member) -> None:
        member.step(1, np.ones(layout.elements, dtype=np.float32))

    with Cluster(job) as cluster:
        cluster.run(layout, work)
        registry = cluster.servers[0].metrics.registry
        labels = {"role": "server", "rank": "0"}
        assert registry.get_sample_value("taihu_update_seconds_count", labels) == 3
