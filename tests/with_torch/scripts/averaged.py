"""A loop that keeps an average of its parameters: `averaged.py RESULTS`; it writes the average's hash and its own."""

import hashlib
import json
import sys
from copy import deepcopy
from pathlib import Path

import torch

import taihu.torch

torch.manual_seed(0)
model = torch.nn.Linear(6, 3)
optimizer = taihu.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
average = deepcopy(model)
data = torch.Generator().manual_seed(taihu.torch.rank())
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 6, generator=data)).square().mean().backward()
    optimizer.step()
    optimizer.synchronize()
    with optimizer.gathered(), torch.no_grad():
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(parameter, 1 / (step + 2))
kept = b"".join(p.detach().numpy().tobytes() for p in average.parameters())
Path(f"{sys.argv[1]}.{taihu.torch.rank()}").write_text(json.dumps(hashlib.sha256(kept).hexdigest()))
