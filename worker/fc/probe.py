"""A probe of the links before the first step: small and large transfers and sums, timed by all workers together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.parts.shards import gather_rows
from taihu.core.planner.fc_mode import FcChoice, FcJob, FcLayer, FcLinks, choose_fc
from taihu.core.wire.base.clock import Clock
from taihu.core.wire.frames.headers import ValueType
from taihu.worker.fc.mover import PeerMover

_SMALL: Final = 64
# More than the burst that a shaped link lets through at once.
_LARGE: Final = 1 << 20
_ROUNDS: Final = 5
_LARGE_ROUNDS: Final = 3


def probe_links(communicator: Communicator, servers: int, clock: Clock) -> FcLinks:
    """Measure; all ranks call this, and get what each of them saw."""
    mover = PeerMover(communicator, clock)
    small = _median(lambda: _gather(mover, _SMALL), _ROUNDS, clock)
    large = _median(lambda: _gather(mover, _LARGE), _LARGE_ROUNDS, clock)
    received = 4 * (communicator.size - 1) * (_LARGE - _SMALL)
    ring = np.zeros(_SMALL, dtype=np.float32)
    exchange = _median(lambda: communicator.allreduce(ring), _ROUNDS, clock)
    # A gradient goes to the servers and comes back, which is two transfers.
    per_byte = max(0.0, large - small) / received if received else 0.0
    return FcLinks(small, 2.0 * small if servers else exchange, per_byte)


def agree_on_fc(
    layers: Sequence[FcLayer],
    job: FcJob,
    communicator: Communicator,
    clock: Clock,
    *,
    insist: bool = False,
    leave_one: bool = False,
) -> tuple[FcChoice, ...]:
    """The choice of rank 0 by what it measured, on every rank; see `choose_fc`."""
    links = agree_on_links(communicator, job.servers, clock)
    return choose_fc(layers, job, links, insist=insist, leave_one=leave_one)


def agree_on_links(communicator: Communicator, servers: int, clock: Clock) -> FcLinks:
    """The links as rank 0 measured them, on every rank; they all call this."""
    links = probe_links(communicator, servers, clock)
    agreed = np.array([links.transfer_seconds, links.exchange_seconds, links.seconds_per_byte])
    communicator.broadcast(agreed, ValueType.FP64)
    return FcLinks(*agreed.tolist())


def _gather(mover: PeerMover, count: int) -> None:
    whole = np.zeros((mover.size, count), dtype=np.float32)
    mover.start("probe", gather_rows(mover.rank, range(mover.size + 1), whole))()


def _median(call: Callable[[], None], rounds: int, clock: Clock) -> float:
    seconds = []
    for _ in range(1 + rounds):
        start = clock.now()
        call()
        seconds.append(clock.now() - start)
    return float(np.median(seconds[1:]))
