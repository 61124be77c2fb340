"""Gradients that travel in 16 bits: `halves.py OUT fp32|bf16|fp16`, the type of the parameters."""

import json
import sys
from pathlib import Path

import torch

import taihu.torch

rank = taihu.torch.rank()
torch.set_num_threads(1)
torch.manual_seed(3)
dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[sys.argv[2]]
model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Tanh(), torch.nn.Linear(40, 5)).to(dtype)
optimizer = taihu.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), model)
means = []
for step in range(6):
    drawn = torch.Generator().manual_seed(100 * rank + step)
    optimizer.zero_grad()
    model(torch.randn(8, 30, generator=drawn).to(dtype)).float().square().mean().backward()
    means.append([p.grad.float().flatten().tolist() for p in model.parameters() if p.grad is not None])
    optimizer.step()
values = [p.detach().float().flatten().tolist() for p in model.parameters()]
Path(f"{sys.argv[1]}.{rank}").write_text(json.dumps({"means": means, "values": values}))
