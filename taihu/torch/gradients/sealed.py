"""Gradients that have been sent: whoever would read or change them is told that this is in vain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from typing_extensions import override

from taihu.core.base.errors import ConfigError

_HARMLESS: Final = frozenset(
    getattr(torch.Tensor, name).__get__
    for name in ("device", "dtype", "grad_fn", "is_leaf", "is_sparse", "layout", "ndim", "requires_grad", "shape")
)
_IN_VAIN: Final = frozenset(
    (torch.Tensor.zero_, torch.Tensor.detach_, torch.Tensor.requires_grad_, torch._foreach_zero_)
)


class SealedGradient(torch.Tensor):
    """A gradient of some shape without values; `zero_grad` may do what it does, anything else raises ConfigError."""

    @classmethod
    @override
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _IN_VAIN:
            return args[0]
        if func in _HARMLESS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        raise ConfigError(
            'update="servers": gradients go to the servers during backward, and what is done to them after '
            '(clipping, GradScaler, a look at their norm) comes too late; give update="workers", where they come back'
            " before step()"
        )


def sealed_like(parameter: torch.Tensor) -> SealedGradient:
    """A sealed gradient of `parameter`, which takes the memory of one value."""
    one = torch.zeros((), dtype=parameter.dtype, device=parameter.device)
    sealed: SealedGradient = one.expand(parameter.shape).as_subclass(SealedGradient)
    return sealed
