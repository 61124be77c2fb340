"""ResNet-50 beside eager PyTorch: the same gradients, and what a training step takes.

    pip install taihu[torch]
    python -m benchmarks resnet50 --json docs/resnet50.json

Both compute in this process and take turns, step by step, from the same parameters. A step is forward, loss, backward
and an update by SGD with momentum. CPU seconds count all threads: on a machine that is shared they say more than the
clock. PyTorch runs with channels last, the faster of its two layouts here.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from taihu.cli.bench.torch_twin import TorchStep, import_torch, torch_twin
from taihu.core.process.results import write_json
from taihu.kernels.nn.peak import multiply_add_rate
from taihu.worker.bench.engine import EngineStep
from taihu.worker.engine import Array, Model, StepContext, StepHooks, build_model

_CLASSES = 1000
# The engine's weights are (KH, KW, C, F) and (inputs, units), PyTorch's (F, C, KH, KW) and (units, inputs).
_AXES = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}


def gradients(model: Model, images: Array, labels: Array, dtype: type[np.floating[Any]]) -> tuple[float, list[Array]]:
    """The engine's loss, and its gradients in forward order as PyTorch has them."""
    parameters, arena = (np.zeros(model.layout.elements, dtype) for _ in range(2))
    model.bind(parameters, arena)
    model.initialize(0)
    loss = model.train(images, labels, StepContext(True, 0, 0, 0), StepHooks())
    found = [layer.gradients[tensor.name] for layer in reversed(model.parameter_layers) for tensor in layer.tensors]
    return loss, [gradient.transpose(_AXES[gradient.ndim]) for gradient in found]


def torch_gradients(model: Model, images: Array, labels: Array) -> tuple[float, list[Array]]:
    """PyTorch's, from the parameters of a bound model and in their dtype."""
    torch = import_torch()
    dtype = getattr(torch, str(next(iter(model.parameters_by_name().values())).dtype))
    module = torch_twin(model).to(dtype)
    outputs = module(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()).to(dtype))
    loss = torch.nn.functional.cross_entropy(outputs, torch.from_numpy(labels))
    loss.backward()
    return float(loss.detach()), [parameter.grad.numpy() for parameter in module.parameters()]


def distance(seen: Sequence[Array], expected: Sequence[Array]) -> float:
    """The norm of the difference, relative to that of `expected`."""
    pairs = list(zip(seen, expected, strict=True))
    squares = sum(float(((one.astype(np.float64) - other) ** 2).sum()) for one, other in pairs)
    return float(np.sqrt(squares / sum(float((other.astype(np.float64) ** 2).sum()) for _, other in pairs)))


def _compare(side: int, batch: int, threads: int) -> dict[str, float]:
    generator = np.random.default_rng(0)
    images = generator.standard_normal((batch, side, side, 3), dtype=np.float32)
    labels = generator.integers(0, _CLASSES, batch)
    model = build_model("resnet50", (side, side, 3), _CLASSES)
    model.use_threads(threads)
    found: dict[str, list[Array]] = {}
    for dtype in (np.float32, np.float64):
        name = np.dtype(dtype).name
        found[f"engine {name}"] = gradients(model, images, labels, dtype)[1]
        found[f"torch {name}"] = torch_gradients(model, images, labels)[1]
    exact = found["torch float64"]
    return {name: distance(each, exact) for name, each in found.items() if name != "torch float64"}


def _time(batch: int, threads: int, steps: int) -> dict[str, Any]:
    ours = EngineStep("resnet50", batch, threads)
    contestants = {"engine": ours.step, "torch": TorchStep("resnet50", batch, threads, "channels_last").step}
    for step in contestants.values():
        step()
    cpu: dict[str, list[float]] = {name: [] for name in contestants}
    wall: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(steps):
        for name, step in contestants.items():
            begin, began = time.process_time(), time.perf_counter()
            step()
            cpu[name].append(time.process_time() - begin)
            wall[name].append(time.perf_counter() - began)
    floor = ours.flops / multiply_add_rate()
    row: dict[str, Any] = {"threads": threads, "batch": batch, "floor_cpu_seconds": floor}
    for clock, seconds in (("cpu", cpu), ("wall", wall)):
        for name, each in seconds.items():
            row[f"{name}_{clock}_seconds"] = {"min": min(each), "median": median(each)}
        row[f"{clock}_ratio"] = median(a / b for a, b in zip(*seconds.values(), strict=True))
    return row


def main() -> None:
    """Print gradients' distances, and a row for each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--side", type=int, default=224, help="of the images whose gradients are compared")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--steps", type=int, default=7, help="of each, in turns")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with threadpool_limits(1, "blas"):
        apart = _compare(arguments.side, arguments.batch, 1)
        for name, value in apart.items():
            print(f"gradients, {name} against torch float64: {value:.1e}", flush=True)
        rows = []
        for threads in map(int, arguments.threads.split(",")):
            rows.append(_time(arguments.batch, threads, arguments.steps))
            row = rows[-1]
            for clock in ("cpu", "wall"):
                ours, theirs = (row[f"{name}_{clock}_seconds"]["median"] for name in ("engine", "torch"))
                print(
                    f"{threads} threads, {clock}: engine {ours:.2f} s a step, {arguments.batch / ours:.1f} images/s; "
                    f"torch {theirs:.2f}, {arguments.batch / theirs:.1f}; ratio {row[f'{clock}_ratio']:.2f}; "
                    f"floor {row['floor_cpu_seconds']:.2f} CPU seconds",
                    flush=True,
                )
    if arguments.json is not None:
        write_json(arguments.json, {"gradients": apart, "rows": rows})


if __name__ == "__main__":
    main()
