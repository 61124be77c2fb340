"""A loop with dropout, shuffled loaders and a schedule, kept by taihu.torch.state: `keeps.py EPOCHS [RANK:STEP ...]`.

A worker of rank RANK kills itself behind STEP, once.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import taihu.torch

rank, size = taihu.torch.rank(), taihu.torch.world_size()
kills = [tuple(map(int, each.split(":"))) for each in sys.argv[2:]]
torch.manual_seed(rank)
model = torch.nn.Sequential(
    torch.nn.Linear(30, 40), torch.nn.BatchNorm1d(40), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(40, 3)
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
optimizer = taihu.torch.DistributedOptimizer(optimizer, model)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3], 0.5)
data = torch.Generator().manual_seed(7)
samples = TensorDataset(torch.randn(96, 30, generator=data), torch.randint(0, 3, (96,), generator=data))
sampler = DistributedSampler(samples, size, rank)
loader = DataLoader(samples, 8, sampler=sampler)
state = taihu.torch.state(model=model, optimizer=optimizer, scheduler=scheduler)
began = state.step
for epoch in state.epochs(int(sys.argv[1])):
    sampler.set_epoch(epoch)
    for inputs, labels in state.batches(loader):
        optimizer.zero_grad()
        scores = model(inputs + 0.01 * torch.randn_like(inputs))
        torch.nn.functional.cross_entropy(scores, labels).backward()
        optimizer.step()
        for each in kills:
            told = Path(f"killed.{each[0]}.{each[1]}")
            if each == (rank, state.step + 1) and not told.exists():
                told.write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)
    scheduler.step()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
rates = optimizer.param_groups[0]["lr"]
Path(f"end.{rank}").write_text(f"{digest} {rates} {torch.rand(1).item()} {began}")
