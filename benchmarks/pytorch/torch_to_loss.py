"""One worker of `pytorch.torch_time_to_loss`: so many steps of a task in one way, their losses and times."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, pad

from benchmarks.pytorch.torch_exchanges import Way, exchanging, fp16, power_sgd
from benchmarks.pytorch.torch_fashion import data_of_fashion
from benchmarks.pytorch.torch_ways import MODELS

__all__ = ["ALONE", "TASKS", "WAYS", "Task", "main"]

_EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "torch" / "transformer_text.py"
_CONTEXT: Final = 64
_WARM_UP: Final = 20
_SGD_WITHOUT_MOMENTUM: Final = 5.0
"""Times the rate of one with a momentum of 0.9, as the warning says that a script gets."""

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Task:
    """A model and its data.

    Attributes:
        model: makes it.
        batches: those of a rank of so many, without end, by a seed; all ranks' together are of one order.
        optimizer: makes one for parameters, a way, and a multiple of the usual rate.
        clip_norm: of the mean of all gradients, behind the exchange; None for none.
        steps: of a run to a loss.
    """

    model: Callable[[], nn.Module]
    batches: Callable[[int, int, int], Iterator[Batch]]
    optimizer: Callable[[Any, Way, float], torch.optim.Optimizer]
    clip_norm: float | None
    steps: int


ALONE: Final = "no exchange"
_DLGS: Final = MappingProxyType[str, Any]({"method": "dlgs", "density": 0.01})
_FOUR_BITS: Final = MappingProxyType({"value_type": "int4", "downlink_value_type": "int4"})
WAYS: Final[Mapping[str, Way]] = MappingProxyType(
    {
        "DDP": Way(hook=lambda _: None),
        "DDP, fp16 hook": Way(hook=fp16),
        "DDP, PowerSGD hook, rank 1": Way(hook=power_sgd(1), bucket_mb=1000),
        "DDP, PowerSGD hook, rank 4": Way(hook=power_sgd(4), bucket_mb=1000),
        "taihu, dlgs 0.01": Way(compression=_DLGS, momentum=0.0),
        "taihu, dlgs 0.01, int4": Way(compression={**_DLGS, "value_type": "int4"}, momentum=0.0),
        "taihu, dlgs 0.01, int4 both ways": Way(compression={**_DLGS, **_FOUR_BITS}, momentum=0.0, has_server=True),
        "taihu, 4 local steps, dlgs 0.05, int4 both ways": Way(
            compression={**_DLGS, **_FOUR_BITS, "density": 0.05}, has_server=True, local_steps=4
        ),
    }
)


def _transformer() -> nn.Module:
    model: nn.Module = runpy.run_path(str(_EXAMPLE), run_name="example")["Transformer"](96, 2, _CONTEXT)
    return model


def _texts(rank: int, size: int, seed: int) -> Iterator[Batch]:
    """4 windows of Python's sources for each rank."""
    text = runpy.run_path(str(_EXAMPLE), run_name="example")["read_sources"](4_000_000)
    drawn = torch.Generator().manual_seed(1 + seed)
    while True:
        begins = torch.randint(len(text) - _CONTEXT - 1, (4 * size,), generator=drawn)[rank::size]
        windows = torch.stack([text[begin : begin + _CONTEXT + 1] for begin in begins])
        yield windows[:, :-1], windows[:, 1:]


def _images(batch: int) -> Callable[[int, int, int], Iterator[Batch]]:
    """Images of Fashion-MNIST in three colours of 32 x 32 points."""

    def batches(rank: int, size: int, seed: int) -> Iterator[Batch]:
        data = data_of_fashion()
        drawn = torch.Generator().manual_seed(1 + seed)
        while True:
            own = torch.randint(len(data.images), (batch * size,), generator=drawn)[rank::size]
            yield pad(data.images[own], (2, 2, 2, 2)).expand(-1, 3, -1, -1), data.labels[own]

    return batches


def _adamw(parameters: Any, way: Way, factor: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3 * factor, weight_decay=0.01, betas=(way.momentum, 0.999))


def _sgd(rate: float) -> Callable[[Any, Way, float], torch.optim.Optimizer]:
    def made(parameters: Any, way: Way, factor: float) -> torch.optim.Optimizer:
        faster = 1.0 if way.momentum else _SGD_WITHOUT_MOMENTUM
        return torch.optim.SGD(parameters, lr=rate * factor * faster, momentum=way.momentum)

    return made


TASKS: Final[Mapping[str, Task]] = MappingProxyType(
    {
        "transformer": Task(_transformer, _texts, _adamw, 1.0, 600),
        "resnet20": Task(MODELS["resnet20"], _images(16), _sgd(0.1), None, 300),
        "vgg16": Task(MODELS["vgg16"], _images(8), _sgd(0.02), None, 200),
    }
)
"""The transformer of examples/torch, and models for 3 x 32 x 32 points."""


def train(task: Task, way: str, factor: float, steps: int, seed: int) -> dict[str, list[float]]:
    """Means of all ranks' losses by step, and seconds of this rank's steps."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    plain = task.model()
    if way == ALONE:
        model, optimizer = plain, task.optimizer(plain.parameters(), Way(), factor)
    else:
        model, optimizer = exchanging(WAYS[way], plain, lambda parameters, of: task.optimizer(parameters, of, factor))
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=_WARM_UP)
    losses, seconds = torch.zeros(steps), []
    batches = task.batches(rank, size, seed)
    dist.barrier()
    for step in range(steps):
        inputs, targets = next(batches)
        start = time.perf_counter()
        optimizer.zero_grad()
        scores = model(inputs)
        loss = cross_entropy(scores.flatten(0, -2), targets.flatten())
        loss.backward()
        if task.clip_norm is not None:
            nn.utils.clip_grad_norm_(plain.parameters(), task.clip_norm)
        optimizer.step()
        warm_up.step()
        seconds.append(time.perf_counter() - start)
        losses[step] = loss.detach()
    dist.all_reduce(losses)
    return {"losses": (losses / size).tolist(), "seconds": seconds}


def main() -> None:
    """Make the steps; rank 0 writes what they were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--way", choices=[*WAYS, ALONE], required=True)
    parser.add_argument("--factor", type=float, required=True, help="of the usual rate")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    row = train(TASKS[options.task], options.way, options.factor, options.steps, options.seed)
    if dist.get_rank() == 0:
        options.json.write_text(json.dumps(row))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
