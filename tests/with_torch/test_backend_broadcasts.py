"""Broadcasts of the backend whose root does not wait for the others."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.torch_ranks import on_ranks

SMALL = 1000
# 0.8 MB: ten of them are as much as waits for others.
LARGE = 200_000


def root_goes_on(rank: int) -> list[float]:
    """Rank 0 has changed what it broadcast, and says so by a message, before any other comes to the broadcasts."""
    tensors = [torch.full((SMALL,), float(10 * number + rank)) for number in range(5)]
    word = torch.zeros(1)
    if rank == 0:
        for tensor in tensors:
            dist.broadcast(tensor, 0)
            tensor.fill_(-1.0)
        for other in (1, 2):
            dist.send(word, other)
    else:
        dist.recv(word, 0)
        for tensor in tensors:
            dist.broadcast(tensor, 0)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 3.0
    return [tensor.max().item() for tensor in tensors]


def test_the_root_changes_what_it_has_broadcast_before_others_come(tmp_path: Path) -> None:
    found = on_ranks(3, tmp_path, root_goes_on)
    assert found == [[-1.0] * 5, [0.0, 10.0, 20.0, 30.0, 40.0], [0.0, 10.0, 20.0, 30.0, 40.0]]


def root_leaves(rank: int) -> float:
    tensor = torch.full((SMALL + 1,), float(rank + 1))
    # A store's own barrier: the group has none that does not join its operations.
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        dist.broadcast(tensor, 0)
        dist.destroy_process_group()
        store.set("left", "")
        return float(tensor.max())
    store.wait(["left"], timedelta(seconds=30))
    dist.broadcast(tensor, 0)
    return float(tensor.max())


def test_a_root_that_leaves_has_sent_everything(tmp_path: Path) -> None:
    assert on_ranks(2, tmp_path, root_leaves) == [1.0, 1.0]


def root_waits_at_last(rank: int) -> bool:
    """Rank 0 broadcasts more than may wait to rank 1, which takes nothing because it is stopped."""
    store = dist.distributed_c10d._get_default_store()
    tensors = [torch.full((LARGE,), float(rank)) for _ in range(40)]
    dist.barrier()
    waited = False
    if rank == 0:
        other = int(store.get("pid"))
        os.kill(other, signal.SIGSTOP)
        try:
            works = [dist.broadcast(tensor, 0, async_op=True) for tensor in tensors]
            works[0].wait()
            with pytest.raises(dist.DistBackendError, match="broadcast did not end within 1 s"):
                works[-1].wait(timedelta(seconds=1))
            waited = True
        finally:
            os.kill(other, signal.SIGCONT)
    else:
        store.set("pid", str(os.getpid()))
        works = [dist.broadcast(tensor, 0, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    assert all(not tensor.any() for tensor in tensors)
    return waited


def test_a_root_far_ahead_waits_for_the_others(tmp_path: Path) -> None:
    assert on_ranks(2, tmp_path, root_waits_at_last) == [True, False]
