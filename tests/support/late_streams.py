"""A device in memory that computes and copies late, in any order that its events allow."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["LateDevice", "LateEvent", "LateStreams", "Queue"]

Work = Callable[[], None]


class Queue:
    """A stream: work that has not been done yet, each behind so much of other streams'."""

    def __init__(self, lock: threading.RLock) -> None:
        self.waiting: deque[tuple[dict[Queue, int], Work]] = deque()
        self.done = 0
        self._lock = lock
        self._queued = 0
        self._after: dict[Queue, int] = {}

    def put(self, work: Work) -> None:
        with self._lock:
            self.waiting.append((dict(self._after), work))
            self._queued += 1

    def place(self) -> int:
        """The number of works so far."""
        with self._lock:
            return self._queued

    def wait_for(self, other: Queue) -> None:
        """Have later work come behind what the other stream has to do so far."""
        with self._lock:
            self._after[other] = other.place()

    def do_next(self) -> bool:
        """Do the first work, if there is one that may be done."""
        if not self.waiting or any(other.done < place for other, place in self.waiting[0][0].items()):
            return False
        _, work = self.waiting.popleft()
        work()
        self.done += 1
        return True


class LateDevice:
    """The stream that computes, and others for copies; any thread may call.

    The device works as `draw` says: 0 computes, 1 and more copy, a number beyond the streams rests.
    """

    def __init__(self, draw: Callable[[], int]) -> None:
        self.lock = threading.RLock()
        self.compute = Queue(self.lock)
        self.queues = [self.compute]
        self.waited: set[int] = set()
        """The threads that have asked or waited for the device."""
        self.may_run = threading.Event()
        """Until it is set the device does nothing."""
        self.may_run.set()
        self._draw = draw

    def stream(self) -> Queue:
        """One stream more."""
        queue = Queue(self.lock)
        self.queues.append(queue)
        return queue

    def run_some(self) -> None:
        """Do a piece of work, or none."""
        with self.lock:
            if (choice := self._draw()) < len(self.queues):
                self._do(choice)

    def run(self, until: Callable[[], bool]) -> None:
        """Work until something is true."""
        with self.lock:
            while not until():
                assert self._do(self._draw() % len(self.queues)), "the device is stuck"

    def finish(self) -> None:
        """Do all that is queued."""
        self.run(lambda: not any(queue.waiting for queue in self.queues))

    def _do(self, first: int) -> bool:
        return any(queue.do_next() for queue in (*self.queues[first:], *self.queues[:first]))


@dataclass
class LateEvent:
    """A place in a stream; whoever waits has the device run on."""

    device: LateDevice
    queue: Queue
    place: int

    def query(self) -> bool:
        self.device.waited.add(threading.get_ident())
        if self.device.may_run.is_set():
            self.device.run_some()
        return self.queue.done >= self.place

    def synchronize(self) -> None:
        self.device.waited.add(threading.get_ident())
        self.device.may_run.wait()
        self.device.run(lambda: self.queue.done >= self.place)


class LateStreams:
    """`Streams` of a device in memory: one for copies beside that which computes."""

    def __init__(self, device: LateDevice) -> None:
        self.device = device
        self.side = device.stream()
        self.held: set[int] = set()
        """The addresses of tensors whose memory is kept."""

    def side_waits(self) -> None:
        self.side.wait_for(self.device.compute)

    def compute_waits(self) -> None:
        self.device.compute.wait_for(self.side)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.side.put(lambda: target.copy_(source))

    def hold(self, tensor: torch.Tensor) -> None:
        self.held.add(tensor.data_ptr())

    def mark(self) -> LateEvent:
        # An event is work, too: the stream comes to it when it need not wait any more.
        self.side.put(lambda: None)
        return LateEvent(self.device, self.side, self.side.place())
