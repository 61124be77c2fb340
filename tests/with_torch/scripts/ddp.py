"""A loop with DistributedDataParallel over Gloo; `losses` are this rank's."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import taihu.torch  # noqa: F401 - registers the backend

torch.manual_seed(0)
dist.init_process_group("gloo")

data = TensorDataset(torch.randn(64, 10), torch.randint(0, 3, (64,)))
sampler = DistributedSampler(data)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses: list[float] = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, labels in DataLoader(data, batch_size=4, sampler=sampler):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
