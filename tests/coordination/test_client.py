"""A member's words for a coordinator that is not there any more."""

from __future__ import annotations

import threading
from typing import cast

import pytest
from support.cluster import make_job
from support.daemons import free_port

from taihu.coordination.client import CoordinatorClient, HeartbeatThread
from taihu.coordination.members import MemberId, Progress, Role, RunState
from taihu.coordination.stopping import StopNotice
from taihu.errors import MemberLostError
from taihu.job import Job


@pytest.mark.parametrize(("kind", "host"), [("ring", "worker 0"), ("server", "server 0")])
def test_a_lost_coordinator_is_named_as_the_member_that_hosts_it(kind: str, host: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    job = make_job(1, 2, exchange={"kind": kind, "zero": 1})
    with (
        CoordinatorClient(address, job, MemberId(Role.WORKER, 1), 1) as client,
        pytest.raises(MemberLostError, match=f"^{host}, coordinator at {address}: UNAVAILABLE"),
    ):
        client.get_plan(5)


class Coordinated:
    """A client whose run has ended when it asks for the third time."""

    peer = "coordinator"

    def __init__(self) -> None:
        self.heartbeats = 0

    def heartbeat(self, progress: Progress, stop: StopNotice) -> tuple[RunState, str]:
        self.heartbeats += 1
        return (RunState.FINISHED if self.heartbeats == 3 else RunState.RUNNING), ""


def test_a_heartbeat_that_is_hurried_is_followed_by_others_until_the_run_has_ended() -> None:
    job = Job.model_validate({"cluster": {"heartbeat_s": 3600, "lost_after_s": 7200}})
    client, ended = Coordinated(), threading.Event()
    with HeartbeatThread(cast(CoordinatorClient, client), job, Progress, lambda *_: ended.set()) as heartbeats:
        heartbeats.hurry()
        assert ended.wait(60)
    assert client.heartbeats == 3
