"""Disks that are slow, full, read-only or fail, and what is left of files when a process or the power is gone."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.explore.carriers import Greenlets
from taihu.explore.disk.descriptors import Descriptors
from taihu.explore.disk.disk import OWN, SHARED, Disk
from taihu.explore.disk.faults import DiskFault
from taihu.explore.disk.modules import DiskStandIns, provide_disk
from taihu.explore.disk.storage import File, Folder
from taihu.explore.orders import RandomOrder
from taihu.explore.scheduler import BEGUN_S, Scheduler
from taihu.explore.tasks import Process

_STAND_INS = DiskStandIns()
_OS = _STAND_INS.modules["os"]
_PATH = _STAND_INS.path


class World:
    """A disk, and processes that do something with it one after the other."""

    def __init__(self, seed: int = 0, **more: Any) -> None:
        self.scheduler = Scheduler(seed, Greenlets(), RandomOrder(Random(seed), 0.5))
        self.disk = provide_disk(self.scheduler, Disk(self.scheduler, **more))
        self._processes = {member: Process(member) for member in ("worker 0", "worker 1")}

    def process(self, member: str) -> Process:
        return self._processes[member]

    def run(self, *acts: tuple[str, Callable[[], object]]) -> list[Any]:
        """Have members do something, one after the other; what each has returned or raised."""
        results: list[Any] = []

        def tried(act: Callable[[], object]) -> None:
            try:
                results.append(act())
            except OSError as error:
                results.append(error.errno)

        def main() -> None:
            for member, act in acts:
                process = self.process(member)
                task = self.scheduler.spawn(lambda act=act: tried(act), "act", process)  # type: ignore[misc]
                while not (task.has_ended or process.is_dead):
                    self.scheduler.block("its end", self.scheduler.now + 0.01)

        try:
            self.scheduler.run(main, Process("supervisor"))
        finally:
            self.scheduler.close()
        return results


def append(path: str, text: str) -> Callable[[], object]:
    def act() -> None:
        with _STAND_INS.builtins["open"](path, "a") as file:
            file.write(text)

    return act


def text(path: str) -> Callable[[], object]:
    return lambda: _PATH(path).read_text()


def test_a_fault_hits_a_member_below_a_path_for_a_while() -> None:
    world = World()
    faults = world.disk.faults
    faults.begin(DiskFault("read-only", "worker 1", until_s=BEGUN_S + 5.0, below=SHARED))
    later = ("worker 0", lambda: world.scheduler.block("time", BEGUN_S + 6.0))
    assert world.run(
        ("worker 0", append(f"{SHARED}/a", "0")),
        ("worker 1", append(f"{SHARED}/a", "1")),
        ("worker 1", lambda: _OS.access(SHARED, _OS.W_OK)),
        ("worker 1", lambda: _OS.mkdir(f"{SHARED}/b")),
        ("worker 1", lambda: _OS.unlink(f"{SHARED}/a")),
        ("worker 1", append(f"{OWN}/a", "1")),
        later,
        ("worker 1", append(f"{SHARED}/a", "1")),
        ("worker 0", text(f"{SHARED}/a")),
    ) == [None, errno.EROFS, False, errno.EROFS, errno.EROFS, None, False, None, "01"]


def test_a_full_disk_takes_the_beginning() -> None:
    world = World()
    world.disk.faults.begin(DiskFault("full", room=3))
    number = f"{SHARED}/a"

    def write() -> object:
        opened = _OS.open(number, _OS.O_WRONLY | _OS.O_CREAT)
        try:
            over = _OS.pwrite(opened, b"12345", 0), _OS.pwrite(opened, b"ab", 0)  # what is there takes no room
            with pytest.raises(OSError, match="No space left"):
                _OS.posix_fallocate(opened, 0, 10)
            for _ in range(2):  # who tries again is told so again, and waits for nobody
                with pytest.raises(OSError, match="No space left"):
                    _OS.pwrite(opened, b"x", 3)
            return over
        finally:
            _OS.close(opened)

    assert world.run(("worker 0", write), ("worker 0", text(number)), ("worker 1", append(f"{SHARED}/b", ""))) == [
        (3, 2),
        "ab3",
        errno.ENOSPC,
    ]


def test_a_slow_disk_takes_virtual_time_and_a_failing_one_says_so() -> None:
    world = World()
    world.disk.faults.begin(DiskFault("slow", "worker 0", seconds=2.0))
    world.disk.faults.begin(DiskFault("failing", "worker 1", operations=frozenset({"fsync"})))

    def synchronize() -> None:
        opened = _OS.open(f"{SHARED}/a", _OS.O_RDWR)
        _OS.write(opened, b"new")
        _OS.fsync(opened)

    assert world.run(("worker 0", append(f"{SHARED}/a", "x")), ("worker 1", synchronize)) == [None, errno.EIO]
    assert world.scheduler.now >= BEGUN_S + 6.0  # it is opened, made and written to
    world.disk.faults.end("worker 1")
    assert not world.disk.faults.found("failing", "worker 1", "host", SHARED)


def test_each_host_has_files_of_its_own_and_its_own_boot() -> None:
    world = World(host_of=lambda process: process.member)
    boot = text("/proc/sys/kernel/random/boot_id")
    results = world.run(
        ("worker 0", append(f"{OWN}/a", "0")),
        ("worker 1", text(f"{OWN}/a")),
        ("worker 0", boot),
        ("worker 1", boot),
        ("worker 0", lambda: (_OS.getpid(), _PATH("/proc/1000/stat").exists())),
        ("worker 1", lambda: (_OS.getpid(), _PATH("/proc/1000/stat").exists())),
    )
    assert results[:2] == [None, errno.ENOENT]
    assert results[2] != results[3]
    assert results[4:] == [(1000, True), (1001, False)]


def test_a_process_that_is_killed_loses_its_buffers_and_nothing_that_was_written() -> None:
    world = World()
    opened = []

    def write() -> None:
        opened.append(_STAND_INS.builtins["open"](f"{SHARED}/a", "w"))
        opened[0].write("written")
        opened[0].flush()
        opened[0].write("in a buffer")
        world.scheduler.kill(world.process("worker 0"))
        world.scheduler.point("killed")

    assert world.run(("worker 0", write), ("worker 1", text(f"{SHARED}/a"))) == ["written"]
    assert world.scheduler.find_or_none(Descriptors) is None
    opened.clear()  # its finalizer writes nothing


@given(st.lists(st.one_of(st.binary(min_size=1, max_size=6), st.none()), max_size=6), st.integers(0, 1 << 30))
@settings(max_examples=150)
def test_a_file_keeps_what_was_synchronized_and_any_part_of_the_rest(acts: list[bytes | None], seed: int) -> None:
    """Appends, and None for a synchronization: what is left is the durable beginning, and a torn rest.

    Every byte of the rest is that which was written there, or nothing: a zero.
    """
    file, written, durable = File(1, 0o644), b"", 0
    for act in acts:
        if act is None:
            file.synchronize()
            durable = len(written)
        else:
            file.write("host", len(written), act)
            written += act
    file.lose("another host", Random(seed))
    assert bytes(file.data) == written
    file.lose("host", Random(seed))
    left = bytes(file.data)
    assert left[:durable] == written[:durable]
    assert len(left) <= len(written)
    assert all(byte in (0, of) for byte, of in zip(left, written, strict=False))
    file.lose("host", Random(seed + 1))
    assert bytes(file.data) == left  # the power fails again: the disk has what it has


def test_every_outcome_of_a_loss_is_seen() -> None:
    """Of two appends: nothing, a torn first, the first, a torn second, both, and both with a hole."""
    seen = set()
    for seed in range(400):
        file = File(1, 0o644)
        file.write("host", 0, b"ab")
        file.write("host", 2, b"cd")
        file.lose("host", Random(seed))
        seen.add(bytes(file.data))
    assert seen >= {b"", b"a", b"ab", b"abc", b"abcd", b"\0bcd", b"a\0cd", b"\0\0cd", b"\0\0", b"\0b"}
    assert all(len(each) <= 4 for each in seen)


@given(
    st.lists(st.one_of(st.tuples(st.sampled_from("abc"), st.sampled_from("abc_")), st.none()), max_size=8),
    st.integers(0, 1 << 30),
)
@settings(max_examples=150)
def test_a_folder_keeps_a_beginning_of_its_changes(acts: list[tuple[str, str] | None], seed: int) -> None:
    """Against all beginnings of the changes behind the last synchronization; a rename is whole or not at all."""
    folder, states = Folder(1, 0o755), [dict[str, int]()]
    for number, act in enumerate(acts):
        state = dict(states[-1])
        if act is None:
            folder.synchronize()
            states = [state]
        elif act[1] == "_":
            folder.name("host", {act[0]: File(number, 0o644)})
            states.append(state | {act[0]: number})
        elif act[0] in state and act[0] != act[1]:
            node = folder.entries[act[0]]
            folder.name("host", {act[0]: None, act[1]: node})
            states.append({**{name: each for name, each in state.items() if name != act[0]}, act[1]: node.number})
    folder.lose("host", Random(seed))
    assert {name: node.number for name, node in folder.entries.items()} in states


def test_a_killed_process_may_have_written_the_beginning_of_a_record() -> None:
    """A write that is done in parts is whole for all others, unless its process is killed within it."""
    seen: set[object] = set()
    for seed in range(60):
        world = World(seed)
        killed = itertools.count()

        class Killer:
            def marked(self, label: str, task: Any) -> None:
                if label == "in a write" and next(killed) == 0:  # noqa: B023
                    world.scheduler.kill(task.process)  # noqa: B023

        world.scheduler.observer = Killer()
        results = world.run(
            ("worker 0", append(f"{SHARED}/a", "12345")),
            ("worker 1", append(f"{SHARED}/a", "abc")),
            ("worker 1", text(f"{SHARED}/a")),
        )
        seen.add(results[-1])
    assert {"12345abc"} < seen
    assert all(str(each).endswith("abc") and "12345".startswith(str(each)[:-3]) for each in seen if each is not None)
