"""A training loop as people write them; with `plain` as argument one process of it, without taihu."""

import hashlib
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn

PLAIN = sys.argv[1] == "plain"
STEPS, MICRO, BATCH = 50, 2, 24


class Net(nn.Module):  # type: ignore[misc]
    """A frozen layer, one that is used twice, one that is never used, and one of no activation that comes late."""

    def __init__(self) -> None:
        super().__init__()
        self.late = nn.Parameter(torch.randn(20))
        self.frozen = nn.Linear(20, 32)
        self.frozen.requires_grad_(False)
        self.shared = nn.Linear(32, 32)
        self.unused = nn.Linear(7, 7)
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.frozen(x * self.late))
        x = torch.tanh(self.shared(torch.relu(self.shared(x))))
        return self.head(x)


def hash_of(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


torch.set_num_threads(1)
torch.manual_seed(7 + int(os.environ.get("TAIHU_RANK", "0")))
model = Net()
optimizer = torch.optim.Adam(
    [{"params": [*model.shared.parameters()], "lr": 0.003}, {"params": [model.late, *model.head.parameters()]}],
    lr=0.01,
)
optimizer.add_param_group({"params": [*model.unused.parameters()]})
rank, size = 0, 1
if not PLAIN:
    import taihu.torch

    rank, size = taihu.torch.rank(), taihu.torch.world_size()
    optimizer = taihu.torch.DistributedOptimizer(optimizer, model)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, gamma=0.5)

data = torch.Generator().manual_seed(3)
inputs = torch.randn(STEPS, MICRO, BATCH, 20, generator=data)
labels = torch.randint(0, 5, (STEPS, MICRO, BATCH), generator=data)
share = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
losses, hashes = [], []
for step in range(STEPS):
    optimizer.zero_grad(set_to_none=step % 2 == 0)
    for micro in range(MICRO):
        is_last = micro == MICRO - 1
        with nullcontext() if PLAIN or is_last else optimizer.no_sync():
            loss = nn.functional.cross_entropy(model(inputs[step, micro, share]), labels[step, micro, share]) / MICRO
            loss.backward()
        losses.append(loss.item())
    nn.utils.clip_grad_norm_(model.parameters(), 0.2)
    optimizer.step()
    scheduler.step()
    hashes.append(hash_of(model))
Path(sys.argv[2] if PLAIN else f"{sys.argv[2]}.{rank}").write_text(json.dumps({"losses": losses, "hashes": hashes}))
