"""A loop with Accelerate that taihu.torch.state keeps: `accelerated_state.py [RANK:STEP ...]`.

A rank RANK kills itself in STEP, once; rank 0 adds its losses to the file `losses`, each with its step.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

import taihu.torch

kills = [tuple(map(int, each.split(":"))) for each in sys.argv[1:]]
torch.distributed.init_process_group("taihu")
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
set_seed(0)
data = TensorDataset(torch.randn(64, 10), torch.randint(0, 3, (64,)))
model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=8, shuffle=True))
state = taihu.torch.state(model=model, optimizer=optimizer)
for epoch in state.epochs(3):
    loader.set_epoch(epoch)
    for inputs, labels in state.batches(loader):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step = state.step + 1
        if accelerator.is_main_process:
            with Path("losses").open("a") as told:
                told.write(f"{step} {loss.item().hex()}\n")
        for each in kills:
            killed = Path(f"killed.{each[0]}.{each[1]}")
            if each == (accelerator.process_index, step) and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
