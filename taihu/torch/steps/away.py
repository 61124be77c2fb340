"""Parameters that are not on this worker: whoever would read one of them is told its name and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from typing_extensions import override

from taihu.core.base.errors import RunError

_KNOWN: Final = (
    "_version",
    "device",
    "dtype",
    "grad",
    "grad_fn",
    "is_cuda",
    "is_leaf",
    "is_meta",
    "is_quantized",
    "is_sparse",
    "itemsize",
    "layout",
    "nbytes",
    "ndim",
    "requires_grad",
    "retains_grad",
    "shape",
)
_HARMLESS: Final = frozenset(
    (
        *(getattr(torch.Tensor, name).__get__ for name in _KNOWN),
        torch.Tensor.grad.__set__,
        torch.Tensor.__len__,
        torch.Tensor.dim,
        torch.Tensor.element_size,
        torch.Tensor.get_device,
        torch.Tensor.is_complex,
        torch.Tensor.is_contiguous,
        torch.Tensor.is_floating_point,
        torch.Tensor.nelement,
        torch.Tensor.numel,
        torch.Tensor.register_hook,
        torch.Tensor.register_post_accumulate_grad_hook,
        torch.Tensor.requires_grad_,
        torch.Tensor.size,
        torch.Tensor.stride,
    )
)


class AwayParameter(torch.nn.Parameter):
    """A parameter whose values are not here; it tells of itself all but these, anything else raises RunError.

    A parameter becomes one, and what it was again, by its class, as one of PyTorch's that is not initialized does.

    Attributes:
        taihu_name: the parameter's name in messages.
    """

    taihu_name: str

    @classmethod
    @override
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _HARMLESS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        name = next(_names_in((args, kwargs or {})), "of the model")
        raise RunError(
            f"parameter {name} is not here, as its module is not being called (exchange.zero = 3): read it in the "
            "forward of its module, or in a block of optimizer.gathered(), or set exchange.zero = 2"
        )

    @override
    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"<parameter {self.taihu_name} of shape {tuple(self.shape)}, which is away>"


def _names_in(values: Any) -> Any:
    """The names of all such parameters in nested arguments."""
    if isinstance(values, AwayParameter):
        yield values.taihu_name
    elif isinstance(values, Mapping):
        yield from _names_in(tuple(values.values()))
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _names_in(value)
