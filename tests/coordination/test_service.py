"""The coordinator over real gRPC: what it takes from whom."""

from __future__ import annotations

import pytest
from support.cluster import Cluster, layout_of, make_job, measured_step

from taihu.coordination.client import CoordinatorClient, coordinator_address
from taihu.coordination.membership import MemberId, Role
from taihu.errors import StaleError, TaihuError


def test_a_stranger_neither_plans_nor_stops_the_run() -> None:
    """An earlier life of a worker, or a worker of another job that has the address, changes nothing."""
    job = make_job(1, 1, compression={"method": "none"})
    with Cluster(job) as cluster, cluster.member(0, layout_of(100, 200, 300)) as member:
        reports = [measured_step(member.exchange.plan, 8 - serial, 1.0, serial=bool(serial)) for serial in (1, 0)]
        address = coordinator_address(cluster.job)
        for incarnation, name in ((9, job.name), (member.identity.incarnation, "another")):
            other = cluster.job.model_copy(update={"name": name})
            with CoordinatorClient(address, other, MemberId(Role.WORKER, 0), incarnation) as stranger:
                expected = "belongs to job 'another'" if name == "another" else "worker 0 with incarnation 9 has not"
                with pytest.raises(StaleError, match=expected):
                    stranger.report_steps(8, reports, 10)
                with pytest.raises(StaleError, match=expected):
                    stranger.bring_layout(layout_of(1))
                with pytest.raises(TaihuError, match=expected):
                    stranger.fix_last_step(8, 10)
        assert member.client.get_plan(10) == member.exchange.plan
        # Nobody's reports had been taken in: those of step 8 are the first.
        assert member.client.report_steps(8, reports, 10).version == 2
