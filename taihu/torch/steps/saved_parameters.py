"""Parameters that autograd saves in forward: they are here again when backward reads them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from taihu.core.base.errors import RunError


class _Saved(NamedTuple):
    """A tensor that was saved, as it was then; `layers` are those of the arena that it lies in, None outside."""

    tensor: torch.Tensor
    version: int
    layers: range | None


class SavedParameters:
    """Hooks of what is saved while one is open; those of the script that were there before are called for the rest.

    What lies in the arena is not copied: it has its place, whose memory comes back before it is read.

    Args:
        address: of the arena of all parameters.
        offsets: where each layer begins in it, and its end.
        names: of the layers, for messages.
        may_save: whether the parameters of a layer are here.
        recall: called with layers before backward reads their parameters.
    """

    def __init__(
        self,
        address: int,
        offsets: Sequence[int],
        names: Sequence[str],
        *,
        may_save: Callable[[int], bool],
        recall: Callable[[range], None],
    ) -> None:
        self._address = address
        self._offsets = offsets
        self._names = names
        self._may_save = may_save
        self._recall = recall
        self._open: list[torch.autograd.graph.saved_tensors_hooks | None] = []

    def open(self) -> None:
        """From now on what autograd saves is looked at, until `close`; may be nested."""
        top = torch._C._autograd._top_saved_tensors_default_hooks(True)
        if top is not None and getattr(top[0], "__self__", None) is not None and isinstance(top[0].__self__, _Hooks):
            self._open.append(None)
            return
        hooks = _Hooks(self._look, self._read, top)
        context = torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack)
        context.__enter__()
        self._open.append(context)

    def close(self) -> None:
        """End what `open` began last."""
        context = self._open.pop()
        if context is not None:
            context.__exit__()

    def _look(self, tensor: torch.Tensor) -> _Saved:
        """The tensor as it is saved.

        Raises:
            RunError: it is one of a parameter that is not here.
        """
        layers = self._layers_of(tensor)
        for layer in layers or ():
            if not self._may_save(layer):
                raise RunError(
                    f"parameter {self._names[layer]} is read behind the forward of its modules, by a view of it that "
                    "was kept: read it in their forward, or set exchange.zero = 2"
                )
        return _Saved(tensor.detach(), tensor._version, layers)

    def _layers_of(self, tensor: torch.Tensor) -> range | None:
        if tensor.layout is not torch.strided or not tensor.numel():
            return None
        if tensor.untyped_storage().data_ptr() != self._address:
            return None
        first = tensor.storage_offset()
        last = first + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return range(bisect_right(self._offsets, first) - 1, bisect_right(self._offsets, last))

    def _read(self, saved: _Saved) -> torch.Tensor:
        """The saved tensor, whose values are here until another node of the graph reads some.

        Raises:
            RunError: a step has updated the parameter since.
            RuntimeError: it was written to since, as autograd says without hooks.
        """
        if saved.tensor._version != saved.version:
            if saved.layers is not None:
                raise RunError(
                    f"backward needs parameter {self._names[saved.layers[0]]} as it was before a step: call the "
                    "model again before backward"
                )
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"tensor of shape {list(saved.tensor.shape)} is at version {saved.tensor._version}; expected version "
                f"{saved.version} instead"
            )
        if saved.layers is not None:
            self._recall(saved.layers)
        return saved.tensor


class _Hooks:
    """One pair of hooks in front of another pair, which has what is no parameter."""

    def __init__(
        self,
        look: Callable[[torch.Tensor], _Saved],
        read: Callable[[_Saved], torch.Tensor],
        outer: tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]] | None,
    ) -> None:
        self._look = look
        self._read = read
        self._outer = outer

    def pack(self, tensor: torch.Tensor) -> Any:
        saved = self._look(tensor)
        return saved if saved.layers is not None or self._outer is None else self._outer[0](tensor)

    def unpack(self, packed: Any) -> torch.Tensor:
        if isinstance(packed, _Saved):
            return self._read(packed)
        assert self._outer is not None  # noqa: S101
        return self._outer[1](packed)
