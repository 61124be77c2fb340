"""Ways of PyTorch scripts to exchange gradients: hooks of DistributedDataParallel, and taihu's optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import taihu.torch

__all__ = ["Way", "exchanging", "fp16", "power_sgd"]


@dataclass(frozen=True)
class Way:
    """A way to exchange gradients.

    Attributes:
        hook: registers a hook of DistributedDataParallel, which exchanges; None for taihu's optimizer.
        compression: of that.
        momentum: of SGD.
        faster: its rate, as a multiple of the usual one.
        has_server: whether a server sums, on a host of its own; a ring does otherwise.
        local_steps: steps of a worker between two exchanges.
        bucket_mb: of DistributedDataParallel; None for its own choice.
    """

    hook: Callable[[DistributedDataParallel], None] | None = None
    compression: Mapping[str, Any] = field(default_factory=dict)
    momentum: float = 0.9
    faster: float = 1.0
    has_server: bool = False
    local_steps: int = 1
    bucket_mb: int | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Variables that tell a server, which has no script, of this way."""
        settings = {f"COMPRESSION__{key.upper()}": value for key, value in self.compression.items()}
        settings["EXCHANGE__LOCAL_STEPS"] = self.local_steps
        return {f"TAIHU_{key}": str(value) for key, value in settings.items()} if self.has_server else {}


def power_sgd(rank: int) -> Callable[[DistributedDataParallel], None]:
    """Registers PyTorch's hook of PowerSGD, which begins with its third step.

    It needs all gradients in one bucket: of several, its calls follow each other in threads of Gloo's, and meet
    others' in another order.
    """

    def register(model: DistributedDataParallel) -> None:
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    return register


def fp16(model: DistributedDataParallel) -> None:
    """Register PyTorch's hook that sends half of the bytes."""
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def exchanging(
    way: Way, plain: nn.Module, made: Callable[[Any, Way], torch.optim.Optimizer]
) -> tuple[nn.Module, Any]:
    """The model that trains in this way, and its optimizer, which `made` makes for parameters."""
    if way.hook is None:
        taihu.torch.init(compression=dict(way.compression), exchange={"local_steps": way.local_steps})
        return plain, taihu.torch.DistributedOptimizer(made(plain.parameters(), way), plain)
    model = DistributedDataParallel(
        plain, gradient_as_bucket_view=True, broadcast_buffers=False, bucket_cap_mb=way.bucket_mb
    )
    way.hook(model)
    return model, made(model.parameters(), way)
