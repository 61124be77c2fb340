"""One step whose gradient is the rank + 1; the mean of all workers is printed."""

import sys

import torch

import taihu.torch

model = torch.nn.Linear(1, 1, bias=False)
optimizer = taihu.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
rank, size = taihu.torch.rank(), taihu.torch.world_size()
model(torch.full((1, 1), rank + 1.0)).sum().backward()
sys.stdout.write(f"rank {rank} of {size}: {model.weight.grad.item()}\n")
