"""A residual network on Fashion-MNIST: 60,000 images of clothes, from Debian's package dataset-fashion-mnist.

One process:      python examples/torch/resnet_fashion.py
Three workers:    taihu run --workers 3 examples/torch/resnet_fashion.py
"""

import argparse
import gzip
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import taihu.torch


class Block(nn.Module):
    """Two convolutions, and a way around both."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        same = stride == 1 and inputs == outputs
        self.around = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + self.around(x))


def read(folder: Path, name: str, dimensions: int) -> np.ndarray:
    with gzip.open(folder / f"{name}-ubyte.gz") as file:
        data = file.read()
    shape = np.frombuffer(data, ">u4", dimensions, offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def load(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.from_numpy(read(folder, f"{part}-images-idx3", 3).astype(np.float32))
    labels = torch.from_numpy(read(folder, f"{part}-labels-idx1", 1).astype(np.int64))
    return (images[:, None] - 72.9) / 90.0, labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--samples", type=int, default=60_000, help="of the training set")
    options = parser.parse_args()
    torch.manual_seed(0)

    images, labels = (each[: options.samples] for each in load(options.data, "train"))
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    optimizer = taihu.torch.DistributedOptimizer(optimizer, model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)

    for epoch in range(options.epochs):
        start, total = time.perf_counter(), 0.0
        batches = torch.randperm(len(images)).split(options.batch)[:-1]
        batches = batches[taihu.torch.rank() :: taihu.torch.world_size()][: len(batches) // taihu.torch.world_size()]
        for batch in batches:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            total += loss.item()
        scheduler.step()
        print(f"epoch {epoch + 1}: loss {total / len(batches):.4f}, {time.perf_counter() - start:.1f} s", flush=True)

    model.eval()
    images, labels = load(options.data, "t10k")
    with torch.no_grad():
        guesses = torch.cat([model(part).argmax(1) for part in images.split(500)])
    print(f"test accuracy {float((guesses == labels).float().mean()):.2%}")


if __name__ == "__main__":
    main()
