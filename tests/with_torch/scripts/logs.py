"""A loop that keeps its state and logs values of its own; in its first life worker 0 is killed in the middle."""

import os
import signal

import torch

import taihu.torch

torch.manual_seed(0)
model = torch.nn.Linear(20, 3)
optimizer = taihu.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
state = taihu.torch.state(model=model, optimizer=optimizer)
taihu.torch.log(begins=1)
is_first = state.step == 0
for _ in state.epochs(5):
    for batch in state.batches(range(12)):
        data = torch.Generator().manual_seed(int(batch))
        optimizer.zero_grad()
        scores = model(torch.randn(8, 20, generator=data))
        loss = torch.nn.functional.cross_entropy(scores, torch.randint(0, 3, (8,), generator=data))
        loss.backward()
        optimizer.step()
        taihu.torch.log(loss=loss, double=2 * loss.item())
        if is_first and state.step == 30 and taihu.torch.rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
