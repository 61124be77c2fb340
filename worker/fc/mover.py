"""Transfers of the tail over a communicator, traced and counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.parts.mesh import Transfer, value_type_of
from taihu.core.trace import Tracer
from taihu.core.wire.base.clock import Clock
from taihu.core.wire.frames.headers import ValueType


@dataclass
class Background:
    """Seconds that transfers in the background took, and those of them in which this rank waited for their end."""

    took_s: float = 0.0
    waited_s: float = 0.0


class PeerMover:
    """A `taihu.worker.fc.tail.Mover`; `step` is the step that traces name."""

    def __init__(self, communicator: Communicator, clock: Clock, tracer: Tracer | None = None) -> None:
        self.rank = communicator.rank
        self.size = communicator.size
        self.step = 0
        self.sent_bytes = 0
        """Bytes of values sent so far."""
        self.background: dict[str, Background] = {}
        """By name, the transfers so far that are not urgent."""
        self._communicator = communicator
        self._clock = clock
        self.tracer = tracer or Tracer.off()

    def start(self, name: str, transfer: Transfer, *, urgent: bool = True) -> Callable[[], None]:
        """Start a transfer between all ranks; returns what waits for its end."""
        start_s, step = self._clock.now(), self.step
        self.sent_bytes += transfer.sent_bytes
        times = Background() if urgent else self.background.setdefault(name, Background())

        def finished() -> None:
            times.took_s += self._clock.now() - start_s
            self.tracer.add(f"fc {name}", name, start_s, self._clock.now(), step=step)

        arrays = [piece for pieces in (*transfer.sends, *transfer.receives) for piece in pieces[:1]]
        value_type = value_type_of(arrays[0]) if arrays else ValueType.FP32
        operation = self._communicator.start_parts(transfer, value_type, urgent=urgent, on_finished=finished)

        def wait() -> None:
            wait_start_s = self._clock.now()
            self._communicator.wait(operation)
            times.waited_s += self._clock.now() - wait_start_s

        return wait
