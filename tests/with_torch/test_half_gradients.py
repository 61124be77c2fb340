"""Gradients of scripts that travel in 16 bits: means are PyTorch's own sums, rounded as they travel."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from support.torch_scripts import taihu_run
from support.torch_workers import on_workers
from torch import nn

from taihu.core.base.errors import TaihuError
from taihu.torch.gradients.gradients import GradientArena
from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.world import World

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WAYS: dict[str, dict[str, Any]] = {
    "ring in shared memory": {},
    "ring by tcp": {"exchange": {"transport": "tcp"}},
    "ring by grpc": {"exchange": {"transport": "grpc", "plan": "single"}},
    "servers": {"servers": 2},
    "servers by tcp": {"servers": 1, "exchange": {"transport": "tcp", "plan": "bucket:200B"}},
}


class Sums(nn.Module):  # type: ignore[misc]
    """Parameters whose gradients are what the forward is given."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(17, 5, dtype=dtype))
        self.second = nn.Parameter(torch.zeros(33, dtype=dtype))

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return (self.first * first).sum() + (self.second * second).sum()


def drawn(rank: int, step: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * rank + step)
    # Far from what 16 bits do not tell from zero.
    values = [torch.randn(shape, generator=generator) + 3.0 for shape in ((17, 5), (33,))]
    return values[0].to(dtype), values[1].to(dtype)


def mean_of(size: int, step: int, dtype: torch.dtype, sent: torch.dtype) -> list[torch.Tensor]:
    """Rounded once: each worker's values, and then the mean of them, which is made in fp32."""
    each = [drawn(rank, step, dtype) for rank in range(size)]
    rounded = [torch.stack([values[part].to(sent).float() for values in each]) for part in range(2)]
    return [(values.sum(dim=0) * torch.tensor(1.0 / size)).to(sent).to(dtype) for values in rounded]


def gradients_on(world: World, dtype: torch.dtype, steps: int = 5) -> tuple[list[list[torch.Tensor]], int]:
    """The gradients behind each backward, and the bytes that this worker sent in the last one."""
    model = Sums(dtype)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, world)
    seen = []
    for step in range(steps):
        optimizer.zero_grad()
        model(*drawn(world.rank, step, dtype)).backward()
        seen.append([p.grad.clone() for p in model.parameters()])
        optimizer.step()
    assert optimizer._steps is not None
    assert optimizer._steps._opened is not None
    steps_of = optimizer._steps._opened.steps
    # Nothing is copied of parameters whose gradients travel as they are.
    assert isinstance(steps_of.gradients, GradientArena)
    assert all(steps_of.gradients._is_bound) == (dtype == TYPES[world.job.train.precision])
    return seen, sum(each.bytes_up for each in steps_of.exchange.group_times())


@pytest.mark.parametrize("own", ["fp32", "same"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("way", WAYS)
def test_means_of_two_are_rounded_once(way: str, precision: str, own: str) -> None:
    sent = TYPES[precision]
    dtype = sent if own == "same" else torch.float32
    seen = on_workers(
        2, lambda world: gradients_on(world, dtype)[0], train={"precision": precision, "steps": 9}, **WAYS[way]
    )
    expected = [mean_of(2, step, dtype, sent) for step in range(5)]
    for gradients in seen:
        assert all(all(map(torch.equal, *pair)) for pair in zip(gradients, expected, strict=True))


@pytest.mark.parametrize("way", ["ring by tcp", "servers"])
def test_means_of_three_are_those_of_fp32_but_for_rounding(way: str) -> None:
    seen = on_workers(
        3, lambda world: gradients_on(world, torch.float32)[0], train={"precision": "bf16"}, **WAYS[way]
    )
    for step in range(5):
        expected = mean_of(3, step, torch.float32, torch.bfloat16)
        for gradients in seen:
            assert all(map(torch.equal, gradients[step], seen[0][step]))
            if way == "servers":
                assert all(map(torch.equal, gradients[step], expected))
            # Around a ring each of two sums is rounded, and the mean, by 2^-9 of what it is.
            torch.testing.assert_close(gradients[step], expected, rtol=3 * 2.0**-8, atol=0)


@pytest.mark.parametrize("way", ["ring by tcp", "servers by tcp"])
def test_half_as_many_bytes_are_sent(way: str) -> None:
    sent = [
        on_workers(
            2, lambda world: gradients_on(world, torch.float32)[1], train={"precision": precision}, **WAYS[way]
        )
        for precision in ("fp32", "bf16")
    ]
    values, headers = 17 * 5 + 33, [0, 0]
    for whole, half in zip(*sent, strict=True):
        headers[0], headers[1] = whole - 4 * values, half - 2 * values
    assert headers[0] == headers[1]


def test_what_does_not_fit_is_infinite_on_all_and_the_scaler_goes_down() -> None:
    def work(world: World) -> tuple[float, list[torch.Tensor]]:
        model = Sums(torch.float32)
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, world)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=100)
        for step in range(3):
            optimizer.zero_grad()
            first, second = drawn(world.rank, step, torch.float32)
            scaler.scale(model(first * (1 + world.rank), second)).backward()
            scaler.step(optimizer)
            scaler.update()
        return scaler.get_scale(), [p.detach().clone() for p in model.parameters()]

    (scale, values), (other_scale, others) = on_workers(2, work, train={"precision": "fp16"})
    assert scale == other_scale < 2.0**16
    assert all(map(torch.equal, values, others))
    assert all(value.isfinite().all() for value in values)


@pytest.mark.parametrize("way", ["ring in shared memory", "ring by tcp", "servers"])
def test_what_is_not_finite_ends_the_run_where_it_is_to(way: str) -> None:
    def work(world: World) -> None:
        model = Sums(torch.bfloat16)
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, world)
        for step in range(3):
            optimizer.zero_grad()
            first, second = drawn(world.rank, step, torch.bfloat16)
            model(first, second * (float("inf") if (world.rank, step) == (1, 2) else 1.0)).backward()
            optimizer.step()

    tables: dict[str, Any] = {**WAYS[way], "train": {"precision": "bf16"}}
    tables["exchange"] = {**tables.get("exchange", {}), "non_finite": "error"}
    with pytest.raises(TaihuError, match="not finite"):
        on_workers(2, work, **tables)


@pytest.mark.parametrize("servers", [0, 1])
def test_a_changed_exchange_goes_on_in_16_bits(servers: int) -> None:
    def work(world: World) -> list[torch.Tensor]:
        model = Sums(torch.bfloat16)
        model.first.requires_grad_(False)
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, world)
        for step in range(3):
            model.first.requires_grad_(step > 0)
            optimizer.zero_grad()
            model(*drawn(world.rank, step, torch.bfloat16)).backward()
            optimizer.step()
        return [p.grad.clone() for p in model.parameters()]

    expected = mean_of(2, 2, torch.bfloat16, torch.bfloat16)
    for seen in on_workers(2, work, servers=servers, train={"precision": "bf16"}):
        assert all(map(torch.equal, seen, expected))


@pytest.mark.parametrize("servers", [0, 1])
def test_differences_of_local_steps_travel_so_too(servers: int) -> None:
    def work(world: World) -> list[torch.Tensor]:
        model = Sums(torch.float32)
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.25), model, world)
        for step in range(4):
            optimizer.zero_grad()
            model(*drawn(world.rank, step, torch.float32)).backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    tables: dict[str, Any] = {"servers": servers, "exchange": {"local_steps": 2}, "train": {"precision": "bf16"}}
    expected = [torch.zeros(17, 5), torch.zeros(33)]
    for step in range(4):
        gradients = mean_of(2, step, torch.float32, torch.float32)
        expected = [value - 0.25 * gradient for value, gradient in zip(expected, gradients, strict=True)]
    seen = on_workers(2, work, **tables)
    assert all(map(torch.equal, *seen))
    torch.testing.assert_close(seen[0], expected, rtol=2.0**-7, atol=2.0**-7)
    assert not all(map(torch.equal, seen[0], expected))


def test_servers_that_update_bring_32_bits() -> None:
    def work(world: World) -> None:
        model = Sums(torch.float32)
        DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, world, update="servers")

    with pytest.raises(TaihuError, match=r"travel in bf16 where workers update; give update=.workers.") as told:
        on_workers(2, work, servers=1, train={"precision": "bf16"})
    assert "\n" not in str(told.value)


def test_the_command_says_how_many_bytes_went(tmp_path: Path) -> None:
    sent = []
    for precision, dtype in (("fp32", "fp32"), ("bf16", "bf16")):
        arguments = ("--precision", precision, "--servers", "1")
        done = taihu_run(tmp_path, *arguments, script="halves.py", arguments=(precision, dtype), workers=2)
        assert done.returncode == 0, done.stderr
        found = re.search(r"bytes per step +([\d.]+) kB sent", done.stdout + done.stderr)
        assert found is not None, done.stdout
        sent.append(float(found[1]))
        first, second = (json.loads((tmp_path / f"{precision}.{rank}").read_text()) for rank in range(2))
        assert first == second
    # Beside values there are headers.
    assert 0.5 <= sent[1] / sent[0] < 0.56
