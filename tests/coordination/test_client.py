"""A member's words for a coordinator that is not there any more."""

from __future__ import annotations

import pytest
from support.cluster import make_job
from support.daemons import free_port

from taihu.coordination.client import CoordinatorClient
from taihu.coordination.membership import MemberId, Role
from taihu.errors import MemberLostError


@pytest.mark.parametrize(("kind", "host"), [("ring", "worker 0"), ("server", "server 0")])
def test_a_lost_coordinator_is_named_as_the_member_that_hosts_it(kind: str, host: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    job = make_job(1, 2, exchange={"kind": kind, "zero": 1})
    with (
        CoordinatorClient(address, job, MemberId(Role.WORKER, 1), 1) as client,
        pytest.raises(MemberLostError, match=f"^{host}, coordinator at {address}: UNAVAILABLE"),
    ):
        client.get_plan(5)
