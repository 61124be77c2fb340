"""Loops with FullyShardedDataParallel and with `fully_shard` over Gloo; `losses` are this rank's."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import taihu.torch  # noqa: F401 - registers the backend

dist.init_process_group("gloo")
losses: list[float] = []
for is_wrapped in (True, False):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    if is_wrapped:
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    else:
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        for part in (*model[::2], model):
            fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(10 * dist.get_rank() + is_wrapped)
    inputs, labels = torch.randn(64, 10), torch.randint(0, 3, (64,))
    for chosen in torch.arange(64).split(4):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
