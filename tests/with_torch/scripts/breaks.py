"""Two loops, the first of which is left by break, kept by taihu.torch.state: `breaks.py [kill]`.

With `kill` worker 1 kills itself in the second loop, once: worker 0, which has left a loop in the midst, cannot go
back there.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch

import taihu.torch

rank, told = taihu.torch.rank(), Path("killed")
torch.manual_seed(0)
model = torch.nn.Linear(5, 3)
optimizer = taihu.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
state = taihu.torch.state(model=model, optimizer=optimizer)
for count in (3, 4):
    for step in state.batches(range(count)):
        inputs = torch.randn(6, 5, generator=torch.Generator().manual_seed(100 * count + 10 * step + rank))
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if (count, step) == (3, 1):
            break
        if (count, step, rank) == (4, 2, 1) and "kill" in sys.argv and not told.exists():
            told.touch()
            os.kill(os.getpid(), signal.SIGKILL)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
Path(f"end.{rank}").write_text(digest)
