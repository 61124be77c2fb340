"""A loop with Accelerate and a data set of datasets: a small Llama learns to write Python.

One process:      python examples/huggingface/accelerate_loop.py
Two workers:      taihu run --workers 2 examples/huggingface/accelerate_loop.py
By torchrun:      torchrun --standalone --nproc-per-node 2 examples/huggingface/accelerate_loop.py
"""

import argparse
import os

import tiny
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader

import taihu.torch  # noqa: F401 - registers the backend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8, help="of each process")
    options = parser.parse_args()

    if "RANK" in os.environ:
        torch.distributed.init_process_group("taihu")
    # The same order of samples on any number of processes.
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    set_seed(0)
    tokenizer, model = tiny.tokenizer(), tiny.model()
    data = tiny.tokens(tokenizer)
    loader = DataLoader(data.with_format("torch"), batch_size=options.batch, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    for _ in range(options.epochs):
        for batch in loader:
            loss = model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            accelerator.print(f"step {step}: loss {accelerator.reduce(loss.detach(), 'mean').item():.6f}")


if __name__ == "__main__":
    main()
