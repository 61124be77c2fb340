"""A loop with Accelerate over Gloo; `losses` are this rank's."""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import taihu.torch  # noqa: F401 - registers the backend

torch.manual_seed(0)
dist.init_process_group("gloo")
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)

data = TensorDataset(torch.randn(64, 10), torch.randint(0, 3, (64,)))
model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
model, optimizer, loader, scheduler = accelerator.prepare(
    model, optimizer, DataLoader(data, batch_size=4, shuffle=True), scheduler
)
losses: list[float] = []
for _ in range(2):
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses += accelerator.gather_for_metrics(loss[None]).tolist()
