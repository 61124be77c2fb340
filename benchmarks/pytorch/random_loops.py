"""Small training loops of the parts that people use, drawn at random, and each as the source of a script. Pure.

A loop is some steps; each has a way of computing gradients and maybe a change before it. All ranks do the same,
but for a fault: one of them does something that the others do not, and an error is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from hypothesis import strategies as st

__all__ = ["Loop", "Step", "loops", "smaller", "source_of"]

OPTIMIZERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "sgd": "torch.optim.SGD({}, lr=0.05)",
        "momentum": "torch.optim.SGD({}, lr=0.03, momentum=0.9)",
        "decay": "torch.optim.SGD({}, lr=0.05, momentum=0.5, weight_decay=0.01, nesterov=True)",
        "adam": "torch.optim.Adam({}, lr=0.01, eps=0.01)",
        "adamw": "torch.optim.AdamW({}, lr=0.01, eps=0.01)",
    }
)
LBFGS: Final = "torch.optim.LBFGS({}, lr=0.1, max_iter=3)"

WAYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "usual": "zero(); loss_of(x, y).backward(); step()",
        "clip": "zero(); loss_of(x, y).backward(); nn.utils.clip_grad_norm_(m.parameters(), 0.1); step()",
        "clip values": "zero(); loss_of(x, y).backward(); nn.utils.clip_grad_value_(m.parameters(), 0.05); step()",
        "accumulate": "zero(); halves(x, y); step()",
        "twice": "zero(); loss_of(x, y).backward(); loss_of(y.repeat(1, 6) + x, y).backward(); step()",
        "no zero": "loss_of(x, y).backward(); step()",
        "no step": "zero(); loss_of(x, y).backward()",
        "skip": "pass",
        "zeros": "[o.zero_grad(set_to_none=False) for o in os]; loss_of(x, y).backward(); step()",
        "zero of the model": "m.zero_grad(); loss_of(x, y).backward(); step()",
        "step twice": "zero(); loss_of(x, y).backward(); step(); step()",
        "scaled": "zero(); loss_of(x, y).backward(); [p.grad.mul_(0.5) for p in trained()]; step()",
        "replaced": "zero(); loss_of(x, y).backward(); set_grads([p.grad * 0.5 for p in trained()]); step()",
        "autograd.grad": "zero(); by_hand(x, y); step()",
        "autograd.grad, no zero": "by_hand(x, y); step()",
        "autograd.grad, clip": "zero(); by_hand(x, y); synchronize(); "
        "nn.utils.clip_grad_norm_(m.parameters(), 0.1); step()",
        "autograd.grad, clip too early": "zero(); by_hand(x, y); nn.utils.clip_grad_norm_(m.parameters(), 0.1); "
        "step()",
        "never synchronized": "zero(); locally(x, y); step()",
        "kept": "kept(x, y)",
        "kept parts": "kept(x, y, lambda g: g.detach())",
        "branch": "zero(); loss_of(x, y, branch=True).backward(); step()",
        "closure": "[o.step(closure(o, x, y)) for o in os]",
        "evaluation": "m.eval(); torch.no_grad().__enter__(); m(x); torch.set_grad_enabled(True); m.train()",
    }
)
CHANGES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "freeze first": "m.first.requires_grad_(False)",
        "freeze middle": "m.middle.requires_grad_(False)",
        "freeze bias": "m.last.bias.requires_grad_(False)",
        "thaw first": "m.first.requires_grad_(True)",
        "thaw all": "m.requires_grad_(True)",
        "add first": "join(m.first)",
        "append": "m.more.append(linear(8, 8, 40 + len(m.more)).to(kind())); join(m.more[-1])",
        "replace last": "m.last = linear(8, 1, 50).to(kind()); join(m.last)",
        "replace middle": "former = set(m.middle.parameters()); m.middle = linear(8, 8, 51).to(kind()); "
        "swap(former, m.middle)",
        "double": "m.double()",
        "new optimizers": "os = made(m)",
        "new model": "m = Net(60); os = made(m)",
        "copy": "other = copy.deepcopy(m); other(torch.ones(1, 6).to(kind())).sum().backward()",
        "save": "torch.save(m, io.BytesIO()); torch.save([o.state_dict() for o in os], io.BytesIO())",
        "schedule": "[o.param_groups[0].update(lr=o.param_groups[0]['lr'] * 0.7) for o in os]",
    }
)
FAULTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "freezes": "m.middle.requires_grad_(False)",
        "joins": "join(linear(8, 8, 70))",
        "changes a gradient": "after = lambda: [p.grad.add_(0.1) for p in trained() if p.grad is not None]",
        "by hand": "zero(); by_hand(x, y); step()",
        "one more backward": "zero(); loss_of(x, y).backward(); step()",
        "new optimizers": "os = made(m)",
        "double": "m.double()",
        "changes a parameter": "torch.no_grad().__enter__(); m.last.weight.add_(0.1); torch.set_grad_enabled(True)",
    }
)
ENDS: Final[Mapping[str, str]] = MappingProxyType({"ends early": "break"})

_HEAD: Final = """import copy, io
import torch, torch.nn as nn, torch.nn.functional as F
import taihu.torch as tt


def linear(inputs, outputs, seed):
    layer, drawn = nn.Linear(inputs, outputs), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in layer.parameters():
            p.uniform_(-0.5, 0.5, generator=drawn)
    return layer


class Net(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.first, self.middle, self.branch = linear(6, 8, seed), linear(8, 8, seed + 1), linear(8, 8, seed + 2)
        self.more, self.last = nn.ModuleList(), linear(8, 1, seed + 3)

    def forward(self, x, branch=False):
        h = torch.tanh(self.first(x))
        h = h + torch.tanh(self.middle(h))
        for layer in ([self.branch] if branch else []) + list(self.more):
            h = h + torch.tanh(layer(h))
        return self.last(h)


def kind():
    return next(m.parameters()).dtype


def batch(step):
    drawn = torch.Generator().manual_seed(1000 + step)
    x, y = torch.randn(12, 6, generator=drawn).to(kind()), torch.randn(12, 1, generator=drawn).to(kind())
    return x[tt.rank() :: tt.world_size()], y[tt.rank() :: tt.world_size()]


def loss_of(x, y, **how):
    return F.mse_loss(m(x, **how), y)


def zero():
    for o in os:
        o.zero_grad()


def step():
    after()
    for o in os:
        o.step()


def trained():
    return [p for p in m.parameters() if p.grad is not None]


def set_grads(grads):
    for p, g in zip(trained(), grads):
        p.grad = g


def synchronize():
    for o in os:
        getattr(o, "synchronize", lambda: None)()


def locally(x, y):
    with contextlib_of(os):
        loss_of(x, y).backward()


def halves(x, y):
    n = len(x) // 2
    with contextlib_of(os):
        (loss_of(x[:n], y[:n]) / 2).backward()
    (loss_of(x[n : 2 * n], y[n : 2 * n]) / 2).backward()


def contextlib_of(os):
    import contextlib

    stack = contextlib.ExitStack()
    for o in os:
        stack.enter_context(getattr(o, "no_sync", contextlib.nullcontext)())
    return stack


def by_hand(x, y):
    ps = [p for p in m.parameters() if p.requires_grad]
    for p, g in zip(ps, torch.autograd.grad(loss_of(x, y), ps, allow_unused=True)):
        p.grad = g


def kept(x, y, form=lambda g: g):
    m.zero_grad()
    loss_of(x, y).backward()
    g1 = {p: form(p.grad) for p in trained()}
    copies = {p: g.clone() for p, g in g1.items()}
    m.zero_grad()
    F.l1_loss(m(x), -y).backward()
    assert all(torch.equal(g1[p], copies[p]) for p in g1), "a kept gradient has changed"
    for p in trained():
        p.grad = g1[p] + 0.5 * p.grad if p in g1 else p.grad
    step()


def closure(o, x, y):
    def evaluated():
        o.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        return loss

    return evaluated


def join(layer):
    known = {p for o in os for g in o.param_groups for p in g["params"]}
    new = [p for p in layer.parameters() if p not in known]
    if new:
        os[0].add_param_group({"params": new, "lr": 0.02})


def swap(former, layer):
    for o in os:
        for g in o.param_groups:
            if former & set(g["params"]):
                g["params"] = [p for p in g["params"] if p not in former] + list(layer.parameters())


"""


@dataclass(frozen=True)
class Step:
    """A step: its way, a change before it or "", and a fault of rank 1 before it or ""."""

    way: str
    change: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Loop:
    """A training loop.

    Attributes:
        optimizer: its kind.
        steps: in their order.
        several: whether there are two optimizers, which share the model.
        partly: whether the first layer is in none at first.
        frozen: whether the first layer needs no gradient at first.
        named: whether the model is given to DistributedOptimizer.
    """

    optimizer: str
    steps: tuple[Step, ...]
    several: bool = False
    partly: bool = False
    frozen: bool = False
    named: bool = True

    @property
    def has_fault(self) -> bool:
        """Whether a rank does something that the others do not."""
        return any(step.fault for step in self.steps)


def loops(*, early_ends: bool = True) -> st.SearchStrategy[Loop]:
    """Loops of 3 to 9 steps, one in six with a fault."""
    faults = [*FAULTS, *(ENDS if early_ends else ())]
    changes = st.one_of(st.just(""), st.just(""), st.sampled_from(sorted(CHANGES)))
    ways = st.one_of(st.just("usual"), st.sampled_from(sorted(WAYS)))
    usual = st.builds(
        Loop,
        optimizer=st.sampled_from(sorted(OPTIMIZERS)),
        steps=st.lists(st.builds(Step, ways, changes), min_size=3, max_size=9).map(tuple),
        several=st.booleans(),
        partly=st.booleans(),
        frozen=st.booleans(),
        named=st.integers(0, 3).map(bool),
    )
    steps = st.lists(st.builds(Step, st.sampled_from(["closure", "skip", "evaluation"])), min_size=3, max_size=6)
    by_lbfgs = st.builds(Loop, st.just("lbfgs"), steps.map(tuple))
    faulty = st.builds(_with_fault, usual, st.integers(0, 8), st.sampled_from(faults))
    return st.integers(0, 11).flatmap(lambda i: by_lbfgs if i == 0 else faulty if i < 3 else usual)


def _with_fault(loop: Loop, at: int, fault: str) -> Loop:
    index = at % len(loop.steps)
    changed = replace(loop.steps[index], fault=fault)
    return replace(loop, steps=(*loop.steps[:index], changed, *loop.steps[index + 1 :]))


def smaller(loop: Loop) -> list[Loop]:
    """Loops with one part less each."""
    made = [replace(loop, steps=loop.steps[:i] + loop.steps[i + 1 :]) for i in range(len(loop.steps))]
    for i, step in enumerate(loop.steps):
        parts = [replace(step, change="")] if step.change else []
        parts += [replace(step, way="usual")] if step.way != "usual" and loop.optimizer != "lbfgs" else []
        made += [replace(loop, steps=(*loop.steps[:i], part, *loop.steps[i + 1 :])) for part in parts]
    made += [replace(loop, several=False)] if loop.several else []
    made += [replace(loop, partly=False)] if loop.partly else []
    made += [replace(loop, frozen=False)] if loop.frozen else []
    return [each for each in made if each.steps]


def source_of(loop: Loop) -> str:
    """The script of a loop; it leaves `told`, the parameters at the end of each step."""
    kind = LBFGS if loop.optimizer == "lbfgs" else OPTIMIZERS[loop.optimizer]
    given = ", m" if loop.named else ""
    first = "" if loop.partly else "m.first, "
    parts = (
        [f"{first}m.middle", "m.branch, m.last, m.more"]
        if loop.several
        else [f"{first}m.middle, m.branch, m.last, m.more"]
    )
    lines = ["def made(m):", "    os = []"]
    for part in parts:
        lines.append(f"    ps = [p for layer in [{part}] for p in layer.parameters()]")
        lines.append(f"    os.append(tt.DistributedOptimizer({kind.format('ps')}{given}))")
    lines += ["    return os", "", "", "after, told = lambda: None, []", "m = Net(0)"]
    lines += ["m.first.requires_grad_(False)"] if loop.frozen else []
    lines += ["os = made(m)", "for i in [0]:"]
    for i, step in enumerate(loop.steps):
        lines += [f"    {CHANGES[step.change]}"] if step.change else []
        lines.append(f"    x, y = batch({i})")
        if step.fault:
            lines += ["    if tt.rank() == 1:", f"        {FAULTS.get(step.fault) or ENDS[step.fault]}"]
        lines += [f"    {WAYS[step.way]}", "    told.append([p.detach().double().clone() for p in m.parameters()])"]
    return _HEAD + "\n".join(lines) + "\n"
