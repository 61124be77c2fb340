"""Transformers over tokens as layers: GPT-2's arrangement (Radford et al. 2019), of any size."""

from __future__ import annotations

from taihu.worker.engine.base.layer import Layer
from taihu.worker.engine.layers.attention import CausalAttention
from taihu.worker.engine.layers.containers import Residual, Sequential
from taihu.worker.engine.layers.dense import Dropout, Linear
from taihu.worker.engine.layers.embedding import Embedding, PositionEmbedding, TiedLinear
from taihu.worker.engine.layers.gelu import GELU
from taihu.worker.engine.layers.layer_norm import LayerNorm


def transformer(
    tokens: int, *, blocks: int, width: int, heads: int, dropout: float = 0.0, tied: bool = True
) -> Sequential:
    """A model that tells, at every place of a sequence, which token follows.

    Args:
        tokens: how many different ones there are.
        blocks: of attention and a perceptron of 4 x width units, each behind a `LayerNorm` and added to its input.
        width: features of a token.
        heads: of each attention; they divide the width.
        dropout: the rate behind embeddings, attention and perceptron.
        tied: whether the outputs use the table of the embedding.
    """
    # The sum of all branches then has about the deviation of one.
    gain = 1.0 / max(1, 2 * blocks)
    layers: list[Layer] = [Embedding(tokens, width), PositionEmbedding(), *_dropped(dropout)]
    for _ in range(blocks):
        attention: list[Layer] = [LayerNorm(), Linear(3 * width, gain=1.0), CausalAttention(heads)]
        perceptron: list[Layer] = [LayerNorm(), Linear(4 * width, gain=1.0), GELU()]
        layers += [
            Residual(Sequential([*body, Linear(width, gain=gain), *_dropped(dropout)]))
            for body in (attention, perceptron)
        ]
    end = TiedLinear(tokens) if tied else Linear(tokens, bias=False, gain=1.0)
    return Sequential([*layers, LayerNorm(), end])


def _dropped(rate: float) -> list[Layer]:
    return [Dropout(rate)] if rate else []
