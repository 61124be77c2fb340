"""A loop over batches of an ElasticSampler: `elastic.py EPOCHS BATCH [STEP ...]`.

Behind each of the steps that are named worker 0 waits, once, for whoever ends it. All samples of a step are noted.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import taihu.torch

epochs, batch, *waits = map(int, sys.argv[1:])
rank, size = taihu.torch.rank(), taihu.torch.world_size()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = taihu.torch.DistributedOptimizer(optimizer, model)
drawn = torch.Generator().manual_seed(7)
samples = TensorDataset(
    torch.randn(100, 20, generator=drawn), torch.randint(0, 3, (100,), generator=drawn), torch.arange(100)
)
sampler = taihu.torch.ElasticSampler(samples, batch=batch, seed=3)
state = taihu.torch.state(model=model, optimizer=optimizer)
for epoch in state.epochs(epochs):
    sampler.set_epoch(epoch)
    for inputs, labels, indices in state.batches(DataLoader(samples, batch_sampler=sampler)):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        step = state.step + 1
        waiting = Path(f"waits.{step}")
        if rank == 0 and step in waits and not waiting.exists():
            written = Path(f"waiting.{step}")
            written.write_text(str(os.getpid()))
            written.rename(waiting)
            while True:
                time.sleep(60)
        note = Path(f"seen.{step}.{rank}.{size}")
        note.with_suffix(".new").write_text(" ".join(map(str, indices.tolist())))
        note.with_suffix(".new").rename(note)
torch.save([p.detach() for p in model.parameters()], f"end.{rank}")
