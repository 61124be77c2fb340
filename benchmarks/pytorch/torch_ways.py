"""One worker of `pytorch.torch`: the same steps by several ways in turns, in one process."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import taihu.torch

__all__ = ["MODELS", "main"]

Step = Callable[[], None]


class Block(nn.Module):  # type: ignore[misc]
    """A block of ResNet for CIFAR: He et al. 2016, section 4.2, with zeros for new channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self._stride, self._more = stride, outputs - inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the convolutions make of `x`, shape (n, inputs, height, width), to it."""
        around = functional.pad(x[:, :, :: self._stride, :: self._stride], (0, 0, 0, 0, 0, self._more))
        return torch.relu(self.convolutions(x) + around)


def _resnet20() -> nn.Module:
    stages = [(16, 16, 1), (16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 32, 1)]
    stages += [(32, 64, 2), (64, 64, 1), (64, 64, 1)]
    first = (nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    last = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return nn.Sequential(*first, *(Block(*each) for each in stages), *last)


def _vgg16() -> nn.Module:
    layers: list[nn.Module] = []
    inputs = 3
    for outputs in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        if not outputs:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


MODELS = {"resnet20": _resnet20, "vgg16": _vgg16}
"""Models for images of 3 x 32 x 32."""


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int) -> Step:
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def _ways(model: str, batch: int) -> Iterator[tuple[str, Step]]:
    """The ways by name, each with a model of its own."""

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        fresh = MODELS[model]()
        return fresh, torch.optim.SGD(fresh.parameters(), lr=0.01, momentum=0.9)

    def ddp(register: Callable[[Any, Any], None] = lambda *_: None, bucket_mb: int | None = None) -> Step:
        fresh, _ = made()
        group = dist.new_group()
        spread = DistributedDataParallel(
            fresh, gradient_as_bucket_view=True, process_group=group, bucket_cap_mb=bucket_mb
        )
        register(spread, group)
        return _step(spread, torch.optim.SGD(spread.parameters(), lr=0.01, momentum=0.9), batch)

    def power_sgd(spread: Any, group: Any) -> None:
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2)
        spread.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def fp16(spread: Any, group: Any) -> None:
        spread.register_comm_hook(group, default_hooks.fp16_compress_hook)

    alone = _step(*made(), batch)
    yield "no exchange", alone

    def step_and_barrier() -> None:
        alone()
        dist.barrier()

    yield "only a barrier", step_and_barrier
    yield "DDP", ddp()
    yield "DDP, fp16", ddp(fp16)
    # Its calls follow each other in threads of Gloo's: of several buckets they meet others' in another order.
    yield "DDP, PowerSGD", ddp(power_sgd, bucket_mb=1000)
    fresh, optimizer = made()
    yield "taihu", _step(fresh, taihu.torch.DistributedOptimizer(optimizer, fresh), batch)


@contextmanager
def _together() -> Iterator[None]:
    """A group over Gloo during the block, which all ranks leave together."""
    dist.init_process_group("gloo")
    yield
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Time the steps of all ways in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="of each way in a round")
    parser.add_argument(
        "--warm-up", type=int, default=20, help="steps of taihu before, which are measured to plan by"
    )
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with _together():
        ways = dict(_ways(options.model, options.batch))
        for name, step in ways.items():
            for _ in range(options.warm_up if name == "taihu" else 3):
                step()
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, step in ways.items():
                dist.barrier()
                for _ in range(options.steps):
                    start = time.perf_counter()
                    step()
                    times[name].append(time.perf_counter() - start)
    if dist_rank() == 0:
        rows = {name: {"median": median(each), "seconds": each} for name, each in times.items()}
        options.json.write_text(json.dumps(rows))


def dist_rank() -> int:
    """The rank that the environment gives."""
    return int(os.environ["RANK"])


if __name__ == "__main__":
    main()
