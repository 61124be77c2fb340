"""Steps of a small model; worker R leaves what its page of metrics at port + R says. Arguments: who updates, port.

Worker 0 looks at the run before that as a stranger, without the run's token, and as one who has it.
"""

import os
import random
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import torch

import taihu.torch
from taihu.core.base.errors import RefusedError
from taihu.core.coordination.status import fetch_status
from taihu.core.security.security import Security
from taihu.core.security.token import find_token

rank = taihu.torch.rank()
sys.stdout.write(f"rank {rank} begins\n")
Path(f"drawn.{rank}").write_text(f"{np.random.rand()} {random.random()} {torch.get_num_threads()}")
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
update: Any = sys.argv[1] if len(sys.argv) > 1 else "workers"
optimizer = taihu.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, update=update)
for step in range(12):
    optimizer.zero_grad()
    model(torch.full((8, 64), 0.01 * step + rank)).square().mean().backward()
    optimizer.step()
optimizer.synchronize()
if len(sys.argv) > 2:
    if rank == 0:
        coordinator = os.environ["TAIHU_CLUSTER__COORDINATOR"]
        try:
            fetch_status(coordinator, 20)
        except RefusedError as error:
            Path("refused").write_text(str(error))
        status = fetch_status(coordinator, 20, Security(token=find_token(os.environ, None)))
        Path("members").write_text(str(len(status.members)))
    with urllib.request.urlopen(f"http://127.0.0.1:{int(sys.argv[2]) + rank}/metrics", timeout=20) as page:
        Path(f"metrics.{rank}").write_bytes(page.read())
sys.stdout.write(f"rank {rank} ends\n")
