"""LoRA of PEFT in a loop of one's own: the exchange carries the adapters alone.

One process:      python examples/huggingface/lora_loop.py
Two workers:      taihu run --workers 2 examples/huggingface/lora_loop.py
By torchrun:      torchrun --standalone --nproc-per-node 2 examples/huggingface/lora_loop.py
"""

import argparse

import tiny
import torch
from peft import LoraConfig, get_peft_model

import taihu.torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16, help="of all processes together")
    options = parser.parse_args()

    tokens = torch.tensor(tiny.tokens(tiny.tokenizer())["input_ids"][:])
    tokens, test = tokens[:-32], tokens[-32:]
    adapters = LoraConfig(r=8, target_modules="all-linear", modules_to_save=["lm_head"])
    model = get_peft_model(tiny.model(), adapters)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=3e-3)
    optimizer = taihu.torch.DistributedOptimizer(optimizer, model)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, options.steps + 1):
        batch = tokens[torch.randint(len(tokens), (options.batch,), generator=generator)]
        batch = batch[taihu.torch.rank() :: taihu.torch.world_size()]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            with torch.no_grad():
                print(f"step {step}: loss {model(input_ids=test, labels=test).loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
