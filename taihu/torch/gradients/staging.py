"""Gradients on a CUDA device on their way to the arena and back, beside what the device computes.

Copies run on a side stream. The thread that runs backward queues them and goes on; a gradient may be sent once the
event behind its copy has come to pass. While backward goes on that is asked for without waiting; at its end it is
waited for. What comes back is copied on the same stream, and whatever the device computes afterwards comes behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import structlog
import torch

_log = structlog.get_logger()

_PORTABLE: Final = 1


class Event(Protocol):
    """A place in a stream, as torch.cuda.Event is."""

    def query(self) -> bool:
        """Whether all before it is done."""
        ...

    def synchronize(self) -> None:
        """Return when it is."""
        ...


class Streams(Protocol):
    """The stream that computes and one for copies; every call returns at once."""

    def side_waits(self) -> None:
        """Have later copies come behind what is computed so far."""
        ...

    def compute_waits(self) -> None:
        """Have later computation come behind what is copied so far."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy on the side stream."""
        ...

    def mark(self) -> Event:
        """An event behind all copies so far."""
        ...


class Staging:
    """The gradients of one device between it and the arena; one thread calls it at a time.

    Args:
        streams: of the device.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._arriving: dict[int, Event] = {}
        self._is_giving = False
        self._given: Event | None = None

    def take(self, index: int, view: torch.Tensor, gradient: torch.Tensor) -> None:
        """Begin to copy gradient `index` to the arena, behind what computes it."""
        self._streams.side_waits()
        self._streams.copy(view, gradient)
        self._arriving[index] = self._streams.mark()

    def is_there(self, index: int) -> bool:
        """Whether gradient `index` lies in the arena; returns at once."""
        event = self._arriving.get(index)
        if event is not None and not event.query():
            return False
        self._arriving.pop(index, None)
        return True

    def wait(self, index: int) -> None:
        """Return when gradient `index` lies in the arena."""
        event = self._arriving.pop(index, None)
        if event is not None:
            event.synchronize()

    def give(self, gradient: torch.Tensor, view: torch.Tensor) -> None:
        """Begin to copy what came back to a gradient; `given` comes behind the last one."""
        if not self._is_giving:
            self._streams.side_waits()
            self._is_giving = True
        self._streams.copy(gradient, view)

    def given(self) -> None:
        """Have the device compute with these gradients only when they are there."""
        if self._is_giving:
            self._is_giving = False
            self._given = self._streams.mark()
            self._streams.compute_waits()

    def settle(self) -> None:
        """Return when the arena may be written to by this thread: nothing of it is being copied."""
        if self._given is not None:
            self._given.synchronize()
            self._given = None


class CudaStreams:
    """`Streams` of a CUDA device: the caller's present stream computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)

    def side_waits(self) -> None:
        """Have the side stream wait for the present one."""
        self._side.wait_stream(torch.cuda.current_stream(self._device))

    def compute_waits(self) -> None:
        """Have the present stream wait for the side stream."""
        torch.cuda.current_stream(self._device).wait_stream(self._side)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy; types are converted on the device, since converting on the host would wait for it."""
        with torch.cuda.stream(self._side):
            if source.dtype != target.dtype:
                source = source.to(target.dtype) if source.is_cuda else source.to(self._device, non_blocking=True)
            target.copy_(source, non_blocking=True)

    def hold(self, tensor: torch.Tensor) -> None:
        """Keep the memory of a device's tensor from other tensors until the copies so far are done, freed or not."""
        tensor.record_stream(self._side)

    def mark(self) -> Any:
        """An event behind what the side stream has to do."""
        event = torch.cuda.Event()
        event.record(self._side)
        return event


def staging_of(device: torch.device) -> Staging | None:
    """A device's gradients on their way; None where the host reads them as they are, or copies them at once."""
    return Staging(CudaStreams(device)) if device.type == "cuda" else None


def pin(arena: torch.Tensor) -> Callable[[], None]:
    """Lock the arena's pages, so that devices copy from and to them by themselves; returns what unlocks them.

    Where that cannot be, as with too low a limit of locked memory, copies are right and wait for the device.
    """
    cudart, place = torch.cuda.cudart(), arena.data_ptr()
    error = int(cudart.cudaHostRegister(place, arena.nbytes, _PORTABLE))
    if error:
        _log.warning("arena not pinned", cuda_error=error, remedy="raise the limit of locked memory (ulimit -l)")
        return lambda: None
    return lambda: cudart.cudaHostUnregister(place)
