"""One rank of DistributedDataParallel whose model only has parameters: the seconds of its exchanges.

Its place is in the environment, as torchrun has it. `python -m benchmarks.peers.ddp_rounds HOOK SHAPES ROUNDS FILE`:
rank 0 writes the seconds of each round as JSON. SHAPES are those of the parameters, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.pytorch.torch_exchanges import fp16, power_sgd

__all__ = ["HOOKS"]

# PowerSGD begins with its third step.
_WARM_UP: Final = 4
HOOKS: Final[Mapping[str, Callable[[DistributedDataParallel], None]]] = MappingProxyType(
    {"none": lambda _: None, "fp16": fp16, "powersgd": power_sgd(4)}
)


class Parameters(nn.Module):  # type: ignore[misc]  # torch has no types in the gate
    """Parameters of these shapes, all of which the output depends on."""

    def __init__(self, shapes: list[list[int]]) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(torch.zeros(shape) for shape in shapes)

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        """Their sum, times `factor`."""
        return torch.stack([tensor.sum() for tensor in self.tensors]).sum() * factor


def main(arguments: list[str]) -> None:
    """Make the rounds."""
    hook, shapes, rounds, file = arguments[0], json.loads(arguments[1]), int(arguments[2]), Path(arguments[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    # Of several buckets the calls of PowerSGD's hook meet others' in another order.
    model = DistributedDataParallel(
        Parameters(shapes), gradient_as_bucket_view=True, bucket_cap_mb=1000 if hook == "powersgd" else None
    )
    HOOKS[hook](model)
    seconds = []
    for _ in range(_WARM_UP + rounds):
        begin_s = time.monotonic()
        model(torch.ones(())).backward()
        seconds.append(time.monotonic() - begin_s)
    if dist.get_rank() == 0:
        file.write_text(json.dumps(seconds[_WARM_UP:]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
