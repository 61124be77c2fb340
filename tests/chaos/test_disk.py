"""Disks that are full or slow, on a clock that tests move."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import numpy as np
import pytest

from taihu.core.chaos.disk import SLOW_BYTES_PER_SECOND, Disk
from taihu.core.chaos.faults import fault_from
from taihu.core.chaos.memory import ChaosMemory
from taihu.core.chaos.points import Point
from taihu.core.chaos.process import ProcessChaos
from taihu.core.chaos.schedule import Schedule
from taihu.core.checkpoint.files import write_part
from taihu.core.checkpoint.part import Elements, Part, State


class MovedClock:
    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def test_a_disk_is_full_for_so_long() -> None:
    clock, file = MovedClock(), io.BytesIO()
    disk = Disk(clock)
    over = disk.over(file)
    assert over.write(b"before") == 6
    assert disk.takes(fault_from("full-disk server 0 after 0 s for 3 s"))
    with pytest.raises(OSError, match="No space left") as caught:
        over.write(b"meanwhile")
    assert caught.value.errno == errno.ENOSPC
    clock.sleep(3.0)
    over.write(b" after")
    assert file.getvalue() == b"before after"


def test_a_slow_disk_takes_its_time() -> None:
    clock, file = MovedClock(), io.BytesIO()
    disk = Disk(clock)
    assert disk.takes(fault_from("slow-disk server 0 after 0 s for 10 s"))
    for _ in range(20):
        disk.over(file).write(bytes(500_000))
    assert clock.time == 100.0 + 20 * 500_000 / SLOW_BYTES_PER_SECOND
    disk.over(file).write(bytes(500_000))
    assert clock.time == 110.0


def test_faults_of_processes_are_not_a_disks() -> None:
    assert not Disk().takes(fault_from("kill server 0 at push"))


def test_a_part_is_not_written_to_a_full_disk(tmp_path: Path) -> None:
    values = np.arange(4, dtype=np.float32)
    part = Part("server 0", 10, State(Elements(np.array([[0, 4]]), {"parameters": values}), {}, {}))
    fault = fault_from("full-disk server 0 at checkpoint-write for 60 s")
    chaos = ProcessChaos("server 0", Schedule({"0": fault}), ChaosMemory(tmp_path / "chaos"))
    with pytest.raises(OSError, match="No space left"):
        write_part(tmp_path / "step-10", part, chaos)
    assert not any((tmp_path / "step-10").iterdir())
    assert Point.CHECKPOINT_WRITE.value in str(ChaosMemory(tmp_path / "chaos").happened()["0"])
    assert write_part(tmp_path / "step-10", part).name == "server-0.safetensors"
