"""Faults of a process: once in a run, whatever takes its place; on real processes what they do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.daemons import wait_for

from taihu.core.chaos.acts import go_on_after
from taihu.core.chaos.faults import Fault, FaultKind
from taihu.core.chaos.memory import ChaosMemory
from taihu.core.chaos.points import Point
from taihu.core.chaos.process import ProcessChaos
from taihu.core.chaos.schedule import Schedule
from taihu.core.wire.base.clock import WallClock
from taihu.core.wire.frames.frame_faults import FrameFault

KILL = Fault(FaultKind.KILL, "worker 1", Point.PUSH, 3)


def chaos(folder: Path, done: list[Fault], **faults: Fault) -> ProcessChaos:
    return ProcessChaos("worker 1", Schedule(faults), ChaosMemory(folder), do=done.append)


def test_a_fault_does_not_happen_again_to_the_process_that_takes_the_place(tmp_path: Path) -> None:
    done: list[Fault] = []
    for _ in range(2):
        process = chaos(tmp_path / "chaos", done, one=KILL)
        for step in range(1, 9):
            process.passes(Point.PUSH, step)
    assert done == [KILL]
    (told,) = ChaosMemory(tmp_path / "chaos").happened().values()
    assert (told["fault"], told["member"], told["point"], told["step"]) == (str(KILL), "worker 1", "push", 4)


def test_one_of_many_threads_does_it(tmp_path: Path) -> None:
    done: list[Fault] = []
    process = chaos(tmp_path, done, one=KILL)
    with ThreadPoolExecutor(8) as pool:
        for each in [pool.submit(process.passes, Point.PUSH, 5) for _ in range(64)]:
            each.result()
    assert done == [KILL]


def test_what_is_due_at_a_time_is_done_by_itself(tmp_path: Path) -> None:
    happened = threading.Event()
    late = Fault(FaultKind.KILL, "worker 1", after_s=86_000.0)
    now = Fault(FaultKind.KILL, "worker 1", after_s=0.0)
    done: list[Fault] = []

    def do(fault: Fault) -> None:
        done.append(fault)
        happened.set()

    ProcessChaos("worker 1", Schedule({"late": late, "now": now}), ChaosMemory(tmp_path), do=do).start()
    assert happened.wait(120)
    assert done == [now]


def test_of_drawn_faults_a_process_does_its_own_that_are_still_to_come(tmp_path: Path) -> None:
    memory = ChaosMemory(tmp_path)
    # The run began long ago, when another process was in this place.
    (tmp_path / "begun").write_text(repr(memory.begun_s() - 1000.0))
    done: list[Fault] = []
    happened = threading.Event()

    def do(fault: Fault) -> None:
        done.append(fault)
        happened.set()

    times = {"worker 1": (10.0, 999.0, 1000.5, 9000.0), "worker 0": (1000.1,)}
    faults = sorted(
        (Fault(FaultKind.KILL, member, after_s=each) for member, own in times.items() for each in own),
        key=lambda fault: fault.after_s or 0.0,
    )
    drawn = ((str(number), fault) for number, fault in enumerate(faults))
    ProcessChaos("worker 1", Schedule({}), memory, drawn, do=do).start()
    assert happened.wait(120)
    assert [fault.after_s for fault in done] == [1000.5]


def test_a_run_begins_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        begun = {each.result() for each in [pool.submit(ChaosMemory(tmp_path / "a").begun_s) for _ in range(16)]}
    assert len(begun) == 1


class Watched:
    """A clock on which nothing but sleep takes time."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> float:
        return 50.0 + sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_a_jump_of_the_machines_clock_moves_nothing_that_is_due(tmp_path: Path) -> None:
    wall, clock, happened = WallClock(), Watched(), threading.Event()
    done: list[Fault] = []

    def do(fault: Fault) -> None:
        done.append(fault)
        wall.jump(3600.0)
        if len(done) == 4:
            happened.set()

    kill = Fault(FaultKind.KILL, "worker 1")
    named = {str(after): replace(kill, after_s=after) for after in (1000.0, 2000.0)}
    drawn = iter([(str(after), replace(kill, after_s=after)) for after in (2500.0, 4000.0)])
    ProcessChaos("worker 1", Schedule(named), ChaosMemory(tmp_path, wall), drawn, clock=clock, do=do).start()
    assert happened.wait(120)
    assert [fault.after_s for fault in done] == [1000.0, 2000.0, 2500.0, 4000.0]
    assert clock.slept == pytest.approx([1000.0, 1000.0, 500.0, 1500.0], abs=60.0)


def test_faults_of_frames_and_clocks_are_done_here(tmp_path: Path) -> None:
    done: list[Fault] = []
    wall = WallClock()
    before = wall.now()
    kinds = (FaultKind.CORRUPT, FaultKind.DUPLICATE, FaultKind.TRUNCATE, FaultKind.CLOCK_JUMP)
    faults = {kind.value: Fault(kind, "worker 1", Point.PUSH) for kind in kinds}
    process = ProcessChaos("worker 1", Schedule(faults), ChaosMemory(tmp_path), wall=wall, do=done.append)
    assert not process.frames.is_due
    process.passes(Point.PUSH, 1)
    assert [process.frames.take() for _ in range(4)] == [*FrameFault, None]
    assert 3600.0 <= wall.now() - before < 3660.0
    assert not done
    # What is told of faults has the machine's time.
    assert all(abs(told["time"] - before) < 60.0 for told in ChaosMemory(tmp_path).happened().values())


@contextmanager
def running(code: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


DOES = """\
import sys, time
from taihu.core.chaos.acts import do_here
from taihu.core.chaos.faults import fault_from
print("ready", flush=True)
do_here(fault_from(sys.stdin.readline()))
print("lives on", flush=True)
time.sleep(600)
"""


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def say(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()


@pytest.mark.parametrize(
    ("kind", "number"), [("kill", signal.SIGKILL), ("terminate", signal.SIGTERM)], ids=["kill", "terminate"]
)
def test_a_process_ends_by_its_signal(kind: str, number: signal.Signals, tmp_path: Path) -> None:
    with running(DOES, tmp_path) as process:
        say(process, f"{kind} worker 1 at push")
        assert process.wait(120) == -number


def test_a_process_stops_and_goes_on(tmp_path: Path) -> None:
    with running(DOES, tmp_path) as process:
        say(process, "stop worker 1 at push for 1 s")
        wait_for(lambda: state_of(process.pid) == "T", "it does not stop", 30)
        assert process.stdout is not None
        assert process.stdout.readline() == "lives on\n"


def test_who_waits_for_a_process_that_is_killed_meanwhile_ends_with_it(tmp_path: Path) -> None:
    with running(DOES, tmp_path) as process:
        before = children()
        os.kill(process.pid, signal.SIGSTOP)
        held = os.pidfd_open(process.pid)
        go_on_after(held, 3600.0)
        os.close(held)
        (helper,) = children() - before
        process.kill()
        process.wait()
        wait_for(lambda: not Path(f"/proc/{helper}").exists(), "the one that waits is left", 30)


def children() -> set[int]:
    pid = os.getpid()
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        found |= set(map(int, (task / "children").read_text().split()))
    return found


CUTS = """\
import json, socket, sys
from taihu.core.chaos.acts import cut_connections
listener = socket.create_server(("127.0.0.1", 0))
ours = socket.create_connection(listener.getsockname())
theirs, _ = listener.accept()
near, far = socket.socketpair()
print("ready", flush=True)
sys.stdin.readline()
cut = cut_connections()
try:
    ours.sendall(b"x")
    sent = True
except OSError:
    sent = False
near.sendall(b"x")
again = socket.create_connection(listener.getsockname())
print(json.dumps([cut, theirs.recv(1) == b"", sent, far.recv(1) == b"x"]), flush=True)
"""


def test_all_connections_of_a_process_are_cut_and_nothing_else(tmp_path: Path) -> None:
    with running(CUTS, tmp_path) as process:
        say(process, "")
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == [2, True, False, True]
