"""Groups that go on with other members, by PyTorch's interface of torch 2.14: handles that processes exchange.

An older PyTorch has no such functions; then these cases call the methods of the group that it would call.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.torch_ranks import on_ranks
from torch.distributed import distributed_c10d

from taihu.torch.backend import Groups

LIMIT = timedelta(seconds=60)
HAS_INTERFACE = hasattr(dist, "_reconfigure")
COPIED = ("store", "group_rank", "group_size", "timeout", "group_id", "global_ranks_in_group")


def create(options: Any, more: Any) -> Any:
    """A group as torch 2.14 asks for it."""
    copied = {name: getattr(options, name) for name in COPIED}
    return Groups().create(SimpleNamespace(**copied, enable_reconfigure=True), more)


class Member:
    """A rank whose group is reconfigured; `folder` is that of the store by which ranks exchange handles."""

    def __init__(self, rank: int, folder: Path) -> None:
        dist.destroy_process_group()
        self.rank = rank
        self.store = dist.FileStore(str(folder / "handles"))
        place = {"store": self.store, "rank": rank, "world_size": 3, "timeout": LIMIT}
        if HAS_INTERFACE:
            dist.init_process_group("taihu", **place, enable_reconfigure=True)
        else:
            dist.Backend.register_backend("taihu_anew", create, extended_api=True, devices=["cpu"])
            dist.init_process_group("taihu_anew", **place)
        self.group: Any = dist.group.WORLD
        assert self.group.supports_reconfigure

    @property
    def handle(self) -> str:
        """The present one."""
        return str(dist._get_reconfigure_handle() if HAS_INTERFACE else self.group.get_reconfigure_handle())

    def handles(self, what: str, ranks: Sequence[int] = (0, 1, 2)) -> list[str]:
        """Those of some ranks, all of which ask for the same `what`."""
        self.store.set(f"{what}/{self.rank}", self.handle)
        return [bytes(self.store.get(f"{what}/{rank}")).decode() for rank in ranks]

    def reconfigure(self, uuid: int, handles: Collection[str]) -> tuple[int, int, float]:
        """The rank, the number of ranks, and a sum of ones."""
        if HAS_INTERFACE:
            dist._reconfigure(uuid, handles, timeout=LIMIT).wait()
        else:
            options = SimpleNamespace(uuid=uuid, handles=handles, timeout=LIMIT, hints={})
            self.group.reconfigure(options).wait()
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return dist.get_rank(), dist.get_world_size(), tensor.item()


def shrink_and_grow(rank: int, folder: Path) -> list[Any]:
    member = Member(rank, folder)
    with pytest.raises(dist.DistBackendError, match="not connected; call reconfigure"):
        dist.all_reduce(torch.ones(1))
    seen: list[Any] = [member.reconfigure(1, member.handles("first"))]
    place = torch.zeros(1)
    message = dist.isend(torch.tensor([float(rank)]), (rank + 1) % 3)
    dist.recv(place, (rank - 1) % 3)
    assert message is not None
    message.wait()
    seen.append(place.item())
    seen.append(member.reconfigure(10 + rank, [member.handle]))
    # In any order, which is the same for all.
    handles = member.handles("again")
    anew = member.reconfigure(2, set(handles))
    seen.append((anew[0] == sorted(handles).index(handles[rank]), *anew[1:]))
    # One alone and two together, who are merged in another order.
    handles = member.handles("split")
    seen.append(member.reconfigure(20 + (rank == 1), [handles[1]] if rank == 1 else [handles[2], handles[0]]))
    seen.append(member.reconfigure(3, member.handles("merged", (2, 1, 0))))
    return seen


def test_groups_shrink_and_grow_in_the_same_processes(tmp_path: Path) -> None:
    for rank, seen in enumerate(on_ranks(3, tmp_path, shrink_and_grow, tmp_path)):
        split = (0, 1, 1.0) if rank == 1 else (1 if rank == 0 else 0, 2, 2.0)
        expected = [(rank, 3, 3.0), float((rank - 1) % 3), (0, 1, 1.0), (True, 3, 3.0), split, (2 - rank, 3, 3.0)]
        assert seen == expected


def go_on_without(rank: int, folder: Path) -> list[Any]:
    """Rank 1 dies while the others wait for it; its handle is good for nothing then."""
    member = Member(rank, folder)
    member.reconfigure(1, member.handles("first"))
    handles = member.handles("second")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    told = []
    with pytest.raises(dist.DistBackendError) as failed:
        dist.all_reduce(torch.ones(1))
    told.append(str(failed.value))
    with pytest.raises(dist.DistBackendError) as failed:
        member.reconfigure(2, handles)
    told.append(str(failed.value))
    return [told, member.reconfigure(3, member.handles("third", (0, 2)))]


def test_survivors_go_on_in_the_same_group(tmp_path: Path) -> None:
    zero, one, two = on_ranks(3, tmp_path, go_on_without, tmp_path)
    assert one is None
    for place, (told, seen) in enumerate((zero, two)):
        assert "allreduce: rank 1" in told[0]
        assert "reconfigure: rank 1 was lost" in told[1]
        assert seen == (place, 2, 2.0)


def join_late(rank: int, folder: Path) -> list[Any]:
    member = Member(rank, folder)
    early = member.handles("first")[:2]
    seen: list[Any] = [member.reconfigure(1, early)] if rank < 2 else []
    seen.append(member.reconfigure(2, member.handles("second")))
    distributed_c10d._get_default_group().abort()
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(torch.ones(1))
    return [*seen, member.reconfigure(3, member.handles("third"))]


def test_members_join_late_and_behind_an_abort(tmp_path: Path) -> None:
    for rank, seen in enumerate(on_ranks(3, tmp_path, join_late, tmp_path)):
        both = [(rank, 3, 3.0), (rank, 3, 3.0)]
        assert seen == ([(rank, 2, 2.0), *both] if rank < 2 else both)


def refuse(rank: int, folder: Path) -> None:
    plain: Any = dist.group.WORLD
    assert not plain.supports_reconfigure
    with pytest.raises(dist.DistBackendError, match="cannot be reconfigured; make it by"):
        plain.get_reconfigure_handle()
    member = Member(rank, folder)
    former = member.handle
    assert member.handle == former
    member.reconfigure(rank, [former])
    with pytest.raises(dist.DistBackendError, match=f"uuid {rank} was already used"):
        member.reconfigure(rank, [member.handle])
    with pytest.raises(ValueError, match="handle is not among the handles"):
        member.reconfigure(rank + 10, [former])


def test_what_cannot_be_reconfigured_is_said(tmp_path: Path) -> None:
    on_ranks(3, tmp_path, refuse, tmp_path)
