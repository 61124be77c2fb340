"""A ring of many ranks on the virtual clock, hop by hop: what all ranks do at a hop is computed at once.

By the schedule of `allreduce.ring`: at hop h rank r sends the chunk h ranks behind it, takes in the one h + 1 behind,
and sends a segment on when it has added it. Each port, memory and connection serves what comes in its order. Of
several operations the hop whose first rank is ready first goes first, on all ranks. So an operation alone is what its
messages one by one make of it; where some overlap, the order at a port is that of the rank that is ahead (ADR 34).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.order.operation import Action
from taihu.allreduce.ring.schedule import Chunks, Phase
from taihu.core.wire.frames.format import HEADER_BYTES
from taihu.simulation.network import Fabric, Host

MANY_RANKS: Final = 32
"""Rings of more ranks go hop by hop."""

Array = NDArray[np.float64]
Finished = Callable[[float], None]


class _Segments:
    """The segments of all chunks: arrays have one row for each segment, twice around the ring of chunks.

    Attributes:
        are_all: whether every chunk has as many.
        is_there, size_bytes, values: of each.
    """

    def __init__(self, chunks: Chunks, value_bytes: int) -> None:
        self.ranks = len(chunks)
        counts = np.zeros((max(map(len, chunks)), self.ranks))
        for chunk, frames in enumerate(chunks):
            counts[: len(frames), chunk] = [frame.count for frame in frames]
        twice = np.concatenate((counts, counts), axis=1)
        self.are_all = bool(counts.all())
        self.is_there = twice > 0
        self.values = twice
        self.size_bytes = np.where(self.is_there, HEADER_BYTES + twice * value_bytes, 0.0)

    def behind(self, hop: int) -> slice:
        """The columns of the chunks `hop` ranks behind each rank."""
        first = -hop % self.ranks
        return slice(first, first + self.ranks)

    def moved_bytes(self, hops: range) -> Array:
        """Bytes that each rank sends at all of these hops together."""
        whole = np.zeros(2 * self.ranks + 1)
        np.cumsum(self.size_bytes.sum(axis=0), out=whole[1:])
        ranks = np.arange(self.ranks)
        rounds, rest = divmod(len(hops), self.ranks)
        # The chunks from `hops.stop` - 1 behind, `rest` of them, up to `hops.start` + rounds * ranks behind.
        first = (ranks - hops.stop + 1) % self.ranks
        return np.asarray(rounds * whole[self.ranks] + whole[first + rest] - whole[first])


class _Operation:
    """One operation of all ranks: arrays have one entry for each, `ready` a row for each segment."""

    def __init__(self, ranks: int) -> None:
        self.missing = ranks
        self.started = np.zeros(ranks)
        self.on_finished: list[Finished] = [_nobody] * ranks
        self.segments: _Segments
        self.passes: Mapping[Action, int] = {}
        self.hops = range(0)
        self.hop = 0
        self.ready: Array = np.empty(0)
        self.finish: Array = np.empty(0)


def _nobody(_: float) -> None:
    """Nobody waits for it."""


class Hops:
    """All ranks of a ring.

    Args:
        fabric: of the network, whose ports send and receive at once.
        hosts: of the ranks, in their order.
        value_bytes: of a value on the wire.
        add_rate: bytes that a host adds in a second.
    """

    def __init__(self, fabric: Fabric, hosts: Sequence[Host], value_bytes: int, add_rate: float) -> None:
        ranks, network = len(hosts), fabric.network
        ends = list(zip(hosts, (*hosts[1:], hosts[0]), strict=True))
        self._fabric, self._queue, self._hosts = fabric, fabric.queue, hosts
        self._value_bytes, self._add_rate = value_bytes, add_rate
        self._message_s = network.message_seconds
        self._per_byte = 1.0 / network.bytes_per_second
        self._alpha_s = np.array([fabric.alpha_to_neighbour(*pair, ranks) for pair in ends])
        uplinks = [fabric.uplinks(*pair) for pair in ends]
        self._up_per_byte = np.array([1.0 / links[0][1].bytes_per_second if links else 0.0 for links in uplinks])
        self._crosses = bool(self._up_per_byte.any())
        # Instants from which ports out and in, links between supernodes, memories and connections are free. What
        # leads to the next rank is counted as that of the rank that sends.
        self._out, self._into, self._up, self._memory, self._last_end = (np.zeros(ranks) for _ in range(5))
        self._operations: dict[Hashable, _Operation] = {}
        self._segments: dict[int, _Segments] = {}

    def start(  # noqa: PLR0917 - an operation, and whose part
        self,
        rank: int,
        key: Hashable,
        chunks: Chunks,
        phase: Phase,
        on_finished: Finished,
        passes: Mapping[Action, int],
    ) -> None:
        """Rank `rank` takes part in an operation; `on_finished` gets the bytes that it sent, at its end."""
        operation = self._operations.setdefault(key, _Operation(len(self._hosts)))
        operation.started[rank] = self._queue.now
        operation.on_finished[rank] = on_finished
        operation.missing -= 1
        if operation.missing:
            return
        del self._operations[key]
        operation.segments = segments = self._segments_of(chunks)
        operation.passes = passes
        turn = len(self._hosts) - 1
        operation.hops = range(turn if phase == "allgather" else 0, turn if phase == "reduce-scatter" else 2 * turn)
        operation.hop = operation.hops.start
        operation.ready = np.repeat(operation.started[None, :], len(segments.values), axis=0)
        operation.finish = operation.started.copy()
        self._hop(operation)

    def _segments_of(self, chunks: Chunks) -> _Segments:
        """The segments of `chunks`, which stay as long as this."""
        known = self._segments.get(id(chunks))
        if known is None:
            known = self._segments[id(chunks)] = _Segments(chunks, self._value_bytes)
        return known

    def _hop(self, operation: _Operation) -> None:
        """All ranks send what they have for this hop, take in what comes, and are ready for the next one."""
        hop, turn = operation.hop, len(self._hosts) - 1
        kind = Action.REPLACE if hop >= turn else Action.COMPLETE if hop == turn - 1 else Action.ADD
        value_s = operation.passes[kind] * self._value_bytes / self._add_rate
        for segment in range(len(operation.ready)):
            self._send(operation, segment, value_s)
        operation.hop += 1
        if operation.hop == operation.hops.stop:
            self._end(operation)
        else:
            self._queue.at(max(self._queue.now, float(operation.ready.min())), self._hop, operation)

    def _send(self, operation: _Operation, segment: int, value_s: float) -> None:
        segments, ready = operation.segments, operation.ready[segment]
        sent, taken_in = segments.behind(operation.hop), segments.behind(operation.hop + 1)
        size = segments.size_bytes[segment, sent]
        busy = size * self._per_byte + self._message_s
        alpha = self._fabric.uneven_array(self._alpha_s)
        start = np.maximum(ready, self._out)
        entered, left = start + alpha, start + busy
        into = np.maximum(entered, self._into) + busy
        end = np.maximum(np.maximum(left + alpha, into), self._last_end)
        up = self._up
        if self._crosses:
            up = np.maximum(entered, self._up) + size * self._up_per_byte
            end = np.where(self._up_per_byte > 0.0, np.maximum(end, up), end)
        taken = np.concatenate((end[-1:], end[:-1]))
        np.maximum(taken, operation.started, out=taken)
        np.maximum(taken, self._memory, out=taken)
        taken += segments.values[segment, taken_in] * value_s
        if not segments.are_all:
            goes, comes = segments.is_there[segment, sent], segments.is_there[segment, taken_in]
            left, into = np.where(goes, left, self._out), np.where(goes, into, self._into)
            end, up = np.where(goes, end, self._last_end), np.where(goes, up, self._up)
            np.copyto(operation.finish, taken, where=comes)
            np.copyto(ready, taken, where=comes)
            np.copyto(self._memory, taken, where=comes)
        else:
            ready[:] = taken
            operation.finish = self._memory = taken
        self._out, self._into, self._last_end, self._up = left, into, end, up

    def _end(self, operation: _Operation) -> None:
        sent = operation.segments.moved_bytes(operation.hops)
        received = np.roll(sent, 1)
        ends = np.maximum(operation.finish, self._queue.now)
        parts = zip(self._hosts, operation.on_finished, ends.tolist(), sent.tolist(), received.tolist(), strict=True)
        for host, on_finished, end, out, into in parts:
            host.sent_bytes += out
            host.received_bytes += into
            self._queue.at(end, on_finished, out)
