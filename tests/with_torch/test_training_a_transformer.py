"""The transformer trained beside the same one of PyTorch: same text, same initial weights, same optimizer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from taihu.core.optimization import OptimizerShard, WholeNorm
from taihu.core.settings import DataSettings, OptimizerSettings
from taihu.core.traits.optimizers import OPTIMIZERS
from taihu.worker.data.batches import Batches
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import Model, StepContext, StepHooks, TokenCrossEntropy, transformer

_TIME, _WIDTH, _HEADS, _BLOCKS, _TOKENS = 32, 32, 4, 2, 256
_STEPS, _BATCH, _RATE = 50, 8, 0.003


class Block(nn.Module):  # type: ignore[misc]
    """GPT-2's block: attention, then a perceptron, each behind a normalisation and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.joint, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, width), unchanged in shape."""
        parts = self.joint(self.before(x)).chunk(3, dim=-1)
        heads = (part.view(*part.shape[:2], _HEADS, -1).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Net(nn.Module):  # type: ignore[misc]
    """Written for this test, as PyTorch's users write it; the outputs share the table of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(_TOKENS, _WIDTH), nn.Embedding(_TIME, _WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(_BLOCKS)))
        self.end = nn.LayerNorm(_WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (batch, time, tokens)."""
        x = self.tokens(tokens) + self.places(torch.arange(_TIME))
        return functional.linear(self.end(self.blocks(x)), self.tokens.weight)


def _in_pytorch(model: Model) -> Net:
    """The net with the parameters of `model`."""
    net, values = Net(), {name: torch.from_numpy(each.copy()) for name, each in model.parameters_by_name().items()}
    names = {
        "tokens": "embedding1", "places": "position1", "end": "layernorm1", "before": "body.layernorm1",
        "joint": "body.fc1", "out": "body.fc2", "between": "body.layernorm1", "up": "body.fc1", "down": "body.fc2",
    }  # fmt: skip
    taken = set()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            *block, part, tensor = name.split(".")
            residual = f"residual{2 * int(block[1]) + 1 + (part in {'between', 'up', 'down'})}." if block else ""
            norm = "layernorm" in names[part]
            own = f"{residual}{names[part]}/{({'weight': 'scale', 'bias': 'shift'}[tensor]) if norm else tensor}"
            value = values[own]
            parameter.copy_(value.T if "fc" in own and tensor == "weight" else value)
            taken.add(own)
    assert taken == values.keys()
    return net


@pytest.mark.parametrize(("name", "largest"), [("adamw", None), ("sgd", None), ("sgd", 0.3)])
def test_fifty_steps_have_pytorchs_losses(name: str, largest: float | None) -> None:
    settings = {
        "adamw": OptimizerSettings(name=OPTIMIZERS["adamw"], learning_rate=_RATE, weight_decay=0.1, beta2=0.95),
        "sgd": OptimizerSettings(name=OPTIMIZERS["sgd"], learning_rate=0.05, momentum=0.9),
    }[name]
    data = load_dataset(DataSettings(name="python-source", sequence=_TIME))
    batches = Batches(data, batch=_BATCH, workers=1, rank=0, seed=3)
    model = Model(transformer(_TOKENS, blocks=_BLOCKS, width=_WIDTH, heads=_HEADS), (_TIME,), _TOKENS)
    model.use_loss(TokenCrossEntropy())
    parameters, gradients = np.zeros((2, model.layout.elements), np.float32)
    model.bind(parameters, gradients)
    model.initialize(3)
    net = _in_pytorch(model)
    made = {
        "adamw": lambda: torch.optim.AdamW(net.parameters(), lr=_RATE, weight_decay=0.1, betas=(0.9, 0.95)),
        "sgd": lambda: torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9),
    }[name]()
    shard = OptimizerShard(settings, parameters)
    ours, theirs = [], []
    for step in range(1, _STEPS + 1):
        inputs, targets = batches.batch(step)
        ours.append(model.train(inputs, targets, StepContext(True, 3, step, 0), StepHooks()))
        norm = WholeNorm(largest or 1e9, 1.0)
        norm.add(gradients)
        shard.update(0, len(parameters), gradients, step, norm.factor)
        made.zero_grad()
        logits = net(torch.from_numpy(inputs).long())
        loss = functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())
        loss.backward()
        if largest:
            torch.nn.utils.clip_grad_norm_(net.parameters(), largest)
        made.step()
        theirs.append(loss.item())
    assert ours[0] > 5.4
    assert ours[-1] < 3.5
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
