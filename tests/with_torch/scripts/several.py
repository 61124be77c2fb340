"""Two optimizers, of parts of a model or of two models in turns: `several.py LOOP UPDATE OUT [BATCHES OF WORKER 0]`.

UPDATE is workers or servers, or plain for one process with all samples, without taihu. With a number of batches the
loop is in `join()`, the other workers have one batch more than the one before, and each worker's batches are its own.
"""

import json
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path

import torch
from torch import nn

LOOP, UPDATE, OUT, *UNEVEN = sys.argv[1:]
STEPS, BATCH = 12, 12
rank, size = 0, 1
if UPDATE != "plain":
    import taihu.torch

    rank, size = taihu.torch.rank(), taihu.torch.world_size()


def wrap(optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    if UPDATE == "plain":
        return optimizer
    return taihu.torch.DistributedOptimizer(optimizer, model, update="servers" if UPDATE == "servers" else "workers")


def adding_up(optimizer: torch.optim.Optimizer) -> ExitStack:
    block = ExitStack()
    if UPDATE != "plain":
        block.enter_context(optimizer.no_sync())
    return block


def batch(step: int, width: int) -> torch.Tensor:
    values = torch.randn(BATCH, width, generator=torch.Generator().manual_seed(1000 * width + step))
    return values[rank * BATCH // size : (rank + 1) * BATCH // size]


def half_rate(optimizer: torch.optim.Optimizer, every: int) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, every, gamma=0.5)


torch.set_num_threads(1)
torch.manual_seed(5 + rank)
losses: list[float] = []


def train(loss: torch.Tensor) -> None:
    loss.backward()
    losses.append(loss.item())


if LOOP == "parts":
    model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 3))
    named = [*model.named_parameters()]
    weights, biases = ([p for name, p in named if name.endswith(kind)] for kind in ("weight", "bias"))
    first = wrap(torch.optim.AdamW(weights, lr=0.02, betas=(0.8, 0.95), weight_decay=0.1), model)
    second = wrap(torch.optim.SGD(biases, lr=0.2, momentum=0.9), model)
    schedules = half_rate(first, 5), half_rate(second, 3)
    models: tuple[nn.Module, ...] = (model,)
else:
    maker = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 6))
    judge = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 1))
    first = wrap(torch.optim.Adam(maker.parameters(), lr=0.02, betas=(0.5, 0.9)), maker)
    second = wrap(torch.optim.SGD(judge.parameters(), lr=0.1, momentum=0.9), judge)
    schedules = half_rate(first, 4), half_rate(second, 6)
    models = (maker, judge)


def part_steps(step: int) -> None:
    first.zero_grad()
    second.zero_grad()
    train(nn.functional.mse_loss(model(batch(step, 6)), batch(step, 3)))
    first.step()
    second.step()


def score(inputs: torch.Tensor, label: float) -> torch.Tensor:
    scores = judge(inputs)
    return nn.functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, label))


def turns(step: int) -> None:
    """The judge adds two backwards up, and steps more often than the maker, who leaves it alone."""
    second.zero_grad()
    made = maker(batch(step, 4))
    with adding_up(second):
        train(score(batch(step, 6), 1.0))
    train(score(made.detach(), 0.0))
    second.step()
    if step % 3 != 1:
        judge.requires_grad_(False)
        first.zero_grad()
        train(score(made, 1.0))
        first.step()
        judge.requires_grad_(True)


def tutorial(step: int) -> None:
    """PyTorch's tutorial: gradients of the judge come twice before it steps, and once more and are dropped."""
    judge.zero_grad()
    train(score(batch(step, 6), 1.0))
    made = maker(batch(step, 4))
    train(score(made.detach(), 0.0))
    second.step()
    maker.zero_grad()
    train(score(made, 1.0))
    first.step()


make = {"parts": part_steps, "turns": turns, "tutorial": tutorial}[LOOP]
with ExitStack() as block:
    if UNEVEN:
        block.enter_context(second.join())
    for step in range(int(UNEVEN[0]) + rank if UNEVEN else STEPS):
        make(100 * rank + step if UNEVEN else step)
        if not UNEVEN:
            for schedule in schedules:
                schedule.step()
with nullcontext() if UPDATE == "plain" else first.gathered():
    values = [value for each in models for p in each.parameters() for value in p.detach().flatten().tolist()]
Path(OUT if UPDATE == "plain" else f"{OUT}.{rank}").write_text(json.dumps({"losses": losses, "values": values}))
