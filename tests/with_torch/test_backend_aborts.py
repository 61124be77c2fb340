"""Groups that end before their operations do: a rank aborts or destroys them while others, or its threads, wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist
from support.torch_ranks import on_ranks
from torch.distributed import distributed_c10d

from taihu.torch.group.operations.calls import Said, read_calls, text_of


def test_calls_are_read_as_they_were_told() -> None:
    """Calls without sizes among them, one behind the other."""
    calls = [
        Said(1, "barrier"),
        Said(2, "barrier"),
        Said(3, "SUM of torch.float32", "of shape (2,)"),
        Said(4, "recv"),
    ]
    assert read_calls(text_of(calls)) == calls


def later(wait: Callable[[], Any]) -> tuple[threading.Thread, list[str]]:
    """A thread that waits, and what it is told."""
    told: list[str] = []

    def run() -> None:
        try:
            wait()
        except RuntimeError as error:  # of a future, with the DistBackendError in its words
            told.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, told


def _world() -> Any:
    return dist.group.WORLD


WAITS: Final[Mapping[str, Callable[[], Any]]] = MappingProxyType(
    {
        "sum": lambda: dist.all_reduce(torch.ones(1 << 20), async_op=True),
        "integers": lambda: dist.all_reduce(torch.ones(1, dtype=torch.int64), async_op=True),
        "recv": lambda: dist.irecv(torch.zeros(1), 1),
        "barrier": lambda: dist.barrier(async_op=True),
    }
)
ENDS: Final[Mapping[str, Callable[[], Any]]] = MappingProxyType(
    {
        "_abort_process_group": distributed_c10d._abort_process_group,
        "abort": lambda: _world().abort(),
        "abort twice": lambda: [_world().abort() for _ in range(2)],
    }
)


def end_while_waiting(rank: int, what: str, how: str, url: str) -> list[Any]:
    """Rank 0 ends the group while its own threads and rank 2 wait in it for rank 1; then all make another one."""
    store, told = distributed_c10d._get_default_store(), []
    dist.barrier()
    if rank == 0:
        work = WAITS[what]()
        waiting = [later(work.wait), later(work.get_future().wait)] if what != "recv" else [later(work.wait)]
        store.wait(["waits"], timedelta(seconds=60))
        ENDS[how]()
        for thread, error in waiting:
            thread.join(60.0)
            told += error
    elif rank == 2:
        work = dist.irecv(torch.zeros(1), 1) if what == "recv" else WAITS[what]()
        assert work is not None
        store.set("waits", "")
        with pytest.raises(dist.DistBackendError) as failed:
            work.wait()
        told.append(str(failed.value))
    else:
        store.wait(["waits"], timedelta(seconds=60))
        with pytest.raises(dist.DistBackendError) as failed:
            dist.recv(torch.zeros(1), 2)
        told.append(str(failed.value))
    # What is issued behind it fails, too, where the group is known yet.
    if dist.is_initialized():
        with pytest.raises(dist.DistBackendError, match=r"has aborted the group|the group has been destroyed"):
            dist.barrier()
        dist.destroy_process_group()
    dist.init_process_group("taihu", init_method=url, rank=rank, world_size=3, timeout=timedelta(seconds=60))
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return [told, tensor.item()]


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("sum", "_abort_process_group"),
        ("integers", "abort"),
        ("recv", "abort twice"),
        ("barrier", "_abort_process_group"),
    ],
)
def test_an_abort_ends_the_waits_of_all_threads_and_ranks(what: str, how: str, tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'anew'}"
    for told, total in on_ranks(3, tmp_path, end_while_waiting, what, how, url):
        assert told
        assert all("rank 0 has aborted the group" in text for text in told), told
        assert total == 3.0


def destroy_while_waiting(rank: int) -> list[str]:
    """Rank 0 destroys the group while a message and a sum wait for rank 1, which comes to neither."""
    store, told = distributed_c10d._get_default_store(), []
    if rank == 0:
        works = [dist.irecv(torch.zeros(1), 1), dist.all_reduce(torch.ones(1), async_op=True)]
        dist.destroy_process_group()
        for work in works:
            assert work is not None
            with pytest.raises(dist.DistBackendError) as failed:
                work.wait()
            told.append(str(failed.value))
        store.set("left", "")
    store.wait(["left"], timedelta(seconds=60))
    if rank:
        dist.destroy_process_group()
    dist.init_process_group("taihu", store=dist.PrefixStore("anew", store), rank=rank, world_size=2)
    return told


def test_what_is_under_way_when_a_group_is_destroyed_ends_with_an_error(tmp_path: Path) -> None:
    told, _ = on_ranks(2, tmp_path, destroy_while_waiting)
    for text in told:
        assert "rank 0 has left the group before" in text
