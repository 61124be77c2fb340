"""DistributedDataParallel with `exchange_hook`, beside top-k with error feedback in plain PyTorch."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.torch_ranks import on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taihu.torch
from taihu.core.base.errors import ConfigError

RANKS, STEPS, DENSITY = 3, 20, 0.05
Arrays = dict[str, Any]


class Net(nn.Module):  # type: ignore[misc]
    """Layers in another order than that of their use, so that buckets are made anew; one is used at times."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(24, 5)
        self.first = nn.Linear(12, 24)
        self.late = nn.Linear(24, 24)
        self.between = nn.Linear(24, 24)

    def forward(self, inputs: Any, late: bool = True) -> Any:
        """Scores; `late` says whether its layer takes part."""
        hidden = torch.tanh(self.between(torch.tanh(self.first(inputs))))
        return self.last(torch.tanh(self.late(hidden)) if late else hidden)


class Lone(nn.Module):  # type: ignore[misc]
    """One parameter: where buckets are made anew, their memory alone is another."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(12, 5, bias=False)

    def forward(self, inputs: Any, late: bool) -> Any:
        """Scores, whatever is `late`."""
        return self.only(inputs)


class Seen(NamedTuple):
    """A run as one rank sees it: sums over all steps are fp64."""

    losses: list[float]
    values: Arrays
    gradients: Arrays
    arrived: Arrays
    residuals: Arrays
    orders: list[list[str]]
    scales: list[float]


def made_model(kind: Callable[[], nn.Module] = Net) -> nn.Module:
    torch.manual_seed(3)
    return kind()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)


def rate_of(step: int, warms: bool) -> float:
    """Rises for more steps than half of a run, to the usual one."""
    return 0.3 * min(1.0, step / 15) if warms else 0.3


def batch(rank: int, step: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(8, 12, generator=generator), torch.randint(0, 5, (8,), generator=generator)


def loss_of(model: nn.Module, rank: int, step: int, late: bool = True) -> Any:
    inputs, labels = batch(rank, step)
    return nn.functional.cross_entropy(model(inputs, late), labels)


def of_values(model: nn.Module) -> Arrays:
    return {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


class Way(NamedTuple):
    """A run: settings of `ExchangeState`, of DistributedDataParallel, and what the script does."""

    settings: Mapping[str, Any]
    backend: str = "taihu"
    wrapped: Mapping[str, Any] = {"bucket_cap_mb": 0.003}
    micro: int = 1
    is_late: Callable[[int, int], bool] = lambda rank, step: True
    infinite: tuple[int, int] | None = None
    reloaded: bool = False
    kind: Callable[[], nn.Module] = Net
    warms: bool = False


WAYS = {
    "topk": Way({"method": "topk", "density": DENSITY}, wrapped={}),
    "lags": Way({"method": "lags", "density": DENSITY}),
    "lags, gloo": Way({"method": "lags", "density": DENSITY}, "gloo"),
    "one parameter": Way({"method": "lags", "density": DENSITY}, kind=Lone),
    "views": Way({"method": "lags", "density": DENSITY}, wrapped={"gradient_as_bucket_view": True}),
    "dlgs": Way({"density": DENSITY, "refresh_every": 6}),
    "dlgs, gloo": Way({"density": DENSITY, "refresh_every": 6}, "gloo"),
    "fp16": Way({"density": DENSITY, "value_type": "fp16", "density_warmup_steps": 14}),
    "fp16, reloaded": Way({"density": DENSITY, "value_type": "fp16", "density_warmup_steps": 14}, reloaded=True),
    "int4": Way({"density": DENSITY, "value_type": "int4", "density_warmup_steps": 14}),
    "int2, gloo, together": Way({"method": "topk", "density": DENSITY, "value_type": "int2"}, "gloo", wrapped={}),
    "int8, reloaded": Way({"method": "lags", "density": DENSITY, "value_type": "int8"}, reloaded=True),
    "int4, scaled": Way({"density": DENSITY, "value_type": "int4"}, infinite=(1, 3)),
    "lags, reloaded": Way({"method": "lags", "density": DENSITY}, reloaded=True),
    "dlgs, reloaded": Way({"density": DENSITY, "refresh_every": 6}, reloaded=True),
    "micro-batches": Way({"method": "lags", "density": DENSITY}, micro=2),
    "unused": Way(
        {"method": "dlgs", "density": 0.2},
        wrapped={"find_unused_parameters": True, "bucket_cap_mb": 0.003},
        is_late=lambda rank, step: step % 4 == 0 or (rank, step % 4) == (1, 1),
    ),
    "warm-up": Way({"method": "lags", "density": DENSITY}, warms=True),
    "warm-up, together": Way({"method": "topk", "density": DENSITY}, wrapped={}, warms=True),
    "warm-up, reloaded": Way({"method": "lags", "density": DENSITY}, reloaded=True, warms=True),
    "scaled": Way({"density": DENSITY}, infinite=(1, 3)),
    "density 1": Way({"density": 1.0}),
    "none": Way({"method": "none"}, "gloo"),
    "all selected": Way({"method": "lags", "density": 1.0, "clip_norm": 1e6}),
}


def trained(rank: int, way: Way, group: Any) -> Seen:
    def made() -> tuple[nn.Module, Any, Any]:
        model = made_model(way.kind)
        optimizer = sgd(model)
        followed = optimizer if way.warms else None
        return model, optimizer, taihu.torch.ExchangeState(group=group, optimizer=followed, **way.settings)

    model, optimizer, state = made()
    seen = Seen([], {}, {}, {}, {}, [], [])
    for name, value in of_values(model).items():
        seen.gradients[name], seen.arrived[name] = np.zeros(value.size), np.zeros(value.shape)
    names: dict[int, str] = {}

    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            seen.gradients[names[id(parameter)]] += gradient.flatten().numpy()
            seen.orders[-1].append(f"{bucket.index()} {names[id(parameter)]}")
        return taihu.torch.exchange_hook(state, bucket)

    def wrap(model: nn.Module) -> Any:
        wrapped = DistributedDataParallel(model, process_group=group, **way.wrapped)
        hook.__annotations__ = taihu.torch.exchange_hook.__annotations__
        wrapped.register_comm_hook(state, hook)
        names.update({id(p): name for name, p in model.named_parameters()})
        return wrapped

    wrapped = wrap(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, enabled=way.infinite is not None)
    for step in range(STEPS):
        if way.reloaded and step == STEPS // 2:
            file = io.BytesIO()
            torch.save([state.state_dict(wrapped), model.state_dict(), optimizer.state_dict()], file)
            file.seek(0)
            held, values, own = torch.load(file, weights_only=True)
            model, optimizer, state = made()
            model.load_state_dict(values)
            state.load_state_dict(held, model)
            wrapped = wrap(model)
            optimizer.load_state_dict(own)
        seen.orders.append([])
        optimizer.param_groups[0]["lr"] = rate_of(step, way.warms)
        optimizer.zero_grad()
        for part in range(way.micro):
            with nullcontext() if part == way.micro - 1 else wrapped.no_sync():
                loss = loss_of(wrapped, rank, way.micro * step + part, way.is_late(rank, step)) / way.micro
                loss = loss * float("inf") if (rank, step) == way.infinite else loss
                scaler.scale(loss).backward()
        seen.losses.append(loss.item())
        for name, parameter in model.named_parameters():
            seen.arrived[name] += 0.0 if parameter.grad is None else parameter.grad.numpy()
        scaler.step(optimizer)
        scaler.update()
        seen.scales.append(scaler.get_scale())
    seen.values.update(of_values(model))
    saved = state.state_dict(wrapped)
    seen.residuals.update({name: each.numpy() for name, each in saved["residuals"].items()})
    return seen


def plain(rank: int, group: Any) -> Arrays:
    model = made_model()
    wrapped, optimizer = DistributedDataParallel(model, process_group=group), sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(wrapped, rank, step).backward()
        optimizer.step()
    return of_values(model)


def refused(rank: int, group: Any) -> str:
    model = DistributedDataParallel(made_model(), process_group=group)
    model.register_comm_hook(
        taihu.torch.ExchangeState(density=0.1 if rank == 1 else 0.2, group=group), taihu.torch.exchange_hook
    )
    try:
        loss_of(model, rank, 0).backward()
    except Exception as error:
        return str(error)
    return "nothing"


def work(rank: int) -> tuple[dict[str, Seen], Arrays, str]:
    gloo = dist.new_group(backend="gloo")
    seen = {name: trained(rank, way, gloo if way.backend == "gloo" else None) for name, way in WAYS.items()}
    return seen, plain(rank, gloo), refused(rank, gloo)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return on_ranks(RANKS, tmp_path_factory.mktemp("hook"), work)


def top(held: Any, count: int) -> Any:
    """Whether each element is among those of the largest magnitudes."""
    least = held.abs().flatten().kthvalue(held.numel() - count + 1).values
    return held.abs() >= least


@cache
def by_hand(whole: bool, micro: int = 1, warms: bool = False) -> Arrays:
    """Parameters behind all steps: top-k with error feedback for each parameter, or all together."""
    models = [deepcopy(made_model()) for _ in range(RANKS)]
    optimizers = [sgd(model) for model in models]
    residuals = [[torch.zeros_like(p) for p in model.parameters()] for model in models]
    for step in range(STEPS):
        sums = [torch.zeros_like(p) for p in models[0].parameters()]
        rate, before = rate_of(step, warms), rate_of(max(step - 1, 0), warms)
        for rank, model in enumerate(models):
            model.zero_grad()
            for part in range(micro):
                (loss_of(model, rank, micro * step + part) / micro).backward()
            for held, p in zip(residuals[rank], model.parameters(), strict=True):
                held.mul_(before / rate if rate > before else 1.0).add_(p.grad)
            units = [torch.cat([each.flatten() for each in residuals[rank]])] if whole else residuals[rank]
            chosen = [top(unit, max(1, math.ceil(DENSITY * unit.numel()))) for unit in units]
            if whole:
                sizes = [each.numel() for each in sums]
                chosen = [part.view(each.shape) for part, each in zip(chosen[0].split(sizes), sums, strict=True)]
            for held, total, sent in zip(residuals[rank], sums, chosen, strict=True):
                total.add_(torch.where(sent, held, 0.0))
                held[sent] = 0.0
        for model, optimizer in zip(models, optimizers, strict=True):
            for p, total in zip(model.parameters(), sums, strict=True):
                p.grad = total * (1.0 / RANKS)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
    return of_values(models[0])


TOP_K = ["topk", "lags", "lags, gloo", "views", "lags, reloaded", "micro-batches", "warm-up", "warm-up, together"]


@pytest.mark.parametrize("way", TOP_K)
def test_parameters_are_those_of_top_k_with_error_feedback(way: str, ranks: list[Any]) -> None:
    expected = by_hand(WAYS[way].settings["method"] == "topk", WAYS[way].micro, WAYS[way].warms)
    before = of_values(made_model())
    for name, value in ranks[0][0][way].values.items():
        np.testing.assert_allclose(value, expected[name], rtol=2e-4, atol=2e-5)
        assert np.abs(value - before[name]).max() > 1e-2


@pytest.mark.parametrize("way", WAYS)
def test_all_ranks_have_the_same_bits(way: str, ranks: list[Any]) -> None:
    first, *others = (seen[way] for seen, _, _ in ranks)
    for other in others:
        assert all(np.array_equal(first.values[name], other.values[name]) for name in first.values)


@pytest.mark.parametrize("way", [name for name, way in WAYS.items() if way.infinite is None and not way.warms])
def test_what_is_sent_and_what_is_held_back_are_the_gradients(way: str, ranks: list[Any]) -> None:
    seen = [each[way] for each, _, _ in ranks]
    for name, arrived in seen[0].arrived.items():
        held = sum(each.residuals.get(name, np.zeros(arrived.size)).astype(np.float64) for each in seen)
        there = RANKS * arrived.flatten() + held
        np.testing.assert_allclose(there, sum(each.gradients[name] for each in seen), rtol=1e-4, atol=1e-5)
    if way not in {"none", "density 1", "all selected"}:
        assert max(np.abs(held).max() for each in seen for held in each.residuals.values()) > 1e-3


def test_buckets_were_made_anew_behind_the_first_step(ranks: list[Any]) -> None:
    first, second, *_ = ranks[0][0]["lags"].orders
    assert sorted(each.split()[1] for each in first) == sorted(each.split()[1] for each in second)
    assert first != second
    assert len({each.split()[0] for each in second}) > 1


@pytest.mark.parametrize("way", ["lags", "dlgs", "fp16", "warm-up"])
def test_a_run_that_goes_on_from_what_was_saved_has_the_bits_of_one_that_never_ended(
    way: str, ranks: list[Any]
) -> None:
    for seen, _, _ in ranks:
        one, other = seen[way], seen[f"{way}, reloaded"]
        assert all(np.array_equal(one.values[name], other.values[name]) for name in one.values)
        assert all(np.array_equal(one.residuals[name], other.residuals[name]) for name in one.residuals)


def test_backends_come_to_the_same_bits(ranks: list[Any]) -> None:
    for way in ("lags", "dlgs"):
        one, other = ranks[0][0][way].values, ranks[0][0][f"{way}, gloo"].values
        assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("way", ["density 1", "none", "all selected"])
def test_with_everything_sent_parameters_are_those_of_plain_ddp(way: str, ranks: list[Any]) -> None:
    seen, expected, _ = ranks[0]
    for name, value in seen[way].values.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5)


def test_a_step_that_is_not_finite_is_skipped_by_all_and_leaves_nothing_behind(ranks: list[Any]) -> None:
    before = of_values(made_model())
    for seen, _, _ in ranks:
        assert seen["scaled"].scales == [16.0] * 3 + [8.0] * (STEPS - 3)
        assert all(np.isfinite(each).all() for each in seen["scaled"].residuals.values())
        moved = [np.abs(value - before[name]).max() for name, value in seen["scaled"].values.items()]
        assert 1e-2 < max(moved) < 1e2


def test_ranks_with_other_settings_are_told_of_them(ranks: list[Any]) -> None:
    assert all("give all ranks the same" in text and '"density": 0.1' in text for _, _, text in ranks)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"density": 2.0}, "ExchangeState: compression.density: expected"),
        ({"method": "best"}, "ExchangeState: compression.method: expected"),
        ({"method": "auto"}, "method 'auto': expected 'none' or one that selects"),
        ({"method": "powersgd"}, "method 'powersgd': expected 'none' or one that selects"),
        ({"method": "quantized"}, "method 'quantized': expected 'none' or one that selects"),
        ({"rank": 2}, "rank: nothing that DistributedDataParallel's hook does"),
        ({"densty": 0.1}, "densty"),
        ({"clip": "whole"}, "clip: nothing that DistributedDataParallel's hook does"),
        ({"value_type": "int3"}, "value_type: expected"),
        ({"downlink": "dense"}, "downlink: nothing that DistributedDataParallel's hook does"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        taihu.torch.ExchangeState(**settings)


def test_what_was_saved_of_another_model_is_refused(tmp_path: Path) -> None:
    state = taihu.torch.ExchangeState()
    saved = {"step": 1, "residuals": {"weight": torch.zeros(6)}, "thresholds": {"weight": (0.0, -1, 0)}}
    with pytest.raises(ConfigError, match="6 values of weight were saved, and the model has 8 values"):
        state.load_state_dict(saved, nn.Linear(4, 2))
    with pytest.raises(ConfigError, match="and the model has no such parameter"):
        state.load_state_dict(saved, nn.Sequential(nn.Linear(3, 2)))
    state.load_state_dict(saved, nn.Linear(3, 2))
