"""A rank is killed: the others hear which one, make a group without it in the same processes, and train in it."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

import pytest
import torch
import torch.distributed as dist
from support.daemons import free_port
from support.torch_ranks import RANKS, on_ranks
from torch.distributed import distributed_c10d

from benchmarks.backend.backend_faults import run_fault
from benchmarks.backend.ranks_with_faults import MOMENTS, Fault, losses_of_one_process
from taihu.core.process.memory.mapped_files import SHARED_MEMORY
from taihu.torch.group.meeting.agreement import Host, Life
from taihu.torch.group.meeting.board import Board
from taihu.torch.group.meeting.vigil import Vigil

ROUNDS = 50
WARM = 10


@pytest.mark.parametrize("number", range(len(MOMENTS)))
def test_a_killed_rank_is_named_and_the_others_train_on(number: int) -> None:
    moment = list(MOMENTS)[number]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=100))
    fault = Fault("taihu", number % 2 == 1, moment, store.port, timeout_s=100.0)
    told = run_fault(fault, 0.1)
    assert all("rank 1" in error and "was lost" in error for error in told["errors"]), told["errors"]
    assert all("DistBackendError: taihu group '0'" in error for error in told["errors"]), told["errors"]
    assert_goes_on(told, fault)


def test_the_store_may_die_with_the_rank_that_hosts_it() -> None:
    fault = Fault("taihu", False, "barrier", free_port(), own_store=True, killed=0, timeout_s=100.0)
    told = run_fault(fault, 0.1)
    assert all("rank 0" in error and "was lost" in error for error in told["errors"]), told["errors"]
    assert_goes_on(told, fault)


def assert_goes_on(told: dict[str, Any], fault: Fault) -> None:
    for losses, expected in zip(told["losses"], losses_of_one_process(fault.left), strict=True):
        assert losses == pytest.approx(expected, rel=1e-5)


def dies_in_init(rank: int, where: str, folder: Path) -> list[str]:
    """Rank 1 dies when it has been seen, or as it connects; the others try again without it."""
    dist.destroy_process_group()
    if rank == 1:
        kill(where)
    with pytest.raises(dist.DistBackendError) as failed:
        init(f"file://{folder / 'first'}", rank, 3)
    init(f"file://{folder / 'second'}", rank // 2, 2)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return [str(failed.value), str(tensor.item())]


def kill(where: str) -> None:
    name = {"agreed": "wait_for_all", "word": "_set"}[where]
    method = getattr(Board, name)

    def die(board: Board, what: str, word: Any) -> None:
        method(board, what, word) if where == "word" else None
        if what != "hello":
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(Board, name, die)


def init(url: str, rank: int, size: int) -> None:
    dist.init_process_group("taihu", init_method=url, rank=rank, world_size=size, timeout=timedelta(seconds=100))


@pytest.mark.parametrize("where", ["word", "agreed"])
def test_a_rank_that_dies_as_the_group_is_made_is_named(where: str, tmp_path: Path) -> None:
    zero, one, two = on_ranks(3, tmp_path, dies_in_init, where, tmp_path)
    assert one is None
    for told, total in (zero, two):
        assert "init: rank 1 was lost while the group was made" in told
        assert total == "2.0"


def fails_in_init(rank: int, folder: Path) -> str:
    """Rank 1 cannot go on with making the group, and lives."""
    dist.destroy_process_group()
    if rank == 1:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Board, "wait_for_all", no_files)
            with pytest.raises(OSError, match="no more files"):
                init(f"file://{folder / 'first'}", rank, 2)
        told = ""
    else:
        with pytest.raises(dist.DistBackendError) as failed:
            init(f"file://{folder / 'first'}", rank, 2)
        told = str(failed.value)
    init(f"file://{folder / 'second'}", rank, 2)
    return told


def no_files(*_: Any) -> None:
    raise OSError("no more files")


def test_the_error_of_a_rank_that_cannot_make_the_group_is_told_to_all(tmp_path: Path) -> None:
    told, _ = on_ranks(2, tmp_path, fails_in_init, tmp_path)
    assert "init: rank 1: no more files" in told


def test_who_has_repeated_a_word_is_met_until_another_one_comes_in_its_place() -> None:
    words = iter("abcdef")
    host = Host(3, lambda: next(words))
    zero, one, two = (Life(number, f"127.0.0.1:{number}") for number in range(3))
    assert host.see([zero, one, None], ["", "", ""])
    assert not host.roster.met  # its hello may be a former group's
    assert host.see([zero, one, two], ["b", "b", ""])
    assert list(host.roster.met) == [0, 1]
    assert host.see([zero, Life(7, "127.0.0.1:7"), two], ["b", "b", ""])
    assert list(host.roster.met) == [0]


def test_who_has_repeated_a_word_is_met_though_another_rank_has_come_since() -> None:
    words = iter("abcdef")
    host = Host(3, lambda: next(words))
    zero, one, two = (Life(number, f"127.0.0.1:{number}") for number in range(3))
    assert host.see([zero, one, None], ["", "", ""])  # by the word b
    assert host.see([zero, one, two], ["", "", ""])  # by the word c
    assert host.see([zero, one, two], ["", "b", ""])
    assert list(host.roster.met) == [1]


class Listening:
    """A context manager: a port that listens until `close`, and cuts connections that it has taken."""

    def __enter__(self) -> Self:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(60.0)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        return self

    def cut_one(self) -> None:
        self._socket.accept()[0].close()

    def close(self) -> None:
        self._socket.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def test_a_vigil_tells_who_has_gone_and_not_who_cuts_its_connection() -> None:
    with Vigil() as vigil, Listening() as leaver, Listening() as cutter:
        vigil.watch(1, leaver.address)
        vigil.watch(2, cutter.address)
        told: SimpleQueue[int] = SimpleQueue()
        with vigil.telling(told.put):
            for _ in range(3):
                cutter.cut_one()
            assert vigil.gone == []
            leaver.close()
            assert told.get(timeout=60.0) == 1
        assert vigil.gone == [1]


def held() -> tuple[int, int, int]:
    """This process's descriptors, threads, and mapped files of /dev/shm."""
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if f"{SHARED_MEMORY}/taihu-" in line]
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), len(mapped)


def meet_in_round(number: int, rank: int, port: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=100))
    store = dist.PrefixStore(f"round {number}", store)
    dist.init_process_group("taihu", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=100))
    dist.all_reduce(torch.ones(1))


def outlive(port: int, pipe: Any) -> None:
    """Rank 0, which meets another rank 1 in each round, and loses it."""
    seen = []
    for number in range(ROUNDS):
        pipe.send(number)
        meet_in_round(number, 0, port)
        if number % 3 == 2:
            work = dist.all_reduce(torch.ones(1), async_op=True)
            distributed_c10d._abort_process_group()
            error = work.exception()
        else:
            with pytest.raises(dist.DistBackendError) as failed:
                dist.all_reduce(torch.ones(1))
            error = failed.value
            dist.destroy_process_group()
        assert "rank" in str(error)
        del error
        gc.collect()
        seen.append(held())
    pipe.send(seen)


def be_lost(number: int, port: int) -> None:
    """Rank 1 of one round."""
    meet_in_round(number, 1, port)
    if number % 3 == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if number % 3 == 1:
        distributed_c10d._abort_process_group()
        return
    with pytest.raises(dist.DistBackendError):
        dist.recv(torch.ones(1), 0)
    dist.destroy_process_group()


def test_nothing_is_left_of_groups_that_have_failed() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=100))
    mine, theirs = RANKS.Pipe()
    ranks = [RANKS.Process(target=outlive, args=(store.port, theirs))]
    ranks[0].start()
    theirs.close()
    try:
        for _ in range(ROUNDS):
            assert mine.poll(100.0)
            ranks.append(RANKS.Process(target=be_lost, args=(mine.recv(), store.port)))
            ranks[-1].start()
        assert mine.poll(100.0)
        seen = mine.recv()
        ranks[0].join(100.0)
        assert [path for rank in ranks for path in SHARED_MEMORY.glob(f"taihu-*-{rank.pid}-*")] == []
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    for kind in zip(*seen, strict=True):
        # Other threads close what they have, a moment later: nothing grows with the rounds.
        assert min(kind[-5:]) <= max(kind[:WARM]), kind


SCRIPT = """
import os, signal, torch, torch.distributed as dist, taihu.torch.backend
dist.init_process_group("taihu")
tensor = torch.ones(1)
dist.all_reduce(tensor)
lives = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if lives == 0 and dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(tensor)
print(f"life {lives}: {tensor.item()}")
dist.destroy_process_group()
"""


def test_torchrun_starts_all_ranks_again(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "--max-restarts", "1", "--monitor-interval", "0.1", "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("life 1: 4.0") == done.stdout.count("life") == 2  # lines of two may mingle
    assert "exitcode: -9" in done.stderr
