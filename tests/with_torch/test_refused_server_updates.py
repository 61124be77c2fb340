"""Scripts, jobs and workers that do not go with `update="servers"`: each is told of in one line with the remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from support.torch_workers import on_workers, script_job
from torch import nn

from taihu.core.base.errors import ConfigError, RunError, TaihuError
from taihu.core.coordination.listener import ListenOptions
from taihu.core.job import settled
from taihu.torch.gradients.rules import ScriptOptimizer
from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.place import RunPlace
from taihu.torch.sharded_linear import shard_linear
from taihu.torch.world import World


def ones(model: nn.Module) -> Any:
    return model(torch.ones(1, 4)).sum()


def halve(model: nn.Module, optimizer: DistributedOptimizer) -> None:
    optimizer.synchronize()
    with torch.no_grad():
        next(iter(model.parameters())).mul_(0.5)


def scale(_: nn.Module, optimizer: DistributedOptimizer) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(1))
    scaler.step(optimizer)


Act = Callable[[nn.Module, DistributedOptimizer], object]
BEFORE_STEP: Mapping[str, Act] = {
    "clipping": lambda model, _: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    "scaled losses": scale,
    "a rate after backward": lambda _, optimizer: optimizer.param_groups[0].update(lr=0.5),
    "no step": lambda model, _: ones(model).backward(),
}
BEHIND_STEP: Mapping[str, Act] = {
    "momentum": lambda _, optimizer: optimizer.param_groups[0].update(momentum=0.5),
    "frozen": lambda model, _: next(iter(model.parameters())).requires_grad_(False),
    "another group": lambda _, optimizer: optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]}),
    "written": halve,
    "load": lambda model, _: model.load_state_dict(model.state_dict()),
    "state": lambda _, optimizer: optimizer.state_dict(),
    "load state": lambda _, optimizer: optimizer.load_state_dict({}),
    "no module": lambda model, _: nn.functional.linear(torch.ones(1, 4), *model.parameters()).sum().backward(),
}


def stop_at(what: str, rank: int, model: nn.Module, optimizer: DistributedOptimizer) -> None:
    """Two steps with something that cannot be."""
    if what == "another rate":
        optimizer.param_groups[0]["lr"] = 0.1 + rank
    for before, behind in ((BEFORE_STEP, BEHIND_STEP), ({}, {})):
        ones(model).backward()
        if what in before:
            before[what](model, optimizer)
        optimizer.step()
        if what in behind:
            behind[what](model, optimizer)


STOPS: Mapping[str, tuple[type[TaihuError], str]] = {
    "another rate": (TaihuError, "worker [01] has learning rate .* for parameter group 0 at step 1, worker [01]"),
    "clipping": (ConfigError, "clipping, GradScaler"),
    "scaled losses": (ConfigError, r"clipping, GradScaler.*give update=\"workers\""),
    "a rate after backward": (ConfigError, "learning rate of parameter group 0 was 0.1 when backward began"),
    "no step": (RunError, r"backward began before the step\(\)"),
    "no module": (RunError, "was read, but no module that reads it was called"),
    "momentum": (ConfigError, "momentum of parameter group 0 is 0.5, it began as 0.9"),
    "frozen": (ConfigError, "freeze layers before"),
    "another group": (ConfigError, "2 parameter groups, it began with 1"),
    "written": (RunError, "was written to here"),
    "load": (ConfigError, "load the state before DistributedOptimizer"),
    "state": (ConfigError, r"save model.state_dict\(\) alone"),
    "load state": (ConfigError, "begin without state"),
}


@pytest.mark.parametrize("what", STOPS)
def test_what_a_script_cannot_do_ends_it_with_one_line(what: str) -> None:
    kind, message = STOPS[what]
    models = [nn.Linear(4, 3), nn.Linear(4, 3)]

    def work(world: World) -> None:
        model = models[world.rank]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        distributed = DistributedOptimizer(optimizer, model, world, update="servers")
        stop_at(what, world.rank, model, distributed)

    with pytest.raises(kind, match=message) as caught:
        on_workers(2, work, servers=1)
    assert "\n" not in str(caught.value)


def own(**constants: Any) -> Callable[[nn.Module], torch.optim.Optimizer]:
    kind = constants.pop("kind", torch.optim.SGD)
    return lambda model: kind(model.parameters(), **constants)


def with_state(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return optimizer


def with_hook(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def two_betas(model: nn.Module) -> torch.optim.Optimizer:
    first, second = model.parameters()
    return torch.optim.Adam([{"params": [first], "betas": (0.5, 0.9)}, {"params": [second]}])


REFUSED: Mapping[str, tuple[Callable[[nn.Module], torch.optim.Optimizer], str]] = {
    "LBFGS": (own(kind=torch.optim.LBFGS), "not LBFGS"),
    "RMSprop": (own(kind=torch.optim.RMSprop), "not RMSprop"),
    "amsgrad": (own(kind=torch.optim.Adam, amsgrad=True), "servers do not know amsgrad"),
    "maximize": (own(maximize=True), "servers do not know maximize"),
    "differentiable": (own(differentiable=True), "servers do not know differentiable"),
    "dampening": (own(momentum=0.9, dampening=0.1), "dampening, which is 0.1"),
    "momentum": (own(momentum=1.5), "SGD has momentum 1.5"),
    "epsilon": (own(kind=torch.optim.AdamW, eps=0.0), "AdamW has epsilon 0.0"),
    "betas": (two_betas, "parameter group 1 has betas"),
    "state": (with_state, "Adam has state of 2 parameters already"),
    "hook": (with_hook, "SGD has hooks of its step"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_servers_cannot_carry_out_is_one_line_with_the_remedy(what: str) -> None:
    make, message = REFUSED[what]
    model = nn.Linear(4, 3)
    with pytest.raises(ConfigError, match=message) as caught:
        ScriptOptimizer(make(model), [*model.parameters()])
    assert 'give update="workers"' in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_dtypes_are_refused() -> None:
    model = nn.Linear(4, 3, dtype=torch.float64)
    with pytest.raises(ConfigError, match=r"a parameter is torch.float64 on cpu"):
        ScriptOptimizer(torch.optim.SGD(model.parameters()), [*model.parameters()])


@pytest.mark.parametrize(
    ("exchange", "update", "message"),
    [
        ({"kind": "ring", "returns": "gradients"}, "servers", "a ring has no servers; start it with --servers"),
        ({"returns": "gradients"}, "servers", "exchange.returns is 'gradients'; set exchange.returns = 'script'"),
        ({"zero": 0}, "servers", "set exchange.zero to 1, 2 or 3"),
        ({"zero": 2}, "workers", 'give DistributedOptimizer update="servers", or set exchange.zero = 0'),
        ({}, "everybody", 'expected "workers" or "servers"'),
    ],
)
def test_jobs_that_servers_cannot_update_in_are_refused(exchange: Any, update: Any, message: str) -> None:
    job = script_job(2, 1, exchange=exchange)
    cluster = job.cluster.model_copy(update={"coordinator": "127.0.0.1:1"})
    world = World(RunPlace(job.model_copy(update={"cluster": cluster}), 1, ListenOptions("127.0.0.1:0")))
    model = nn.Linear(2, 2)
    try:
        with pytest.raises(ConfigError) as caught:
            DistributedOptimizer(torch.optim.SGD(model.parameters()), model, world, update=update)
    finally:
        world.leave(RuntimeError("the test is over"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("compression", "message"),
    [
        ({"method": "lags", "downlink": "exact"}, "compression.downlink 'exact' brings some; leave it out"),
        ({"method": "lags", "momentum_at": "workers"}, "compression.momentum_at is 'workers'"),
    ],
)
def test_compression_that_leaves_parameters_behind_is_refused(compression: dict[str, object], message: str) -> None:
    job = script_job(2, 1, compression=compression)
    rules = ScriptOptimizer(torch.optim.SGD([weight := nn.Parameter(torch.ones(1))]), [weight]).rules
    with pytest.raises(ConfigError, match=message) as caught:
        settled(job, rules)
    assert 'give update="workers"' in str(caught.value)
    assert settled(job, None).downlink == "exact"


def test_layers_that_are_spread_are_updated_by_their_workers() -> None:
    models = [nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)) for _ in range(2)]

    def work(world: World) -> None:
        model = models[world.rank]
        shard_linear(world, model[0], "shard", batch=None, at_least=1)
        DistributedOptimizer(torch.optim.SGD(model.parameters()), model, world, update="servers")

    with pytest.raises(ConfigError, match='updated by the worker that has them; give update="workers"') as caught:
        on_workers(2, work, servers=1)
    assert "\n" not in str(caught.value)


def test_workers_with_other_optimizers_are_told_apart() -> None:
    models = [nn.Linear(4, 3), nn.Linear(4, 3)]

    def work(world: World) -> None:
        optimizer = torch.optim.Adam(models[world.rank].parameters(), betas=(0.9 - 0.1 * world.rank, 0.99))
        DistributedOptimizer(optimizer, models[world.rank], world, update="servers")
        ones(models[world.rank]).backward()

    with pytest.raises(TaihuError, match=r"worker [01]'s optimizer differs from that of the others: adam has beta1"):
        on_workers(2, work, servers=1)


def test_who_updates_is_said_alike() -> None:
    models = [nn.Linear(4, 3), nn.Linear(4, 3)]

    def work(world: World) -> None:
        optimizer = torch.optim.Adam(models[world.rank].parameters())
        update: Any = ("workers", "servers")[world.rank]
        DistributedOptimizer(optimizer, models[world.rank], world, update=update)
        ones(models[world.rank]).backward()

    with pytest.raises(TaihuError, match=r'worker 0: update="workers" 2 tensors.*; worker 1: update="servers"'):
        on_workers(2, work, servers=1)
