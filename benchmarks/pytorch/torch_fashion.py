"""One worker of `pytorch.torch_time_to_accuracy`: a network on Fashion-MNIST, trained in one way."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taihu.torch
from benchmarks.pytorch.torch_exchanges import Way, exchanging, fp16, power_sgd
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import read_normalised
from taihu.worker.data.load import load_dataset

__all__ = ["WAYS", "main"]

_BATCH: Final = 128
_TEST_EVERY: Final = 50
_WARM_UP: Final = 60
_RATE: Final = 0.15
_DLGS: Final = MappingProxyType[str, Any]({"method": "dlgs", "density": 0.05, "density_warmup_steps": 100})
_ONE_PERCENT: Final = MappingProxyType[str, Any]({"method": "dlgs", "density": 0.01})
_FOUR_BITS: Final = MappingProxyType({"value_type": "int4", "downlink_value_type": "int4"})


def _taihus(model: DistributedDataParallel) -> None:
    model.register_comm_hook(taihu.torch.ExchangeState(**_DLGS), taihu.torch.exchange_hook)


WAYS: Final[Mapping[str, Way]] = MappingProxyType(
    {
        "DDP": Way(hook=lambda _: None),
        "DDP, fp16 hook": Way(hook=fp16),
        "DDP, PowerSGD hook, rank 1": Way(hook=power_sgd(1), bucket_mb=1000),
        "DDP, PowerSGD hook, rank 4": Way(hook=power_sgd(4), bucket_mb=1000),
        "DDP, taihu's hook, dlgs 0.05": Way(hook=_taihus),
        "taihu, dlgs 0.05": Way(compression=_DLGS),
        "taihu, dlgs 0.01": Way(compression={**_DLGS, "density": 0.01}),
        "taihu, dlgs 0.01, no momentum": Way(compression=_ONE_PERCENT, momentum=0.0, faster=5.0),
        "taihu, dlgs 0.01, no momentum, int4 both ways": Way(
            compression={**_ONE_PERCENT, **_FOUR_BITS}, momentum=0.0, faster=5.0, has_server=True
        ),
    }
)


class Data(NamedTuple):
    """Images (n, 1, 28, 28), fp32, and labels (n,), to train and to test by."""

    images: torch.Tensor
    labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


def data_of_fashion() -> Data:
    """All of Fashion-MNIST, standardised."""
    dataset = load_dataset(DataSettings(name="fashion-mnist"))
    parts = []
    for examples in (dataset.train, dataset.test):
        rows = np.arange(len(examples))
        images = np.empty((len(rows), 28, 28, 1), dtype=np.float32)
        read_normalised(dataset, examples, rows, images)
        parts += [torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(examples.targets(rows))]
    return Data(*parts)


def made_model() -> nn.Module:
    """Two convolutions with batch norm and two linear layers, 0.9 MB."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip


def _sgd(parameters: Any, way: Way) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=_RATE * way.faster, momentum=way.momentum)


def batches(data: Data, rank: int, size: int) -> Iterator[tuple[Any, Any]]:
    """This rank's batches, without end; all ranks' together are those of one permutation after another."""
    generator = torch.Generator().manual_seed(1)
    while True:
        order = torch.randperm(len(data.images), generator=generator)
        for whole in order.split(_BATCH * size)[:-1]:
            own = whole[rank::size]
            yield data.images[own], data.labels[own]


def accuracy(model: nn.Module, data: Data) -> float:
    """Share of the test images that the model knows."""
    model.eval()
    threads = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)  # the other workers wait
    with torch.no_grad():
        guesses = torch.cat([model(part).argmax(1) for part in data.test_images.split(500)])
    torch.set_num_threads(threads)
    model.train()
    return float((guesses == data.test_labels).float().mean())


def share_of_rate(step: int, last: int) -> float:
    """Share of the rate in a step, from 0: it rises, and falls in a line to nothing behind `last` steps."""
    return min((step + 1) / _WARM_UP, max(0.0, 1.0 - step / last))


def train(way: str, goal: float, last: int, limit_s: float) -> dict[str, Any]:
    """Steps, seconds of training and accuracies of rank 0, until the goal, `last` steps or the limit are reached."""
    rank, size = dist.get_rank(), dist.get_world_size()
    data, plain = data_of_fashion(), made_model()
    model, optimizer = exchanging(WAYS[way], plain, _sgd)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: share_of_rate(step, last))
    steps: list[int] = []
    seconds: list[float] = []
    accuracies: list[float] = []
    passed, more = 0.0, torch.ones(1)
    dist.barrier()
    start = time.perf_counter()
    for step, (images, labels) in enumerate(batches(data, rank, size), start=1):
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        rates.step()
        if step % _TEST_EVERY:
            continue
        passed += time.perf_counter() - start
        if rank == 0:
            steps.append(step)
            seconds.append(passed)
            accuracies.append(accuracy(plain, data))
            print(f"{way}: step {step}, {passed:.1f} s, {accuracies[-1]:.2%}", flush=True)
            more[0] = accuracies[-1] < goal and step < last and passed < limit_s
        dist.broadcast(more, 0)
        if not more:
            break
        start = time.perf_counter()
    return {"steps": steps, "seconds": seconds, "accuracies": accuracies}


def main() -> None:
    """Train in one way; rank 0 writes the curve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--goal", type=float, required=True)
    parser.add_argument("--steps", type=int, required=True, help="in which the rate falls to nothing")
    parser.add_argument("--limit", type=float, required=True, help="seconds of training")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    curve = train(options.way, options.goal, options.steps, options.limit)
    if dist.get_rank() == 0:
        options.json.write_text(json.dumps(curve))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
