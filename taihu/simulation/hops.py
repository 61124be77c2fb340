"""A ring of many ranks on the virtual clock, hop by hop: what all ranks do at a hop is computed at once.

By the schedule of `allreduce.ring`: at hop h rank r sends the chunk h ranks behind it, takes in the one h + 1 behind,
and sends a segment on when it has added it. Each port, memory and connection serves what comes in its order. Of
several operations the hop whose first rank is ready first goes first, on all ranks. So an operation alone is what its
messages one by one make of it; where some overlap, the order at a port is that of the rank that is ahead (ADR 34).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.order.operation import Action, Operation, OperationKey
from taihu.allreduce.ring.schedule import Chunks, Ring
from taihu.core.wire.frames.format import HEADER_BYTES
from taihu.simulation.network import Fabric, Host

MANY_RANKS: Final = 32
"""Rings of more ranks go hop by hop."""

Array = NDArray[np.float64]


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


class _Meeting:
    """One operation of all ranks: arrays have one entry for each, `ready` a row for each segment."""

    def __init__(self, ranks: int) -> None:
        self.started = np.zeros(ranks)
        self.operations: list[tuple[int, Operation]] = []
        self.segments: _Segments
        self.passes: Mapping[Action, int] = {}
        self.hops = range(0)
        self.hop = 0
        self.ready: Array = np.empty(0)
        self.finish: Array = np.empty(0)


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
        self._meetings: dict[OperationKey, _Meeting] = {}
        self._segments: dict[int, _Segments] = {}

    def start(self, rank: int, operation: Operation, passes: Mapping[Action, int]) -> None:
        """Rank `rank` takes part in an operation, which takes so many passes over every segment that comes."""
        meeting = self._meetings.setdefault(operation.key, _Meeting(len(self._hosts)))
        meeting.started[rank] = self._queue.now
        meeting.operations.append((rank, operation))
        if len(meeting.operations) < len(self._hosts):
            return
        del self._meetings[operation.key]
        schedule = operation.schedule
        assert isinstance(schedule, Ring)  # noqa: S101 - of all dense operations
        meeting.segments = segments = self._segments_of(schedule.chunks)
        meeting.passes, meeting.hops = passes, schedule.hops
        meeting.hop = meeting.hops.start
        meeting.ready = np.repeat(meeting.started[None, :], len(segments.values), axis=0)
        meeting.finish = meeting.started.copy()
        self._hop(meeting)

    def _segments_of(self, chunks: Chunks) -> _Segments:
        """The segments of `chunks`, which stay as long as this."""
        known = self._segments.get(id(chunks))
        if known is None:
            known = self._segments[id(chunks)] = _Segments(chunks, self._value_bytes)
        return known

    def _hop(self, meeting: _Meeting) -> None:
        """All ranks send what they have for this hop, take in what comes, and are ready for the next one."""
        hop, turn = meeting.hop, len(self._hosts) - 1
        kind = Action.REPLACE if hop >= turn else Action.COMPLETE if hop == turn - 1 else Action.ADD
        value_s = meeting.passes[kind] * self._value_bytes / self._add_rate
        for segment in range(len(meeting.ready)):
            self._send(meeting, segment, value_s)
        meeting.hop += 1
        if meeting.hop == meeting.hops.stop:
            self._end(meeting)
        else:
            self._queue.at(max(self._queue.now, float(meeting.ready.min())), self._hop, meeting)

    def _send(self, meeting: _Meeting, segment: int, value_s: float) -> None:
        segments, ready = meeting.segments, meeting.ready[segment]
        sent, taken_in = segments.behind(meeting.hop), segments.behind(meeting.hop + 1)
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
        np.maximum(taken, meeting.started, out=taken)
        np.maximum(taken, self._memory, out=taken)
        taken += segments.values[segment, taken_in] * value_s
        if not segments.are_all:
            goes, comes = segments.is_there[segment, sent], segments.is_there[segment, taken_in]
            left, into = np.where(goes, left, self._out), np.where(goes, into, self._into)
            end, up = np.where(goes, end, self._last_end), np.where(goes, up, self._up)
            np.copyto(meeting.finish, taken, where=comes)
            np.copyto(ready, taken, where=comes)
            np.copyto(self._memory, taken, where=comes)
        else:
            ready[:] = taken
            meeting.finish = self._memory = taken
        self._out, self._into, self._last_end, self._up = left, into, end, up

    def _end(self, meeting: _Meeting) -> None:
        moved = meeting.segments.moved_bytes(meeting.hops)
        ends, sent = np.maximum(meeting.finish, self._queue.now).tolist(), moved.tolist()
        for rank, operation in sorted(meeting.operations, key=itemgetter(0)):
            self._hosts[rank].sent_bytes += sent[rank]
            self._hosts[rank].received_bytes += sent[rank - 1]
            operation.sent_bytes = round(sent[rank])
            self._queue.at(ends[rank], operation.on_finished)
