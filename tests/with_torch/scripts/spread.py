"""Linear layers spread over the workers by the lines of docs/torch.md; worker 0 saves the model."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import torch
from support.small_net import new_net

import taihu.torch

torch.set_num_threads(1)
rank, size = taihu.torch.rank(), taihu.torch.world_size()
model = new_net(rank)
assert taihu.torch.shard_linear(model, at_least=1000) == ("fc1",)
optimizer = taihu.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
rng = torch.Generator().manual_seed(5)
for _ in range(3):
    optimizer.zero_grad()
    own = torch.randn(6, 1, 8, 8, generator=rng)[rank::size]
    torch.nn.functional.mse_loss(model(own), torch.ones(len(own), 10)).backward()
    taihu.torch.clip_grad_norm_(model.parameters(), 0.3)
    optimizer.step()
state = model.state_dict()
if rank == 0:
    torch.save(state, sys.argv[1])
