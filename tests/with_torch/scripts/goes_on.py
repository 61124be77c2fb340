"""A loop with sparse gradients that is saved behind step 10 and goes on in other objects, or does not."""

import hashlib
import io
import json
import sys
from pathlib import Path

import torch

import taihu.torch

STEPS, SAVED = 20, 10
kind, name = sys.argv[1:]
rank = taihu.torch.rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))
made = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = taihu.torch.DistributedOptimizer(made, model)
for step in range(STEPS):
    data = torch.Generator().manual_seed(100 * rank + step)
    optimizer.zero_grad()
    scores = model(torch.randn(8, 30, generator=data))
    torch.nn.functional.cross_entropy(scores, torch.randint(0, 3, (8,), generator=data)).backward()
    optimizer.step()
    if step == SAVED and kind == "loads":
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        with torch.no_grad():
            for each in model.parameters():
                each.zero_()
        forgotten = {key: torch.zeros_like(each) for key, each in optimizer.state_dict().items() if "taihu" in key}
        optimizer.load_state_dict({**forgotten, "state": {}, "param_groups": made.state_dict()["param_groups"]})
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
Path(f"{name}.{rank}").write_text(json.dumps(digest))
