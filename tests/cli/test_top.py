"""`taihu top`: sums and means by a second, simple computation; a real run as a picture and as lines."""

from __future__ import annotations

import json
import subprocess
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from io import StringIO
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from support.daemons import Start, listening, wait_for

from taihu.cli.runs.top import render
from taihu.core.coordination.control.looking import AgentStatus, Change, MemberStatus, RunStatus
from taihu.core.coordination.membership.members import MemberId, Progress, Role, RunState
from taihu.core.coordination.overview import COLUMNS, overview_of
from taihu.core.coordination.status import fetch_status

Taihu = Callable[..., subprocess.CompletedProcess[str]]

TIMES = st.floats(0.0009765625, 100, width=32)
PROGRESS = st.builds(
    Progress,
    step=st.integers(1, 1000),
    total_steps=st.just(1000),
    loss=st.floats(0, 10, width=32),
    samples_per_second=TIMES,
    step_seconds=TIMES,
    compute_seconds=TIMES,
    wait_seconds=TIMES,
    bytes_sent_per_step=st.integers(0, 2**40),
    bytes_received_per_step=st.integers(0, 2**40),
)


def status_of(workers: list[Progress], state: RunState = RunState.RUNNING, servers: int = 1) -> RunStatus:
    members = [(MemberId(Role.WORKER, rank), progress) for rank, progress in enumerate(workers)]
    members += [(MemberId(Role.SERVER, index), Progress(update_seconds=0.25)) for index in range(servers)]
    return RunStatus("job", state, members=tuple(MemberStatus(member, "", each) for member, each in members))


@settings(deadline=None)
@given(st.lists(PROGRESS, min_size=1, max_size=9))
def test_the_overview_is_of_all_workers(workers: list[Progress]) -> None:
    view = overview_of(status_of(workers))
    assert view.step == min(each.step for each in workers)
    assert view.loss == pytest.approx(fmean(each.loss for each in workers))
    assert view.samples_per_second == pytest.approx(sum(each.samples_per_second for each in workers))
    assert view.sent_per_second == pytest.approx(sum(w.bytes_sent_per_step / w.step_seconds for w in workers))
    times = sorted(each.compute_seconds for each in workers)
    middle = (times[len(times) // 2] + times[(len(times) - 1) // 2]) / 2
    assert view.skew == pytest.approx(times[-1] / middle)
    assert [member.is_slow for member in view.workers] == [each.compute_seconds > 1.5 * middle for each in workers]
    console = Console(width=160, record=True, quiet=True)
    console.print(render(view, deque([view.loss])))


def test_agents_and_why_members_began_again_are_shown() -> None:
    agents = (
        AgentStatus("anna", (0, 2), 0.5, leaves=False, work_seconds=0.25),
        AgentStatus("bert", (), 1.0, leaves=True),
    )
    changes = tuple(Change(f"agent carl{step} leaves", step) for step in (3, 5, 8, 13))
    status = replace(status_of([Progress(step=14)]), agents=agents, generations=5, changes=changes)
    screen = StringIO()
    Console(file=screen, width=100).print(render(overview_of(status), deque()))
    lines = [line.split() for line in screen.getvalue().splitlines()]
    assert ["anna", "0,", "2", "250.0", "0.5", "s", "ago"] in lines
    assert ["bert", "-", "-", "1.0", "s", "ago", "leaves"] in lines
    shown = [" ".join(line) for line in lines]
    assert shown[-4:] == [
        "members have begun 5 times",
        *(f"agent carl{step} leaves" for step in (5, 8, 13)),
    ]
    assert overview_of(status).to_json()["changes"] == tuple(map(asdict, changes))


def test_members_that_have_not_trained_are_shown_and_count_for_nothing() -> None:
    view = overview_of(status_of([Progress(), Progress(step=5, loss=2.0, step_seconds=1.0)]))
    assert (view.step, view.loss, len(view.workers)) == (5, 2.0, 2)
    waiting = overview_of(status_of([Progress()], RunState.WAITING))
    assert waiting.in_columns() == ("job", "waiting", *["-"] * (len(COLUMNS) - 2))


def test_a_real_run_is_a_line_a_look_where_there_is_no_terminal(start: Start, taihu: Taihu) -> None:
    flags = ("--servers", "1", "--workers", "1", "--set", "train.steps=1000000", "--set", "train.evaluate=false")
    address, _ = listening(start("taihu.ps_server", *flags, "--bind", "127.0.0.1:0"))
    start("taihu.worker", *flags, "--rank", "0", "--coordinator", address)

    def both_tell() -> bool:
        view = overview_of(fetch_status(address, 600))
        return view.step > 0 and view.update_seconds > 0

    wait_for(both_tell, "worker and server tell of no progress")
    done = taihu("top", address, "-n", "3", "--every", "0.1", "--timeout", "60")
    assert done.returncode == 0, done.stderr
    header, *lines = done.stdout.splitlines()
    assert header.split() == [*COLUMNS]
    assert len(lines) == 3
    for line in lines:
        row = dict(zip(header.split(), line.split(), strict=True))
        assert row["state"] == "running"
        assert int(row["step"].removesuffix("/1000000")) > 0
        assert min(float(row[name]) for name in ("ms/step", "compute", "density", "update")) > 0
        # Every column begins at the same place.
        assert line.index(row["ms/step"]) == header.index("ms/step")
    told = taihu("top", address, "-n", "2", "--every", "0.1", "--json", "-")
    looks = [json.loads(line) for line in told.stdout.splitlines()]
    assert len(looks) == 2
    assert "running" in told.stderr
    assert looks[0]["step"] > 0
    assert [type(looks[0][name]) for name in ("step", "loss", "step_seconds")] == [int, float, float]
    members = {(each["role"], each["rank"]): each for each in looks[0]["members"]}
    assert members["server", 0]["address"] == address
    assert members["worker", 0]["address"] == "127.0.0.1"
    assert members["worker", 0]["step"] > 0
    asked = taihu("status", address, "--json", "-")
    status = json.loads(asked.stdout)
    assert {(each["role"], each["rank"], each["address"]) for each in status["members"]} == {
        ("server", 0, address),
        ("worker", 0, "127.0.0.1"),
    }
    assert (status["missing"], status["seconds_waiting"]) == ([], 0.0)
    assert status["members"][0]["seconds_since_heartbeat"] < 60
    header, *rows = asked.stderr.splitlines()[1:]
    assert header.split()[:3] == ["member", "address", "step"]
    assert {row.index(member) for row in rows for member in (address, "127.0.0.1") if f" {member} " in row} == {
        header.index("address")
    }


def test_nobody_at_the_address_is_an_error_in_one_line(taihu: Taihu) -> None:
    done = taihu("top", "127.0.0.1:1", "--timeout", "0.5")
    assert done.returncode == 2
    assert done.stderr.startswith("error: coordinator at 127.0.0.1:1: no answer within 0.5 s")
    assert taihu("top", "nowhere").returncode == 2
