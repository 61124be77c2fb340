"""The transformer of the zoo, most of whose memory are activations, and one of next to none."""

from __future__ import annotations

from taihu.worker.engine import Layer, transformer
from taihu.worker.engine.models.zoo import small_gpt

__all__ = ["build", "build_narrow"]


def build(input_shape: tuple[int, ...], tokens: int) -> Layer:
    """The model of the zoo."""
    return small_gpt(input_shape, tokens)


def build_narrow(input_shape: tuple[int, ...], tokens: int) -> Layer:
    """One block of width 4: what a process holds beside parameters and activations."""
    return transformer(tokens, blocks=1, width=4, heads=1)
