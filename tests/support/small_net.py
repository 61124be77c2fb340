"""A small convolutional network with two linear layers, of PyTorch."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["Net", "new_net"]


class Net(nn.Module):  # type: ignore[misc]
    """Of images (8, 8), for 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc1 = nn.Linear(144, 33)
        self.fc2 = nn.Linear(33, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs (examples, 10) of images (examples, 1, 8, 8)."""
        x = torch.relu(self.conv(x)).flatten(1)
        return self.fc2(torch.relu(self.fc1(x)))


def new_net(seed: int = 0) -> Net:
    """A network by a seed, whatever other threads draw meanwhile."""
    net, rng = Net(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng) * 0.1)
    return net
