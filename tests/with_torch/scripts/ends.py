"""A script of which one rank ends otherwise than the others: its arguments are the way and the rank.

The file that MARK names is touched when its turn comes.
"""

import os
import signal
import sys
from pathlib import Path

import torch

import taihu.torch

way, who = sys.argv[1], int(sys.argv[2])
rank = taihu.torch.rank()


def mark() -> None:
    if "MARK" in os.environ:
        Path(os.environ["MARK"]).touch()


if way == "never begins" and rank == who:
    mark()
    sys.exit()
model = torch.nn.Linear(4, 2)
optimizer = taihu.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)


def backward() -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 4)).sum().backward()


for step in range(8):
    if step == 3 and rank == who:
        mark()
        match way:
            case "sys.exit(3)":
                sys.exit(3)
            case "os._exit(3)":
                os._exit(3)
            case "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
            case "returns":
                break
            case "no_sync":
                with optimizer.no_sync():
                    backward()
                continue
            case "calls":
                taihu.torch.broadcast_parameters(model)
            case "closures":
                backward()
    backward()
    optimizer.step()
