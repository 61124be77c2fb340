"""A loop with sparse gradients from one step to another; it goes on from what an earlier one has saved."""

import hashlib
import json
import sys
from pathlib import Path

import torch

import taihu.torch

name, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rank = taihu.torch.rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = taihu.torch.DistributedOptimizer(optimizer, model)
own = Path(f"{name}.{rank}.pt")
if first:
    saved = torch.load(own, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
for step in range(first, last):
    data = torch.Generator().manual_seed(100 * rank + step)
    optimizer.zero_grad()
    scores = model(torch.randn(8, 30, generator=data))
    torch.nn.functional.cross_entropy(scores, torch.randint(0, 3, (8,), generator=data)).backward()
    optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, own)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
Path(f"{name}.{rank}").write_text(json.dumps(digest))
