"""The backend `taihu` of torch.distributed beside Gloo, in the same processes of this machine, in turns.

    python -m benchmarks.torch_backend [--ranks 3] [--megabytes 0.1,1,10,61] [--rounds 10]

Times are medians over rounds of rank 0: of one allreduce of fp32 values, and of one step of DistributedDataParallel
on a small ResNet. Needs torch.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taihu.torch.backend  # noqa: F401 - registers the backend

__all__ = ["main"]

_CALLS_MB = 20.0
_WARM = 2

Call = Callable[[], None]


class Block(nn.Module):  # type: ignore[misc]  # torch has no types in the gate
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Any) -> Any:
        """The block's values; x of shape (N, C, H, W)."""
        return torch.relu(self.second(torch.relu(self.norm(self.first(x)))) + self.shortcut(x))


def _model() -> Any:
    widths = (3, 64, 128, 256, 512)
    blocks = [Block(a, b, 2) for a, b in pairwise(widths)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


def _in_turns(calls: dict[str, Call], rounds: int, times: int) -> dict[str, float]:
    """Median seconds of a call, by contestant; all ranks begin each round together."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(_WARM + rounds):
        for name, call in calls.items():
            dist.barrier()
            start = time.perf_counter()
            for _ in range(times):
                call()
            if number >= _WARM:
                seconds[name].append((time.perf_counter() - start) / times)
    return {name: statistics.median(each) for name, each in seconds.items()}


def _show(what: str, seconds: dict[str, float]) -> None:
    if dist.get_rank() == 0:
        ratio = seconds["gloo"] / seconds["taihu"]
        times = "  ".join(f"{name} {1e3 * each:8.2f} ms" for name, each in seconds.items())
        print(f"{what:28} {times}  Gloo / ours {ratio:.2f}", flush=True)


def _allreduce(buffer: Any, group: Any) -> Call:
    return lambda: dist.all_reduce(buffer, group=group)


def _step(group: Any) -> Call:
    torch.manual_seed(1)
    model = DistributedDataParallel(_model(), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.rand(8, 3, 32, 32), torch.zeros(8, dtype=torch.int64)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def _run(rank: int, arguments: argparse.Namespace, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("taihu", init_method=store, rank=rank, world_size=arguments.ranks)
    groups = {"taihu": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    for size in arguments.megabytes:
        buffers = {name: torch.zeros(max(1, round(size * 1e6 / 4))) for name in groups}
        calls = {name: _allreduce(buffers[name], group) for name, group in groups.items()}
        _show(f"allreduce of {size:g} MB", _in_turns(calls, arguments.rounds, max(1, min(50, int(_CALLS_MB / size)))))
    parameters = sum(each.numel() for each in _model().parameters())
    steps = {name: _step(group) for name, group in groups.items()}
    _show(f"DDP step, {4e-6 * parameters:.1f} MB", _in_turns(steps, arguments.rounds, 1))
    dist.destroy_process_group()


def main() -> None:
    """Measure, and print a line for each size and one for the step."""
    parser = argparse.ArgumentParser(description="the backend taihu beside Gloo")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument(
        "--megabytes", type=lambda text: [float(each) for each in text.split(",")], default="0.1,1,10,61"
    )
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {arguments.ranks} ranks, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{Path(folder) / 'store'}"
        torch.multiprocessing.spawn(_run, (arguments, store), arguments.ranks)


if __name__ == "__main__":
    main()
