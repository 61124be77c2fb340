"""The exchange has all that a script trains: changes are followed by all workers, or told to all of them."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from support.torch_workers import on_workers
from torch import nn

from taihu.core.base.errors import ConfigError, TaihuError
from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.world import World

STEPS, BATCH = 6, 12
Wrap = Callable[[torch.optim.Optimizer, nn.Module | None], Any]
Told = list[torch.Tensor]


def linear(inputs: int, outputs: int, seed: int) -> nn.Linear:
    # Workers are threads: the generator that layers draw from belongs to all of them.
    layer, drawn = nn.Linear(inputs, outputs), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-0.5, 0.5, generator=drawn)
    return layer


def made_model() -> nn.Sequential:
    return nn.Sequential(linear(6, 5, 1), nn.Tanh(), linear(5, 1, 2))


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def loss_of(model: nn.Module, step: int, share: slice) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(100 + step)
    kind = next(model.parameters()).dtype
    inputs, targets = torch.randn(BATCH, 6, generator=drawn).to(kind), torch.randn(BATCH, 1, generator=drawn).to(kind)
    return nn.functional.mse_loss(model(inputs[share]), targets[share])


def trained(model: nn.Module, optimizer: Any, step: int, share: slice) -> None:
    optimizer.zero_grad()
    loss_of(model, step, share).backward()
    optimizer.step()


def values_of(model: nn.Module) -> Told:
    return [p.detach().clone() for p in model.parameters()]


def by_autograd_grad(model: nn.Module, step: int, share: slice) -> None:
    parameters = list(model.parameters())
    for parameter, grad in zip(parameters, torch.autograd.grad(loss_of(model, step, share), parameters), strict=True):
        parameter.grad = grad


def thaws(wrap: Wrap, share: slice) -> Told:
    model = made_model()
    model[0].requires_grad_(False)
    optimizer = wrap(momentum(model.parameters()), model)
    for step in range(STEPS):
        model[0].requires_grad_(step not in (0, 1, 4))
        trained(model, optimizer, step, share)
    return values_of(model)


def adds_a_group(wrap: Wrap, share: slice) -> Told:
    model = made_model()
    optimizer = wrap(momentum(model[2].parameters()), model)
    for step in range(STEPS):
        if step == 2:
            optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.02})
        trained(model, optimizer, step, share)
    return values_of(model)


def replaces_a_layer(wrap: Wrap, share: slice) -> Told:
    """In the groups themselves, which nobody tells of."""
    model = made_model()
    optimizer = wrap(momentum(model.parameters()), model)
    for step in range(STEPS):
        if step == 3:
            former = set(model[2].parameters())
            model[2] = linear(5, 1, 9)
            group = optimizer.param_groups[0]
            group["params"] = [p for p in group["params"] if p not in former] + list(model[2].parameters())
        trained(model, optimizer, step, share)
    return values_of(model)


def goes_double(wrap: Wrap, share: slice) -> Told:
    model = made_model()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for step in range(STEPS):
        if step == 2:
            model.double()
        trained(model, optimizer, step, share)
    return values_of(model)


def sets_gradients(wrap: Wrap, share: slice) -> Told:
    """By hand in odd steps, and in even ones by backward; clipped where they are means."""
    model = made_model()
    optimizer = wrap(momentum(model.parameters()), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        if step % 2:
            by_autograd_grad(model, step, share)
        else:
            loss_of(model, step, share).backward()
        if step == 3:
            getattr(optimizer, "synchronize", lambda: None)()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return values_of(model)


def keeps_gradients(wrap: Wrap, share: slice) -> Told:
    """Themselves, and other tensors of their memory."""
    model = made_model()
    optimizer = wrap(momentum(model.parameters()), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, share).backward()
        kept = [p.grad.detach()[:1] if step % 2 else p.grad for p in model.parameters()]
        before = [each.clone() for each in kept]
        optimizer.zero_grad()
        loss_of(model, step + 50, share).backward()
        assert all(map(torch.equal, kept, before))
        for parameter, first in zip(model.parameters(), before, strict=True):
            parameter.grad = parameter.grad * 0.5 + first
        optimizer.step()
    return values_of(model)


def folds(wrap: Wrap, share: slice) -> Told:
    told = []
    for fold in range(3):
        model = made_model()
        optimizer = wrap(momentum(model.parameters()), model)
        for step in range(2):
            trained(model, optimizer, 10 * fold + step, share)
        optimizer = wrap(torch.optim.Adam(model.parameters(), lr=0.01, eps=0.01), model)
        trained(model, optimizer, 10 * fold + 5, share)
        told += values_of(model)
    return told


def uses_a_closure(wrap: Wrap, share: slice) -> Told:
    """LBFGS decides by losses how often it evaluates."""
    model = made_model()
    optimizer = wrap(torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe"), model)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, 0, share)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return values_of(model)


def is_complex(wrap: Wrap, share: slice) -> Told:
    weight = nn.Parameter(torch.complex(linear(6, 1, 3).weight.detach().T, linear(6, 1, 4).weight.detach().T))
    optimizer = wrap(torch.optim.SGD([weight], lr=0.05), None)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs = torch.randn(BATCH, 6, generator=torch.Generator().manual_seed(step))[share].to(torch.cfloat)
        (inputs @ weight - 1j * inputs[:, :1]).abs().square().mean().backward()
        optimizer.step()
    return [weight.detach().clone()]


def clips_what_nobody_updates(wrap: Wrap, share: slice) -> Told:
    """The model's first layer is in no optimizer at first, and its gradients add up all the time."""
    model = made_model()
    optimizer = wrap(momentum(model[2].parameters()), model)
    told = []
    for step in range(STEPS):
        if step == 4:
            optimizer.add_param_group({"params": list(model[0].parameters())})
        optimizer.zero_grad()
        loss_of(model, step, share).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        told += [p.grad.clone() for p in model.parameters()]
        optimizer.step()
    return told + values_of(model)


def adds_up_alone(wrap: Wrap, share: slice) -> Told:
    """In no_sync(), and by no backward outside of it."""
    model = made_model()
    optimizer = wrap(momentum(model.parameters()), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        with getattr(optimizer, "no_sync", nullcontext)():
            for part in range(1 + step % 2):
                loss_of(model, step + 10 * part, share).backward()
        optimizer.step()
    return values_of(model)


def makes_optimizers_again(wrap: Wrap, share: slice) -> Told:
    """Before the first backward, and later of what is frozen then."""
    model = made_model()
    wrap(momentum(model.parameters()), model)
    several = [wrap(momentum(model[i].parameters()), model) for i in (0, 2)]
    for step in range(STEPS):
        if step == 3:
            model[0].requires_grad_(False)
            several = [wrap(momentum(model[i].parameters()), model) for i in (0, 2)]
        if step == 4:
            model[0].requires_grad_(True)
        for each in several:
            each.zero_grad()
        loss_of(model, step, share).backward()
        for each in several:
            each.step()
    return values_of(model)


def sets_gradients_of_several(wrap: Wrap, share: slice) -> Told:
    """By hand, those of the second one too in the step that opens the exchange anew."""
    model = made_model()
    several = [wrap(momentum(model[i].parameters()), model) for i in (2, 0)]
    for step in range(STEPS):
        if step == 2:
            several[0].add_param_group({"params": list(linear(2, 2, 7).parameters())})
        for each in several:
            each.zero_grad()
        by_autograd_grad(model, step, share)
        for each in several:
            each.step()
    return values_of(model)


CHANGES = [
    clips_what_nobody_updates,
    adds_up_alone,
    makes_optimizers_again,
    sets_gradients_of_several,
    thaws,
    adds_a_group,
    replaces_a_layer,
    goes_double,
    sets_gradients,
    keeps_gradients,
    folds,
    uses_a_closure,
    is_complex,
]
WAYS: dict[str, dict[str, Any]] = {"ring": {}, "servers": {"servers": 1}}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_all_workers_follow_a_change_that_all_have_made(change: Callable[[Wrap, slice], Told], way: str) -> None:
    def work(world: World) -> Told:
        share = slice(world.rank, None, world.size)
        return change(lambda optimizer, model: DistributedOptimizer(optimizer, model, world), share)

    alone = change(lambda optimizer, _: optimizer, slice(None))
    seen = on_workers(2, work, **WAYS[way])
    for told in seen:
        assert all(map(torch.equal, told, seen[0]))
        torch.testing.assert_close(told, alone, rtol=1e-4, atol=1e-5)


def test_frozen_and_unused_parameters_stay_where_they_are() -> None:
    def work(world: World) -> tuple[bool, bool, bool]:
        model = made_model()
        model[1].unused = linear(2, 2, 5)
        optimizer = DistributedOptimizer(momentum(model.parameters()), model, world)
        share = slice(world.rank, None, 2)
        unused = model[1].unused.weight.detach().clone()
        for step in range(2):
            trained(model, optimizer, step, share)
        model[0].requires_grad_(False)
        frozen = model[0].weight.detach().clone()
        for step in range(2, 4):
            trained(model, optimizer, step, share)
        stays = torch.equal(model[1].unused.weight, unused)
        return torch.equal(model[0].weight, frozen), stays, model[0].weight.grad is None

    assert on_workers(2, work) == [(True, True, True)] * 2


def test_means_that_a_step_has_used_are_exchanged_again_only_where_they_change() -> None:
    def work(world: World) -> list[int]:
        model = made_model()
        optimizer = DistributedOptimizer(momentum(model.parameters()), model, world)
        share = slice(world.rank, None, 2)
        assert optimizer._steps is not None
        trained(model, optimizer, 0, share)
        exchanges = [optimizer._steps.step]
        optimizer.synchronize()
        optimizer.step()
        exchanges.append(optimizer._steps.step)
        by_autograd_grad(model, 1, share)
        optimizer.step()
        exchanges.append(optimizer._steps.step)
        return exchanges

    assert on_workers(2, work) == [[1, 1, 2]] * 2


def test_a_gradient_of_one_worker_alone_is_a_mean_with_zeros() -> None:
    def work(world: World) -> list[float]:
        model = nn.ModuleList([linear(1, 1, seed) for seed in (1, 2)])
        DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, world)
        for _ in range(2):
            model.zero_grad()
            (3.0 * model[world.rank](torch.ones(1, 1))).sum().backward()
        return [p.grad.item() for p in model.parameters()]

    assert on_workers(2, work) == [[1.5] * 4] * 2


def one_sided(change: Callable[[nn.Sequential, Any, slice], None], step: int = 2) -> Callable[[World], None]:
    """A loop in which worker 1 alone makes a change before a step."""

    def work(world: World) -> None:
        model = made_model()
        share = slice(world.rank, None, world.size)
        optimizer = DistributedOptimizer(momentum(model.parameters()), model, world)
        for each in range(STEPS):
            if world.rank == 1 and each == step:
                change(model, optimizer, share)
            trained(model, optimizer, each, share)

    return work


def joins(model: nn.Sequential, optimizer: Any, _: slice) -> None:
    optimizer.optimizer.add_param_group({"params": list(linear(2, 2, 1).parameters())})


def replaces_by_its_like(model: nn.Sequential, optimizer: Any, _: slice) -> None:
    model[2] = linear(5, 1, 9)
    optimizer.param_groups[0]["params"] = list(model.parameters())


def steps_by_hand(model: nn.Sequential, optimizer: Any, share: slice) -> None:
    optimizer.zero_grad()
    by_autograd_grad(model, 0, share)
    optimizer.step()


def writes(model: nn.Sequential, *_: Any) -> None:
    with torch.no_grad():
        model[2].weight.add_(0.1)


ONE_SIDED: dict[str, tuple[Callable[..., None], str]] = {
    "frozen": (lambda model, *_: model[0].requires_grad_(False), "worker 0: as before; worker 1: 0.weight is frozen"),
    "double": (lambda model, *_: model.double(), "worker 1: 0.weight was torch.float32 .* and is torch.float64"),
    "joined": (joins, "worker 1: parameter 4 is new"),
    "replaced": (replaces_by_its_like, "worker 0: as before; worker 1: 2.weight is new"),
    "by hand": (steps_by_hand, r"worker 0 is in backward 3 and worker 1 is in step\(\) with gradients that no back"),
    "written to": (writes, "parameters differ behind step 2: 2.weight is the first, on worker 1; they were alike"),
}


@pytest.mark.parametrize("name", ONE_SIDED)
def test_a_change_of_one_worker_is_told_to_all_with_its_parameter(name: str) -> None:
    change, words = ONE_SIDED[name]
    seen: dict[int, str] = {}

    def work(world: World) -> None:
        try:
            one_sided(change)(world)
        except Exception as error:
            seen[world.rank] = str(error)
            raise

    with pytest.raises((TaihuError, RuntimeError), match=words):
        on_workers(2, work)
    assert sorted(seen) == [0, 1]


def test_replicas_that_part_at_the_very_end_are_told_of() -> None:
    told: list[str] = []

    def work(world: World) -> None:
        model = made_model()
        optimizer = DistributedOptimizer(momentum(model.parameters()), model, world)
        trained(model, optimizer, 0, slice(None))
        if world.rank == 1:
            writes(model)
        finish = world._meeting.client.finish_with_all  # type: ignore[union-attr]

        def finished(**said: Any) -> None:
            try:
                finish(**said)
            except TaihuError as error:
                told.append(str(error))
                raise

        world._meeting.client.finish_with_all = finished  # type: ignore[method-assign, union-attr]

    on_workers(2, work)
    assert len(told) == 2, told
    assert all(" differ (2.weight is the first: worker " in words for words in told), told


def steps_within_backward(model: nn.Sequential, optimizer: Any, share: slice) -> None:
    model[2].bias.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    loss_of(model, 0, share).backward()


def clips_too_early(model: nn.Sequential, optimizer: Any, share: slice) -> None:
    by_autograd_grad(model, 0, share)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


def clips_what_is_added_up(model: nn.Sequential, optimizer: Any, share: slice) -> None:
    with optimizer.no_sync():
        loss_of(model, 0, share).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        loss_of(model, 1, share).backward()
    optimizer.step()


def steps_by_a_former_one(model: nn.Sequential, optimizer: Any, share: slice) -> None:
    trained(model, optimizer, 0, share)
    DistributedOptimizer(momentum(model.parameters()), model, optimizer._world)
    optimizer.step()


REFUSED: dict[str, tuple[Callable[..., None], str]] = {
    "within backward": (steps_within_backward, r"step\(\) was called within backward"),
    "clipped": (
        clips_too_early,
        "0.weight was set by hand and changed since, and not exchanged: call optimizer.sync",
    ),
    "no_sync": (clips_what_is_added_up, r"gradient of 0.weight was added up in no_sync\(\) and changed since"),
    "former": (steps_by_a_former_one, "another DistributedOptimizer was made of this one's parameters"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_be_something_else_than_alone_is_refused(name: str) -> None:
    use, words = REFUSED[name]

    def work(world: World) -> None:
        model = made_model()
        optimizer = DistributedOptimizer(momentum(model.parameters()), model, world)
        use(model, optimizer, slice(world.rank, None, 2))

    with pytest.raises(TaihuError, match=words):
        on_workers(2, work)


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(2))


UNFIT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "sparse": (
        lambda: nn.Sequential(nn.EmbeddingBag(5, 2, sparse=True)),
        r"0\.weight is of EmbeddingBag\(sparse=True",
    ),
    "lazy": (lazy, r"0\.weight \(UninitializedParameter on cpu\) has no values yet: run a batch"),
    "meta": (lambda: nn.Linear(2, 2, device="meta"), "weight .* on meta"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_parameters_that_cannot_be_exchanged_are_refused_while_wrapping(name: str) -> None:
    make, words = UNFIT[name]

    def work(world: World) -> None:
        model = make()
        DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, world)

    with pytest.raises(ConfigError, match=words):
        on_workers(2, work)


def test_a_sparse_gradient_of_a_function_is_refused_by_name() -> None:
    def work(world: World) -> None:
        weight = nn.Parameter(torch.ones(5, 2))
        DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), None, world)
        nn.functional.embedding(torch.tensor([1]), weight, sparse=True).sum().backward()

    with pytest.raises(ConfigError, match="parameter 0 has a sparse gradient"):
        on_workers(2, work)


def test_a_model_and_an_optimizer_stay_the_users(tmp_path: Path) -> None:
    def work(world: World) -> bool:
        model = made_model()
        optimizer = DistributedOptimizer(momentum(model.parameters()), model, world)
        share = slice(world.rank, None, 2)
        trained(model, optimizer, 0, share)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        other, own = copy.deepcopy((model, optimizer))
        again = pickle.loads(pickle.dumps(optimizer))  # noqa: S301 - of our own making
        assert type(own) is type(again) is torch.optim.SGD
        # Copies are trained by this worker alone, and as often as it likes.
        for _ in range(1 + world.rank):
            trained(other, own, 3, share)
        assert all(map(torch.equal, values_of(loaded), values_of(model)))
        assert not any(map(torch.equal, values_of(other), values_of(model)))
        assert isinstance(optimizer, torch.optim.Optimizer)
        trained(model, optimizer, 1, share)
        return not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())

    assert on_workers(2, work) == [True, True]


@pytest.mark.parametrize("method", ["topk", "dlgs"])
def test_values_held_back_stay_with_their_parameters_where_the_exchange_is_opened_anew(method: str) -> None:
    """No gradient comes in that step: a part of what was held back is sent, and the rest is held back still."""

    def work(world: World) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        model = made_model()
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), model, world)
        share = slice(world.rank, None, 2)
        for step in range(3):
            trained(model, optimizer, step, share)
        before = held_back_of(optimizer, model)
        model.append(linear(1, 2, 5))
        optimizer.add_param_group({"params": list(model[3].parameters())})
        optimizer.zero_grad()
        (0.0 * loss_of(model[:3], 3, share) + 0.0 * sum(p.sum() for p in model[3].parameters())).backward()
        gradients = torch.cat([p.grad.reshape(-1) for p in model[:3].parameters()])
        return before, held_back_of(optimizer, model[:3]), gradients

    seen = on_workers(2, work, compression={"method": method, "density": 0.2})
    before, after = (sum(each[i] for each in seen) for i in (0, 1))
    assert before.abs().max() > 0.01
    torch.testing.assert_close(2.0 * seen[0][2] + after, before, rtol=1e-4, atol=1e-6)


def held_back_of(optimizer: Any, model: nn.Module) -> torch.Tensor:
    """The values held back here, in the model's order."""
    steps = optimizer._steps
    residual = torch.from_numpy(steps.state()["residual"].copy())
    return torch.cat([residual[steps._opened.places.ranges[id(p)]] for p in model.parameters()])


def test_many_models_one_after_the_other_leave_nothing_behind() -> None:
    def work(world: World) -> list[int]:
        def fold(number: int) -> None:
            model = made_model()
            optimizer = DistributedOptimizer(momentum(model.parameters()), model, world)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            for step in range(2):
                trained(model, optimizer, number + step, slice(world.rank, None, 2))
                scheduler.step()

        counts = []
        for number in range(9):
            fold(number)
            if number in (2, 8):
                gc.collect()
                files = len(list(Path("/proc/self/fd").iterdir()))
                counts.append((threading.active_count(), files, optimizers_of(world)))
        return [after - before for before, after in zip(*counts, strict=True)]

    for threads, files, optimizers in on_workers(2, work):
        assert threads <= 2  # those of the other worker, which is a thread of this process, come and go
        assert files <= 4  # the other worker, a thread of this process, may have its former memory yet
        assert optimizers == 0


def test_parameters_that_outlive_a_run_hold_nothing_of_it() -> None:
    """Their hooks would: of a process that trains in one run after another, memory and descriptors would grow."""
    models: list[nn.Module] = []

    def work(world: World) -> weakref.ref[World]:
        model = made_model()
        models.append(model)
        trained(model, DistributedOptimizer(momentum(model.parameters()), model, world), 0, slice(None))
        return weakref.ref(world)

    worlds = on_workers(2, work)
    gc.collect()
    assert len(models) == 2
    assert [world() for world in worlds] == [None, None]


def optimizers_of(world: World) -> int:
    assert world._steps is not None
    return len(world._steps._set.optimized)
