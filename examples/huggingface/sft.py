"""TRL's SFTTrainer with LoRA: a small Llama learns to go on with a text.

One process:      python examples/huggingface/sft.py
Two workers:      taihu run --workers 2 examples/huggingface/sft.py
By torchrun:      torchrun --standalone --nproc-per-node 2 examples/huggingface/sft.py
"""

import argparse
import os

import tiny
import torch
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

import taihu.torch  # noqa: F401 - registers the backend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8, help="of each process")
    parser.add_argument("--folder", default="runs/trained", help="for what Trainer saves")
    options = parser.parse_args()

    if "RANK" in os.environ:
        torch.distributed.init_process_group("taihu")
    data = tiny.texts().map(
        lambda row, place: {"prompt": row["text"][: 16 + place % 32], "completion": row["text"][16 + place % 32 :]},
        with_indices=True,
        remove_columns="text",
    )
    arguments = SFTConfig(
        options.folder,
        use_cpu=True,
        bf16=False,
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = SFTTrainer(
        tiny.model(),
        arguments,
        train_dataset=data,
        processing_class=tiny.tokenizer(),
        peft_config=LoraConfig(r=8, target_modules="all-linear", modules_to_save=["lm_head"], task_type="CAUSAL_LM"),
    )
    trainer.train()
    if trainer.is_world_process_zero():
        for entry in trainer.state.log_history:
            if "loss" in entry:
                print(f"step {entry['step']}: loss {entry['loss']:.6f}")


if __name__ == "__main__":
    main()
