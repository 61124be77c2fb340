"""A link measured from one side: small frames one at a time, large ones as many at once as a run sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Final

import numpy as np

from taihu.core.base.errors import PeerUnreachableError, TaihuError
from taihu.core.coordination.coordinator.service import new_incarnation
from taihu.core.system.queues import Empty, SimpleQueue
from taihu.core.wire.base.address import split_address
from taihu.core.wire.base.clock import Clock, SystemClock
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.frames.headers import Address, At, Frame, FrameHeader
from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.core.wire.frames.kinds import Encoding, Gradients, Kind, Parameters, Question, Summed
from taihu.core.wire.links.frame_link import FrameLink, LinkEnd
from taihu.core.wire.links.inbox import Origin, Sink
from taihu.core.wire.links.outbox import last_word
from taihu.core.wire.links.pipe import PipeEvents
from taihu.doctor.collecting import interface_towards
from taihu.doctor.facts import Interface, LinkFacts

DOCTOR_SERVICE: Final = "taihu.v1.DoctorService"
MOST_BYTES: Final = 1 << 28
"""Bytes of values that all frames of a measurement have at most together, both ways."""

_SMALL, _WARM_UP, _ROUNDS = 16, 4, 24
_WINDOW: Final = 6
_FP32_BYTES: Final = 4
# Frames of a run; the first large one is smaller, and says how large the others may be on a slow link.
_FIRST_BYTES, _LARGE_BYTES = 1 << 16, 1 << 19
_FRAME_S, _PHASE_S, _PHASE_BYTES = 0.1, 0.6, 1 << 26
_FEWEST: Final = 2 * _WINDOW
# A slow link is not waited for until it has taken so many.
_LONGEST_PHASE_S, _LONGEST_S = 4.0, 40.0
_PATIENCE: Final = Patience(15.0)

Answer = float | TaihuError


def measure_link(
    near: str, far: str, address: str, far_interface: Interface, clock: Clock | None = None
) -> LinkFacts:
    """Measure the link to the doctor at `address`, within 45 s; what breaks it off is in the facts.

    Args:
        near: this machine, by the name of the facts.
        far: the other one.
        address: where it listens.
        far_interface: that by which it reaches this machine.
        clock: measures.
    """
    clock = clock or SystemClock()
    begun = LinkFacts(
        near,
        far,
        near_interface=interface_towards(split_address(address)[0]),
        far_interface=far_interface,
    )
    return _Measurement(begun, address, clock).run()


class _Measurement:
    """One measurement; `facts` is what is known so far."""

    def __init__(self, begun: LinkFacts, address: str, clock: Clock) -> None:
        self._facts = begun
        self._clock = clock
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._values = np.random.default_rng(1).standard_normal(_LARGE_BYTES // _FP32_BYTES).astype(np.float32)
        identity = WorkerIdentity("doctor", 0, new_incarnation())
        self._sender = identity.sender
        origin = Origin(f"the doctor at {address}", identity.sender, patience=_PATIENCE)
        room = np.empty(_LARGE_BYTES // _FP32_BYTES, dtype=np.float32)
        sink = Sink(
            (Summed, Parameters),
            places=lambda header: [room[: header.address.elements]],
            take=lambda header, values, in_place: self._answers.put(clock.now()),
            take_frame=self._answered,
        )
        ended = PeerUnreachableError(f"the doctor at {address} has ended")
        events = PipeEvents(self._answers.put, lambda: self._answers.put(ended))
        self._link = FrameLink(LinkEnd(DOCTOR_SERVICE, address, origin), identity, sink, events)
        self._until_s = clock.now() + _LONGEST_S

    def run(self) -> LinkFacts:
        """All phases, one after the other."""
        self._link.open()
        try:
            self._phases()
        except TaihuError as error:
            self._facts = replace(self._facts, failure=str(error))
            self._link.abandon()
            self._link.close()
        else:
            self._link.close(last_word(self._sender, At(0, 0)))
        return self._facts

    def _phases(self) -> None:
        rounds = [self._round(_SMALL) for _ in range(_WARM_UP + _ROUNDS)][_WARM_UP:]
        self._facts = replace(self._facts, alpha_s=median(rounds) / 2, small_passed=True)
        size = self._frame_bytes()
        self._facts = replace(self._facts, up=self._rate(self._push, size))
        self._facts = replace(self._facts, down=self._rate(self._ask, size))
        self._link.prepare("tcp")
        self._link.settle()
        self._link.carry("tcp")
        if self._link.path == "tcp":
            self._facts = replace(self._facts, direct=self._rate(self._push, size))

    def _answered(self, frame: Frame) -> None:
        self._answers.put(self._clock.now())

    def _round(self, elements: int) -> float:
        """Seconds from a frame to its answer."""
        start = self._clock.now()
        self._push(elements)
        return self._next() - start

    def _frame_bytes(self) -> int:
        """Bytes of a frame that takes no more than a tenth of a second, of those that a run has."""
        seconds = max(1e-6, self._round(_FIRST_BYTES // _FP32_BYTES))
        fitting = int(_FIRST_BYTES * _FRAME_S / seconds)
        return max(_FIRST_BYTES, min(_LARGE_BYTES, fitting)) // _FP32_BYTES * _FP32_BYTES

    def _rate(self, send: Callable[[int], None], size: int) -> float:
        """Bytes per second between the first answer and the last one, with a window of frames under way."""
        elements = size // _FP32_BYTES
        for _ in range(_WINDOW):
            send(elements)
        first = last = self._next()
        answered, under_way = 0, _WINDOW - 1
        most = _PHASE_BYTES // size
        while under_way:
            begun, elapsed_s = answered + under_way, last - first
            is_short = begun < _FEWEST and elapsed_s < _LONGEST_PHASE_S
            if is_short or (elapsed_s < _PHASE_S and begun < most):
                send(elements)
                under_way += 1
            last = self._next()
            answered, under_way = answered + 1, under_way - 1
        return answered * size / max(1e-9, last - first)

    def _push(self, elements: int) -> None:
        self._link.send(self._header(Gradients(), elements, Encoding.DENSE), [self._values[:elements]])

    def _ask(self, elements: int) -> None:
        self._link.send(self._header(Question(), elements, Encoding.NONE), ())

    def _header(self, kind: Kind, elements: int, encoding: Encoding) -> FrameHeader:
        return FrameHeader(self._sender, Address(At(0, 0), 0, 0, elements), kind, encoding)

    def _next(self) -> float:
        """The instant of the next answer; raises what ended the link, or PeerUnreachableError after five seconds."""
        try:
            answer = self._answers.get(timeout=_PATIENCE.answer_s)
        except Empty:
            raise PeerUnreachableError(f"no answer to a frame within {_PATIENCE.answer_s:g} s") from None
        if isinstance(answer, TaihuError):
            raise answer
        if answer > self._until_s:
            raise PeerUnreachableError(f"not measured within {_LONGEST_S:g} s")
        return answer
