"""Gradients of a device that computes and copies late: sent when they are there, read when they came back."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.late_streams import LateDevice, LateStreams
from support.small_net import new_net
from support.torch_workers import on_workers
from torch.nn import functional

import taihu.torch.gradients.gradients as gradients_module
from taihu.torch.gradients.gradients import GradientArena, layout_of
from taihu.torch.gradients.staging import Staging, staging_of
from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.world import World


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    used=st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4),
    data=st.data(),
)
def test_nothing_is_sent_before_it_is_there_or_read_before_it_is_back(
    sizes: list[int], used: list[list[bool]], data: st.DataObject
) -> None:
    """Steps of one device: gradient i of step s is s + i / 8, what comes back its double; parameters add it up."""
    draws = data.draw(st.lists(st.integers(0, 2), min_size=64, max_size=64))
    numbers = iter(draws * 1000)
    streams = LateStreams(LateDevice(lambda: next(numbers)))
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
    layout = layout_of((str(i), p) for i, p in enumerate(reversed(parameters)))
    arena = np.full(layout.elements, np.nan, dtype=np.float32)
    gradients = GradientArena(layout, parameters, arena, stage=lambda _: Staging(streams))
    expected = [0.0] * len(sizes)
    own: list[torch.Tensor] = []
    own_values: list[float] = []

    for step, is_used in enumerate(used, start=1):
        order = data.draw(st.permutations([i for i in range(len(sizes)) if is_used[i]]))
        for parameter in parameters:
            parameter.grad = None
        for index in order:
            gradient = parameters[index].grad = torch.full((sizes[index],), torch.nan)
            streams.device.compute.put(partial(gradient.fill_, step + index / 8))
            gradients.take(index)
            # What the loop still computes with this worker's own gradient comes before what is brought back.
            own.append(torch.zeros_like(gradient))
            streams.device.compute.put(partial(torch.add, own[-1], gradient, out=own[-1]))
            own_values.append(step + index / 8)
        for index in range(len(sizes)):
            if index not in order:
                gradients.take(index)
        for index in range(len(sizes)):
            value = step + index / 8 if index in order else 0.0
            if not (data.draw(st.booleans()) and gradients.is_there(index)):
                gradients.wait(index)
            sent = arena[layout.offsets[index] : layout.offsets[index + 1]]
            np.testing.assert_array_equal(sent, np.full(sizes[index], value))
            sent *= 2
            expected[index] += 2 * value
        gradients.give(range(len(parameters)))
        for parameter in parameters:
            streams.device.compute.put(partial(parameter.data.add_, parameter.grad))
    streams.device.finish()
    gradients.close()
    assert all(bool((seen == value).all()) for seen, value in zip(own, own_values, strict=True))
    for parameter, value in zip(parameters, expected, strict=True):
        np.testing.assert_array_equal(parameter.detach(), np.full(len(parameter), value, dtype=np.float32))


def test_asking_does_not_wait() -> None:
    streams = LateStreams(LateDevice(lambda: 2))
    parameter = torch.nn.Parameter(torch.zeros(3))
    layout = layout_of([("p", parameter)])
    gradients = GradientArena(layout, [parameter], np.zeros(3, np.float32), stage=lambda _: Staging(streams))
    parameter.grad = torch.ones(3)
    gradients.take(0)
    assert not gradients.is_there(0)
    gradients.wait(0)
    assert gradients.is_there(0)


def test_a_loop_on_a_device_that_is_late_is_one_process_with_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device computes at once here, and copies when it is waited for."""

    def late(_: torch.device) -> Staging:
        numbers = np.random.default_rng(0)
        streams = LateStreams(LateDevice(lambda: int(numbers.integers(3))))
        streams.compute_waits = lambda: streams.device.run(lambda: not streams.side.waiting)  # type: ignore[method-assign]
        return Staging(streams)

    usual = gradients_module.GradientArena.__init__.__kwdefaults__ or {}
    monkeypatch.setattr(gradients_module.GradientArena.__init__, "__kwdefaults__", {**usual, "stage": late})
    rng = torch.Generator().manual_seed(1)
    images, labels = torch.randn(6, 4, 1, 8, 8, generator=rng), torch.randint(0, 10, (6, 4), generator=rng)

    def work(world: World) -> list[torch.Tensor]:
        net = new_net(world.rank)
        optimizer = DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.05), net, world)
        for step in range(6):
            optimizer.zero_grad()
            own = slice(world.rank, None, 2)
            functional.cross_entropy(net(images[step, own]), labels[step, own]).backward()
            optimizer.step()
        return [p.detach() for p in net.parameters()]

    net = new_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(6):
        optimizer.zero_grad()
        functional.cross_entropy(net(images[step]), labels[step]).backward()
        optimizer.step()
    for seen in on_workers(2, work):
        torch.testing.assert_close(seen, [p.detach() for p in net.parameters()], rtol=1e-4, atol=1e-6)


def test_gradients_on_the_cpu_are_not_staged() -> None:
    assert staging_of(torch.device("cpu")) is None
