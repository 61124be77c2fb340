"""Trainer of transformers: a small Llama learns to write Python.

One process:      python examples/huggingface/trainer.py
Two workers:      taihu run --workers 2 examples/huggingface/trainer.py
By torchrun:      torchrun --standalone --nproc-per-node 2 examples/huggingface/trainer.py
"""

import argparse
import os

import tiny
import torch
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

import taihu.torch  # noqa: F401 - registers the backend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8, help="of each process")
    parser.add_argument("--folder", default="runs/trained", help="for what Trainer saves")
    options = parser.parse_args()

    if "RANK" in os.environ:
        torch.distributed.init_process_group("taihu")
    tokenizer = tiny.tokenizer()
    data = tiny.tokens(tokenizer)
    arguments = TrainingArguments(
        options.folder,
        use_cpu=True,
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        learning_rate=3e-3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    trainer = Trainer(tiny.model(), arguments, data_collator=collator, train_dataset=data)
    trainer.train()
    if trainer.is_world_process_zero():
        for entry in trainer.state.log_history:
            if "loss" in entry:
                print(f"step {entry['step']}: loss {entry['loss']:.6f}")


if __name__ == "__main__":
    main()
