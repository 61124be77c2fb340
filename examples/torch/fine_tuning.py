"""Fine-tuning: a network that knows some digits learns the others, and all but its last layers are frozen.

One process:      python examples/torch/fine_tuning.py
Three workers:    taihu run --workers 3 examples/torch/fine_tuning.py

The digits are scikit-learn's.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import taihu.torch


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[torch.Tensor], epochs: int) -> None:
    images, labels = data
    for epoch in range(epochs):
        total = 0.0
        batches = torch.randperm(len(images)).split(48)[:-1]
        batches = [batch[taihu.torch.rank() :: taihu.torch.world_size()] for batch in batches]
        for batch in batches:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total / len(batches):.4f}", flush=True)


def accuracy(model: nn.Module, data: list[torch.Tensor]) -> float:
    model.eval()
    with torch.no_grad():
        return float((model(data[0]).argmax(1) == data[1]).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)

    digits = load_digits()
    images = torch.from_numpy(digits.images).float()[:, None] / 8.0 - 1.0
    labels = torch.from_numpy(digits.target)
    known, test = labels < 5, torch.arange(len(labels)) % 5 == 0
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip
    model = nn.Sequential(body, nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))
    first = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(60):  # every process alike, from the same seed
        first.zero_grad()
        functional.cross_entropy(model(images[known & ~test]), labels[known & ~test]).backward()
        first.step()
    first.zero_grad()
    print(f"before: {accuracy(model, [images[test], labels[test]]):.2%} of all digits", flush=True)

    model.train()
    body.requires_grad_(False)
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=0.003)
    optimizer = taihu.torch.DistributedOptimizer(optimizer, model)
    train(model, optimizer, [images[~test], labels[~test]], options.epochs)
    print(f"after: {accuracy(model, [images[test], labels[test]]):.2%}", flush=True)


if __name__ == "__main__":
    main()
