"""A run after the other in one script: `shutdown()` leaves the first, `init()` joins the next. `again.py OUT`."""

import json
import sys
from pathlib import Path

import torch

import taihu.torch

torch.set_num_threads(1)
values = []
for fold in range(3):
    taihu.torch.init()
    rank, size = taihu.torch.rank(), taihu.torch.world_size()
    torch.manual_seed(fold)
    model = torch.nn.Linear(3, 1)
    optimizer = taihu.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for step in range(3):
        inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))[rank::size]
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    taihu.torch.shutdown()
    values += [value for p in model.parameters() for value in p.detach().flatten().tolist()]
Path(f"{sys.argv[1]}.{rank if size > 1 else 'alone'}").write_text(json.dumps(values))
