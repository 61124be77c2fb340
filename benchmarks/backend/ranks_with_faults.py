"""Ranks of torch.distributed one of which is killed: where the kill meets them, and how the others go on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taihu.torch.backend  # noqa: F401 - registers the backend

__all__ = ["KILLED", "MOMENTS", "RANKS", "STEPS", "Fault", "losses_of_one_process", "run_rank"]

RANKS: Final = 3
KILLED: Final = 1
STEPS: Final = 3
_LARGE: Final = 5 << 20
_SEED: Final = 7
_LIMIT_S: Final = 100.0


class Fault(NamedTuple):
    """A run with a fault: over `backend`, through shared memory or else `by_ring`, at a moment of `MOMENTS`.

    `port` is that of the store, which the benchmark hosts, or rank 0 where `own_store`. Rank `killed` is killed, or
    stopped where `is_stopped`.
    """

    backend: str
    by_ring: bool
    moment: str
    port: int
    own_store: bool = False
    killed: int = KILLED
    is_stopped: bool = False
    timeout_s: float = 20.0

    @property
    def left(self) -> list[int]:
        """The ranks that go on."""
        return [rank for rank in range(RANKS) if rank != self.killed]


class _Rank(NamedTuple):
    """A rank in a fault's moment; `pipe` leads to the benchmark, which kills."""

    number: int
    fault: Fault
    pipe: Connection

    @property
    def is_killed(self) -> bool:
        return self.number == self.fault.killed

    def is_ready(self) -> None:
        """Tell the benchmark that the kill may come."""
        self.pipe.send(("ready", None))

    def wait_for_the_kill(self) -> None:
        """Wait, in no operation, until the benchmark says that it has killed."""
        if not self.pipe.poll(_LIMIT_S):
            raise SystemExit("error: no word of the kill")
        self.pipe.recv()


def _forever(call: Callable[[], object]) -> None:
    while True:
        call()


def _in_allreduce(rank: _Rank) -> None:
    tensor = torch.zeros(_LARGE)
    rank.is_ready()
    _forever(lambda: dist.all_reduce(tensor))


def _in_broadcast(rank: _Rank) -> None:
    tensor = torch.zeros(_LARGE)
    rank.is_ready()
    _forever(lambda: dist.broadcast(tensor, rank.fault.killed))


def _in_barrier(rank: _Rank) -> None:
    rank.is_ready()
    if rank.is_killed:
        rank.wait_for_the_kill()
    dist.barrier()


def _in_recv(rank: _Rank) -> None:
    """The others wait for each other, and neither for the rank that is killed."""
    rank.is_ready()
    if rank.is_killed:
        rank.wait_for_the_kill()
    dist.recv(torch.zeros(1), next(each for each in rank.fault.left if each != rank.number))


def _between(rank: _Rank) -> None:
    rank.is_ready()
    rank.wait_for_the_kill()
    dist.all_reduce(torch.zeros(1))


def _in_training(rank: _Rank) -> None:
    _, step = _trained(dist.get_rank())
    rank.is_ready()
    _forever(step)


def _in_destroy(rank: _Rank) -> None:
    """The others leave while an operation of theirs waits for the rank that is killed."""
    if rank.is_killed:
        rank.is_ready()
        rank.wait_for_the_kill()
    work = dist.all_reduce(torch.zeros(1), async_op=True)
    assert work is not None  # noqa: S101 - for types
    rank.is_ready()
    dist.destroy_process_group()
    work.wait()


MOMENTS: Final[Mapping[str, Callable[[_Rank], None]]] = MappingProxyType(
    {
        "allreduce of 20 MB": _in_allreduce,
        "broadcast of 20 MB": _in_broadcast,
        "barrier": _in_barrier,
        "recv from each other": _in_recv,
        "step of DistributedDataParallel": _in_training,
        "no operation": _between,
        "destroy_process_group": _in_destroy,
        "init_process_group": _in_barrier,
    }
)
_IN_INIT: Final = "init_process_group"


class _LastWords(dist.Store):  # type: ignore[misc]  # torch has no types in the gate
    """A store that kills its process when that has said where it is: at the `count`th key that it sets."""

    def __init__(self, store: Any, count: int, kill: Callable[[], None]) -> None:
        super().__init__()
        self._store = store
        self._left = count
        self._kill = kill

    def set(self, key: str, value: Any) -> None:
        """Set a key, perhaps the last one."""
        self._store.set(key, value)
        self._left -= 1
        if self._left == 0:
            self._kill()

    def get(self, key: str) -> Any:
        """A key's value."""
        return self._store.get(key)

    def multi_get(self, keys: list[str]) -> Any:
        """The values of keys."""
        return self._store.multi_get(keys)

    def add(self, key: str, value: int) -> Any:
        """Count."""
        return self._store.add(key, value)

    def check(self, keys: list[str]) -> Any:
        """Whether all keys are there."""
        return self._store.check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return when all keys are there."""
        self._store.wait(keys, timeout or timedelta(seconds=_LIMIT_S))

    def set_timeout(self, timeout: timedelta) -> None:
        """Wait so long."""
        self._store.set_timeout(timeout)

    def has_extended_api(self) -> bool:
        """No more than these."""
        return False


def _store(fault: Fault, rank: int, name: str) -> Any:
    hosts = fault.own_store and rank == 0
    store = dist.TCPStore("127.0.0.1", fault.port, is_master=hosts, timeout=timedelta(seconds=fault.timeout_s))
    return dist.PrefixStore(name, store)


def _init(fault: Fault, store: Any, rank: int, size: int) -> None:
    limit = timedelta(seconds=fault.timeout_s)
    dist.init_process_group(fault.backend, store=store, rank=rank, world_size=size, timeout=limit)


def _batches(rank: int) -> list[tuple[Any, Any]]:
    generator = torch.Generator().manual_seed(_SEED + rank)
    return [
        (torch.randn(8, 20, generator=generator), torch.randint(0, 5, (8,), generator=generator))
        for _ in range(STEPS)
    ]


def _model() -> Any:
    torch.manual_seed(_SEED)
    return nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 5))


def _trained(rank: int) -> tuple[Any, Callable[[], float]]:
    """A replica, and a step of it."""
    replica = DistributedDataParallel(_model())
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
    batches = _batches(rank)
    taken: list[float] = []

    def step() -> float:
        inputs, labels = batches[len(taken) % STEPS]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(replica(inputs), labels)
        loss.backward()
        optimizer.step()
        taken.append(loss.item())
        return taken[-1]

    return replica, step


def losses_of_one_process(ranks: list[int]) -> list[list[float]]:
    """The losses of each rank's steps, computed by one process that has the batches of all."""
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[list[float]] = [[] for _ in ranks]
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank, told in zip(ranks, losses, strict=True):
            inputs, labels = _batches(rank)[step]
            loss = nn.functional.cross_entropy(model(inputs), labels)
            (loss / len(ranks)).backward()
            told.append(loss.item())
        optimizer.step()
    return losses


def run_rank(number: int, fault: Fault, pipe: Connection) -> None:
    """Rank `number`'s part: it tells when its error came and which, and its losses of a group without the killed."""
    torch.set_num_threads(1)
    rank = _Rank(number, fault, pipe)
    with ExitStack() as patched:
        if fault.by_ring:
            patched.enter_context(mock.patch("taihu.torch.group.operations.exchange.share", return_value=None))
        try:
            _meet_the_fault(rank)
            error = "no error"
        except (RuntimeError, dist.DistError) as raised:
            error = f"{type(raised).__name__}: {raised}"
        at_s = time.monotonic()
        pipe.send(("error", (at_s, error)))
        if dist.is_initialized():
            dist.destroy_process_group()
        rank.pipe.send(("left", time.monotonic() - at_s))
        _go_on(rank)


def _meet_the_fault(rank: _Rank) -> None:
    fault = rank.fault
    store = _store(fault, rank.number, "first")
    if fault.moment == _IN_INIT:
        rank.is_ready()
        if rank.is_killed:
            # taihu's second key answers rank 0; Gloo's first one has its address.
            store = _LastWords(store, 2 if fault.backend == "taihu" else 1, lambda: _die(rank))
    _init(fault, store, rank.number, RANKS)
    if fault.moment != _IN_INIT:
        _trained(rank.number)[1]()
        dist.barrier()
    MOMENTS[fault.moment](rank)


def _die(rank: _Rank) -> None:
    rank.pipe.send(("dies", time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)


def _go_on(rank: _Rank) -> None:
    """Train in a group of those that are left, whose store another one hosts where the former host is gone."""
    fault = rank.fault
    own = fault.left.index(rank.number)
    if fault.own_store and fault.killed == 0:
        moved = fault._replace(port=fault.port + 1)
        store = _store(moved, own, "second")
    else:
        store = _store(fault, rank.number, "second")
    _init(fault, store, own, len(fault.left))
    _, step = _trained(rank.number)
    losses = [step() for _ in range(STEPS)]
    rank.pipe.send(("losses", losses))
    dist.barrier()
    dist.destroy_process_group()
    rank.pipe.send(("threads", threading.active_count()))
