"""A script of which one rank, its argument, fails in the third step."""

import sys

import torch

import taihu.torch

model = torch.nn.Linear(4, 2)
optimizer = taihu.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
for step in range(1000):
    if step == 3 and taihu.torch.rank() == int(sys.argv[1]):
        raise ValueError("no paper left")
    optimizer.zero_grad()
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
