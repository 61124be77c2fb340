"""Workers with different numbers of batches, in `join()`: worker r has 3 + 2 r."""

import hashlib
import json
import sys
from pathlib import Path

import torch

import taihu.torch

rank = taihu.torch.rank()
torch.manual_seed(0)
model = torch.nn.Linear(6, 3)
optimizer = taihu.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
with optimizer.join():
    for step in range(3 + 2 * rank):
        data = torch.Generator().manual_seed(100 * rank + step)
        optimizer.zero_grad()
        model(torch.randn(8, 6, generator=data)).square().mean().backward()
        optimizer.step()
values = [value for p in model.parameters() for value in p.detach().flatten().tolist()]
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
Path(f"{sys.argv[1]}.{rank}").write_text(json.dumps({"values": values, "hash": digest}))
