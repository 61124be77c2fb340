"""Tensors of CUDA devices in a group's operations: copies in locked host memory take part, beside the device's work.

The thread that issues an operation queues copies to the host and goes on. The group's thread waits for them, runs the
operation on the host, and queues copies back, on a stream of their own: results return while later gradients are
computed. Whoever waits for the operation has its present stream wait for them, and not the host.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Protocol

import torch

from taihu.allreduce.order.operation import IsFailed
from taihu.core.system.clocks import sleep
from taihu.core.system.threads import Lock
from taihu.torch.gradients.staging import CudaStreams, Streams

_LIBRARY: Final = "libnvidia-ml.so.1"
_ASKED_S: Final = (5e-5, 1e-3)
"""The device is asked again after the first pause, then after twice as long, until the second."""


class Copies(Streams, Protocol):
    """Streams for copies in one direction."""

    def hold(self, tensor: Any) -> None:
        """Keep the memory of a device's tensor from other tensors until the copies so far are done, freed or not."""
        ...


class Device(Protocol):
    """A device whose tensors are copied: `inward` to the host, and `outward` from it."""

    @property
    def inward(self) -> Copies:
        """The stream of copies to the host."""
        ...

    @property
    def outward(self) -> Copies:
        """The stream of copies from the host."""
        ...

    def room(self, tensor: Any) -> Any:
        """Host memory like `tensor`, contiguous; when it is freed no other gets it before copies from it are done."""
        ...


class CudaDevice:
    """A `Device` of CUDA."""

    def __init__(self, device: torch.device) -> None:
        self.inward: Copies = CudaStreams(device)
        self.outward: Copies = CudaStreams(device)

    def room(self, tensor: Any) -> Any:
        """Locked pages of PyTorch's own cache, which knows of the copies that are queued on them."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


def device_of(device: torch.device) -> Device | None:
    """The `Device` of a tensor's device; None where operations read and write tensors as they are."""
    return CudaDevice(device) if device.type == "cuda" else None


def kinds_here() -> list[str]:
    """The kinds of devices of this machine: "cpu", and "cuda" where there is one.

    The driver's library is looked for first: CUDA itself, once asked, would be lost to forks of this process.
    """
    if not torch.backends.cuda.is_built():
        return ["cpu"]
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return ["cpu"]
    return ["cpu", "cuda"] if torch.cuda.device_count() else ["cpu"]


class Stage(Protocol):
    """The tensors of one operation, and the memory in which it reads and writes them."""

    @property
    def devices(self) -> list[torch.device]:
        """Devices, other than the CPU, on which its results lie."""
        ...

    def at(self, tensor: Any) -> Any:
        """The tensor of the host in the place of one of the operation's."""
        ...

    def present(self, is_failed: IsFailed) -> AbstractContextManager[None]:
        """A block that runs the operation: before it the host waits for its tensors, and behind it they return.

        The wait is over, by an error, when `is_failed` has one.
        """
        ...

    def reach(self) -> None:
        """Have the present stream wait for the results; returns at once, and is called when the block has ended."""
        ...


class _Here:
    """The `Stage` of tensors that the host reads and writes as they are."""

    @property
    def devices(self) -> list[torch.device]:
        return []

    def at(self, tensor: Any) -> Any:
        return tensor

    def present(self, is_failed: IsFailed) -> AbstractContextManager[None]:
        return nullcontext()

    def reach(self) -> None:
        pass


HERE: Final[Stage] = _Here()
"""The `Stage` of tensors of the CPU."""


class _Copied:
    """The `Stage` of tensors of a device; copies to the host are queued when it is made.

    Args:
        device: of all tensors.
        kind: PyTorch's name of the device.
        reads: tensors that the operation reads; some may be the same.
        fills: tensors that it fills; who is among `reads`, too, is changed in place.
    """

    def __init__(self, device: Device, kind: torch.device, reads: Sequence[Any], fills: Sequence[Any]) -> None:
        self._device = device
        self._fills = list(fills)
        self.devices = [kind] if kind.type != "cpu" else []
        tensors = {id(tensor): tensor for tensor in (*reads, *fills)}
        # A tensor's number is good for as long as somebody refers to it: each lies beside its place on the host.
        self._places = {key: (tensor, device.room(tensor)) for key, tensor in tensors.items()}
        # Conjugates that are views would be conjugated on the host, which does not wait for the copy.
        sources = {id(tensor): tensor.detach().resolve_conj().resolve_neg() for tensor in reads}
        # What is filled may still be in use by what the device computes: copies back come behind that, too.
        device.inward.side_waits()
        for key, source in sources.items():
            device.inward.copy(self._places[key][1], source)
            device.inward.hold(source)
        self._taken = device.inward.mark()

    def at(self, tensor: Any) -> Any:
        return self._places[id(tensor)][1]

    @contextmanager
    def present(self, is_failed: IsFailed) -> Iterator[None]:
        try:
            self._wait(is_failed)
            yield
            outward = self._device.outward
            for tensor in self._fills:
                # By `data`: autograd hears nothing of it, as of what NCCL writes.
                outward.copy(tensor.data, self.at(tensor))
                outward.hold(tensor)
        finally:
            self._places.clear()
            self._fills.clear()

    def _wait(self, is_failed: IsFailed) -> None:
        # An event's own wait cannot be ended by the loss of a rank, and keeps a core busy.
        pause, longest = _ASKED_S
        while not self._taken.query():
            if (error := is_failed()) is not None:
                raise error
            sleep(pause)
            pause = min(2 * pause, longest)

    def reach(self) -> None:
        self._device.outward.compute_waits()


class Devices:
    """The devices of a process, as a group's operations meet them; any thread may call.

    Args:
        kinds: of devices, as PyTorch asks the group for them.
        find: finds the `Device` of a tensor's.
    """

    def __init__(
        self, kinds: Sequence[str] = ("cpu",), find: Callable[[torch.device], Device | None] = device_of
    ) -> None:
        self.kinds = [torch.device(kind) for kind in kinds]
        self._find = find
        self._lock = Lock()
        self._known: dict[torch.device, Device | None] = {}

    def stage(self, what: str, reads: Sequence[Any], fills: Sequence[Any]) -> Stage:
        """The stage of operation `what`, which reads and fills these tensors.

        Raises:
            ValueError: they are on several devices.
        """
        kinds = {tensor.device: None for tensor in (*reads, *fills)}
        if len(kinds) > 1:
            seen = ", ".join(map(str, kinds))
            raise ValueError(f"taihu {what}: tensors on {seen}; expected all of them on one device")
        for kind in kinds:
            device = self._device(kind)
            if device is not None:
                return _Copied(device, kind, reads, fills)
        return HERE

    def _device(self, kind: torch.device) -> Device | None:
        with self._lock:
            if kind not in self._known:
                self._known[kind] = self._find(kind)
            return self._known[kind]
