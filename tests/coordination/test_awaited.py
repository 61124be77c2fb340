"""The members that a run waits for: in words, in the status, and in the log of who waits."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
import structlog
from support.cluster import Cluster, layout_of, make_job

from taihu.core.coordination.client.awaited import awaited_in_words, missing_of, pauses_s
from taihu.core.coordination.client.client import CoordinatorClient, coordinator_address
from taihu.core.coordination.client.waiting import telling_who_is_awaited
from taihu.core.coordination.control.looking import MemberStatus, RunStatus
from taihu.core.coordination.membership.members import MemberId, Role, RunState
from taihu.core.coordination.status import fetch_status


def members(servers: tuple[int, ...], workers: tuple[int, ...]) -> list[MemberId]:
    return [*(MemberId(Role.SERVER, rank) for rank in servers), *(MemberId(Role.WORKER, rank) for rank in workers)]


@pytest.mark.parametrize(
    ("servers", "workers", "words"),
    [
        ((), (), ""),
        ((1,), (), "server 1"),
        ((), (1, 2), "workers 1, 2"),
        ((1,), (1, 2), "server 1 and workers 1, 2"),
        ((), tuple(range(8)), "workers 0, 1, 2, 3, 4, 5, 6, 7"),
        ((), tuple(range(10)), "workers 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"),
    ],
)
def test_members_in_words(servers: tuple[int, ...], workers: tuple[int, ...], words: str) -> None:
    assert awaited_in_words(members(servers, workers)) == words


def test_who_has_not_joined_is_missing_servers_first() -> None:
    joined = [MemberId(Role.WORKER, 1), MemberId(Role.SERVER, 1)]
    entries = tuple(map(MemberStatus, joined))
    status = RunStatus("job", RunState.WAITING, members=entries, servers=2, workers=3)
    assert missing_of(status) == members((0,), (0, 2))


def test_a_run_tells_who_is_missing_and_since_when() -> None:
    with Cluster(make_job(1, 3)) as cluster, cluster.member(1, layout_of(3, 4)):
        address = coordinator_address(cluster.job)
        status = fetch_status(address, 120)
        assert awaited_in_words(missing_of(status)) == "workers 0, 2"
        assert status.waiting_seconds > 0
        with CoordinatorClient.at(address, cluster.job, MemberId(Role.WORKER, 0), 7) as client:
            assert client.awaited() == "workers 0, 2"


def test_a_coordinator_that_does_not_answer_is_who_is_awaited() -> None:
    with CoordinatorClient.at("127.0.0.1:1", make_job(1, 1), MemberId(Role.WORKER, 0), 7) as client:
        assert client.awaited() == "the coordinator at 127.0.0.1:1"


def test_lines_come_until_nobody_is_awaited() -> None:
    answers = iter(["server 1 and worker 2", "worker 2", ""])
    with structlog.testing.capture_logs() as logs, telling_who_is_awaited(lambda: next(answers), [0.0] * 9) as thread:
        thread.join()
    assert [line["event"] for line in logs] == [
        "waiting for server 1 and worker 2 since 0 s",
        "waiting for worker 2 since 0 s",
    ]


def test_pauses_grow_up_to_a_minute() -> None:
    pauses = list(islice(pauses_s(), 9))
    assert pauses[0] <= 2
    assert all(before <= after <= 2 * before for before, after in pairwise(pauses))
    assert pauses[-1] == 60
