"""A small transformer that learns to write Python, from the sources of the standard library that every Python has.

One process:      python examples/torch/transformer_text.py
Three workers:    taihu run --workers 3 examples/torch/transformer_text.py
Sparse:           taihu run --workers 3 --compression dlgs examples/torch/transformer_text.py --beta1 0 --lr 2e-3
"""

import argparse
import sysconfig
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import taihu.torch


class Transformer(nn.Module):
    """A decoder of bytes; the embedding of a byte is also the weight that its score is computed with."""

    def __init__(self, width: int, layers: int, context: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        nn.init.normal_(self.bytes.weight, std=width**-0.5)  # scores begin at about 1
        self.places = nn.Parameter(torch.zeros(context, width))
        layer = nn.TransformerEncoderLayer(
            width, width // 32, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.bytes(text) + self.places, mask=self.mask, is_causal=True)
        return x @ self.bytes.weight.T


def read_sources(most: int) -> torch.Tensor:
    library = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = b"".join(path.read_bytes() for path in library)[:most]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--beta1", type=float, default=0.9, help="0 behind compression, which acts as momentum")
    parser.add_argument("--bytes", type=int, default=4_000_000, help="of text")
    options = parser.parse_args()
    torch.manual_seed(0)

    text = read_sources(options.bytes)
    model = Transformer(options.width, options.layers, options.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(options.beta1, 0.999), weight_decay=0.01)
    optimizer = taihu.torch.DistributedOptimizer(optimizer, model)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=20)

    start, recent = time.perf_counter(), []
    for step in range(1, options.steps + 1):
        begins = torch.randint(len(text) - options.context - 1, (options.batch,))
        begins = begins[taihu.torch.rank() :: taihu.torch.world_size()]
        windows = torch.stack([text[begin : begin + options.context + 1] for begin in begins])
        optimizer.zero_grad()
        scores = model(windows[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm_up.step()
        recent = [*recent[-49:], loss.item()]
        if step % 50 == 0 or step == options.steps:
            seconds = time.perf_counter() - start
            print(f"step {step}: loss {sum(recent) / len(recent):.4f}, {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
