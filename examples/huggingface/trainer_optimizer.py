"""Trainer of transformers over taihu's own exchange: planned, compressed, or through servers.

One process:      python examples/huggingface/trainer_optimizer.py
Two workers:      taihu run --workers 2 examples/huggingface/trainer_optimizer.py
Sparse:           taihu run --workers 2 --compression dlgs examples/huggingface/trainer_optimizer.py --beta1 0
By torchrun:      torchrun --standalone --nproc-per-node 2 examples/huggingface/trainer_optimizer.py
"""

import argparse
import os

import tiny
import torch
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

import taihu.torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8, help="of each process")
    parser.add_argument("--beta1", type=float, default=0.9, help="0 behind compression, which acts as momentum")
    parser.add_argument("--folder", default="runs/trained", help="for what Trainer saves")
    options = parser.parse_args()

    taihu.torch.init()
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):  # or Trainer exchanges gradients, too
        os.environ.pop(name, None)
    tokenizer, model = tiny.tokenizer(), tiny.model()
    data = tiny.tokens(tokenizer)
    data, test = data.select(range(480)), data.select(range(480, 512))
    data = data.shard(taihu.torch.world_size(), taihu.torch.rank(), contiguous=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(options.beta1, 0.999))
    optimizer = taihu.torch.DistributedOptimizer(optimizer, model)
    arguments = TrainingArguments(
        options.folder,
        use_cpu=True,
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        train_sampling_strategy="sequential",
        eval_strategy="steps",
        eval_steps=5,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    trainer = Trainer(
        model, arguments, collator, train_dataset=data, eval_dataset=test, optimizers=(optimizer, None)
    )  # fmt: skip
    trainer.train()
    for entry in trainer.state.log_history:
        if "eval_loss" in entry:
            print(f"step {entry['step']}: loss {entry['eval_loss']:.6f}")


if __name__ == "__main__":
    main()
