"""The order of a group's operations, groups of some ranks, and how operations end when a rank does not go on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.daemons import free_port
from support.torch_ranks import on_ranks
from torch.distributed import distributed_c10d

from taihu.allreduce.ring.kernel_ring import KernelRing
from taihu.allreduce.staged import StagedSums
from taihu.torch.group.operations import exchange


def in_order(rank: int) -> dict[str, Any]:
    works = []
    sums = [torch.full((number % 3 * 5000 + 1,), float(rank + number)) for number in range(24)]
    copies = [torch.zeros(1) for _ in range(24)]
    for one, copy in zip(sums, copies, strict=True):
        works.append(dist.all_reduce(one, async_op=True))
        # The result of the one before: it has ended when this one begins.
        works.append(dist.broadcast(one, 0, async_op=True))
        works.append(dist.all_gather([copy, torch.zeros(1)], one[:1], async_op=True))
    futures = [work.get_future() for work in works]
    works[-1].wait()
    ended = [work.is_completed() for work in works]
    chained = futures[0].then(lambda future: future.value()[0].sum().item())
    return {
        "sums": [one.tolist()[0] for one in sums],
        "copies": torch.cat(copies).tolist(),
        "ended": ended,
        "value": chained.wait(),
        "success": [work.is_success() for work in works],
    }


def test_operations_run_as_they_were_issued(tmp_path: Path) -> None:
    expected = [2.0 * number + 1.0 for number in range(24)]
    for seen in on_ranks(2, tmp_path, in_order):
        assert seen["sums"] == seen["copies"] == expected
        assert all(seen["ended"])
        assert all(seen["success"])
        assert seen["value"] == 1.0


def of_some(rank: int) -> list[Any]:
    outer, inner = dist.new_group([0, 2]), dist.new_group([2, 1])
    seen: list[Any] = []
    for group in (outer, inner):
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            tensor = torch.tensor([10.0**rank])
            dist.all_reduce(tensor, group=group)
            root = torch.tensor([rank])
            dist.broadcast(root, 2, group=group)
            seen.append((group.rank(), dist.get_process_group_ranks(group), tensor.item(), root.item()))
            dist.destroy_process_group(group)
    everything = torch.ones(1)
    dist.all_reduce(everything)
    names: list[Any] = [None] * 3
    dist.all_gather_object(names, {"rank": rank})
    mesh = dist.init_device_mesh("cpu", (3,))
    return [*seen, everything.item(), names, mesh.get_group().size(), alone(rank)]


def alone(rank: int) -> float:
    groups = [dist.new_group([each]) for each in range(3)]
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG, group=groups[rank])
    dist.barrier(group=groups[rank])
    return float(tensor)


def test_groups_of_some_ranks(tmp_path: Path) -> None:
    zero, one, two = on_ranks(3, tmp_path, of_some)
    rest = [3.0, [{"rank": 0}, {"rank": 1}, {"rank": 2}], 3]
    assert zero == [(0, [0, 2], 101.0, 2), *rest, 0.0]
    assert one == [(0, [1, 2], 110.0, 2), *rest, 1.0]
    assert two == [(1, [0, 2], 101.0, 2), (1, [1, 2], 110.0, 2), *rest, 2.0]


def from_any(rank: int) -> list[Any]:
    if rank:
        dist.send(torch.tensor([10 * rank]), 0, tag=rank)
        for tag in (3, 3):
            dist.send(torch.arange(rank * 200_000, dtype=torch.int64), 0, tag=tag)
        return []
    places = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
    first = [dist.recv(places[1], tag=2), dist.recv(places[0], tag=1)]
    # Each sender's messages come in order, whichever comes first.
    counts = []
    for sender in (2, 1, 1, 2):
        place = torch.zeros(sender * 200_000, dtype=torch.int64)
        dist.recv(place, sender, tag=3)
        counts.append(int(place[-1]))
    return [first, [int(place) for place in places], counts]


def test_messages_of_any_rank_and_of_tags(tmp_path: Path) -> None:
    seen, *_ = on_ranks(3, tmp_path, from_any)
    assert seen == [[2, 1], [10, 20], [399_999, 199_999, 199_999, 399_999]]


def refused(rank: int) -> list[str]:
    attempts: list[Callable[[], object]] = [
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), op=dist.ReduceOp.AVG),
        lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND),
        lambda: dist.all_gather([torch.eye(2)] * 2, torch.eye(2).to_sparse()),
        lambda: dist.all_gather_single(torch.ones(3), torch.ones(1)),
        lambda: dist.all_gather([torch.ones(2), torch.ones(3)], torch.ones(4)),
    ]
    told = []
    for attempt in attempts:
        with pytest.raises(ValueError, match="taihu") as error:
            attempt()
        told.append(str(error.value))
    # Nothing was sent: all goes on.
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return [*told, str(tensor.item())]


def test_what_cannot_be_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    for told in on_ranks(2, tmp_path, refused):
        assert "no AVG of torch.int32" in told[0]
        assert "no BAND of torch.float32" in told[1]
        assert "torch.sparse_coo" in told[2]
        assert "3 elements for 2 ranks" in told[3]
        assert "expected 4 elements of torch.float32, got" in told[4]
        assert told[5] == "2.0"


def error_of(run: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as error:
        run()
    return str(error.value)


def waited_for(what: str, group: Any) -> Callable[[], Any]:
    """An operation that needs rank 1, and somebody who waits for it."""
    sums, integers = torch.ones(1 << 20), torch.ones(1, dtype=torch.int64)
    return {
        "sum": lambda: dist.all_reduce(sums, group=group),
        "integers": lambda: dist.all_reduce(integers, group=group),
        "recv": lambda: dist.recv(sums, 1, group=group),
        "future": lambda: dist.all_reduce(sums, group=group, async_op=True).get_future().wait(),
    }[what]


def before_and_after_death(rank: int, what: str) -> list[str]:
    """Rank 1 dies; what the others get of operations that they wait for, and of later ones.

    Rank 2 meets it as rank 0 of a group of their own.
    """
    pair = dist.new_group([1, 2])
    dist.barrier(group=pair)
    dist.barrier()
    store = distributed_c10d._get_default_store()
    store.set(f"ready/{rank}", "")
    if rank == 1:
        store.wait(["ready/0", "ready/2"], timedelta(seconds=60))
        os.kill(os.getpid(), signal.SIGKILL)
    group = pair if rank == 2 else dist.group.WORLD
    return [error_of(waited_for(what, group)), error_of(lambda: dist.barrier(group=group))]


@pytest.mark.parametrize("what", ["sum", "integers", "recv", "future"])
def test_a_rank_that_dies_is_named_to_all_others(what: str, tmp_path: Path) -> None:
    zero, one, two = on_ranks(3, tmp_path, before_and_after_death, what)
    assert one is None
    for told in (*zero, *two):
        assert re.search(r"rank 1( at \S+)? was lost", told), told


def with_a_late_one(rank: int, what: str) -> str:
    """Rank 1 does not come to an operation: it waits for what only the others' ends tell it."""
    store, told = distributed_c10d._get_default_store(), ""
    if rank != 1:
        told = error_of(waited_for(what, dist.group.WORLD))
        store.set(f"ended/{rank}", "")
    store.wait(["ended/0", "ended/2"], timedelta(seconds=60))
    return told


@pytest.mark.parametrize("what", ["sum", "integers", "recv", "future"])
def test_a_rank_that_does_not_come_is_named_after_the_timeout(what: str, tmp_path: Path) -> None:
    zero, one, two = on_ranks(3, tmp_path, with_a_late_one, what, timeout_s=2.0)
    assert not one
    for told in (zero, two):
        assert "rank 1 has not come to" in told
        assert "Timed out after 2 s" in told


def with_a_late_and_an_impatient_one(rank: int) -> str:
    """As above; rank 0 waits for a second, rank 2 would for a minute."""
    if rank == 0:
        dist.group.WORLD.set_timeout(timedelta(seconds=1))
    return with_a_late_one(rank, "integers")


def test_the_error_of_one_rank_ends_the_operations_of_all(tmp_path: Path) -> None:
    zero, _, two = on_ranks(3, tmp_path, with_a_late_and_an_impatient_one)
    for told in (zero, two):
        assert "Timed out after 1 s" in told


def leaves_first(rank: int) -> str:
    if rank == 0:
        return "left"
    return error_of(lambda: dist.all_reduce(torch.zeros(1)))


def test_an_operation_without_one_that_has_left_ends(tmp_path: Path) -> None:
    left, told = on_ranks(2, tmp_path, leaves_first)
    assert left == "left"
    assert "rank 0 has left" in told


def sums_of_all_types(group: Any, rank: int) -> list[Any]:
    """Sums and means whose bits depend on the order in which they are added."""
    found = []
    for dtype, size in product((torch.float32, torch.float64, torch.float16, torch.bfloat16), (1, 2, 5, 1_000_003)):
        generator = torch.Generator().manual_seed(rank)
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            tensor = torch.rand(size, generator=generator).to(dtype)
            dist.all_reduce(tensor, op=op, group=group)
            found.append(tensor)
    return found


def by_ring_and_in_shared_memory(rank: int) -> list[str]:
    shared = dist.group.WORLD
    before = sums_of_all_types(shared, rank)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "share", lambda *_: None)
        ring = dist.new_group()
        after = sums_of_all_types(ring, rank)
    assert isinstance(shared._members.now("test").exchange._sums, StagedSums)
    assert isinstance(ring._members.now("test").exchange._sums, KernelRing)
    return [str((a - b).abs().max()) for a, b in zip(before, after, strict=True) if not torch.equal(a, b)]


def test_a_ring_gives_the_bits_of_shared_memory(tmp_path: Path) -> None:
    assert on_ranks(3, tmp_path, by_ring_and_in_shared_memory) == [[], [], []]


SCRIPT = """
import sys
import torch
import torch.distributed as dist
import taihu.torch.backend
rank, store, what = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("taihu", init_method=store, rank=rank, world_size=2)
dist.all_reduce(torch.ones(1))
if rank == 1 and what == "raises":
    raise ValueError("no such label")
if rank == 0 and what != "ends":
    dist.barrier()
"""


@pytest.mark.parametrize(
    ("what", "codes", "said"),
    [
        ("ends", [0, 0], ""),
        ("raises", [1, 1], "rank 1 has ended with ValueError"),
        ("leaves", [1, 0], "rank 1 has left"),
    ],
)
def test_scripts_end_without_destroying_their_groups(what: str, codes: list[int], said: str, tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'store'}" if what != "ends" else f"tcp://127.0.0.1:{free_port()}"
    ranks = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, str(rank), store, what], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=150)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == codes, told
    assert said in told[0]
