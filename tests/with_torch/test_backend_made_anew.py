"""Groups that are destroyed and made anew, callbacks that wait, forks, and ranks that call different things."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from operator import gt
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.daemons import free_port
from support.torch_ranks import on_ranks
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from taihu.allreduce.same_host.allreduce import SharedAllreduce
from taihu.torch.group.operations.exchange import GroupExchange

ROUNDS = 12
WARM = 4


def held_now() -> tuple[int, int]:
    """The descriptors and the threads of this process."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


def held_at_last(most: tuple[int, int]) -> tuple[int, int]:
    """Those that are left when there are no more than `most`, or in a minute: other threads close what is closed."""
    until_s = time.monotonic() + 60.0
    while any(map(gt, held_now(), most)) and time.monotonic() < until_s:
        time.sleep(0.05)
    return held_now()


def made_anew(rank: int, port: int) -> list[Any]:
    """Sums in groups that come one after the other, the descriptors and threads of the first ones and of the end."""
    dist.destroy_process_group()
    url = f"tcp://127.0.0.1:{port}"
    sums, held = [], []
    for number in range(ROUNDS):
        dist.init_process_group("taihu", init_method=url, rank=rank, world_size=2, timeout=timedelta(seconds=60))
        pair = dist.new_group([0, 1])
        for group in (dist.group.WORLD, pair):
            tensor = torch.tensor([1.0 + number])
            dist.all_reduce(tensor, group=group)
            sums.append(tensor.item())
        if number == 2 and rank == 0:  # others come to the next group before this one has left
            time.sleep(0.3)
        dist.destroy_process_group()
        del group, pair
        held.append(held_now())
    most = (max(fds for fds, _ in held[:WARM]), max(each for _, each in held[:WARM]))
    left = held_at_last(most)
    dist.init_process_group("taihu", init_method=url, rank=rank, world_size=2)
    return [sums, most, left]


def test_groups_are_made_anew_and_leave_nothing(tmp_path: Path) -> None:
    for sums, most, left in on_ranks(2, tmp_path, made_anew, free_port()):
        assert sums == [2.0 + 2.0 * number for number in range(ROUNDS) for _ in range(2)]
        # Nothing grows with the rounds.
        assert left[0] <= most[0]
        assert left[1] <= most[1]


def twice(future: Any) -> Any:
    """A sum that is made and waited for within a callback, and one in a callback of its own."""
    inner = dist.all_reduce(future.value()[0] * 2.0, async_op=True).get_future()
    outer = inner.then(lambda done: dist.all_reduce(done.value()[0] + 1.0, async_op=True).get_future().wait()[0])
    return outer.wait()


def waits_in_callbacks(rank: int) -> list[Any]:
    seen: list[Any] = []
    first, second = torch.ones(3) * (rank + 1), torch.ones(1)
    chained = dist.all_reduce(first, async_op=True).get_future().then(twice)
    later = dist.all_reduce(second, async_op=True)  # runs behind what the callbacks issue
    seen += [chained.wait().tolist(), later.wait(), second.item()]
    # A callback that waits for an operation of the script, which is issued behind its own.
    begun = threading.Event()
    works: list[Any] = []

    def wait_for_the_next(_: Any) -> bool:
        begun.wait(60.0)
        return bool(works[0].wait())

    chained = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(wait_for_the_next)
    works.append(dist.all_reduce(torch.ones(1), async_op=True))
    begun.set()
    seen.append(chained.wait())
    # Messages, and many at a time.
    place = torch.zeros(1)
    if rank:
        dist.send(torch.ones(1), 0)
    else:
        arrived = dist.irecv(place, 1)
        assert arrived is not None
        arrived.wait()
    many = [dist.all_reduce(torch.full((1,), float(n)), async_op=True).get_future().then(twice) for n in range(8)]
    return [*seen, [each.wait().item() for each in many]]


def test_callbacks_may_wait_for_what_they_issue(tmp_path: Path) -> None:
    for seen in on_ranks(2, tmp_path, waits_in_callbacks):
        assert seen == [[26.0, 26.0, 26.0], True, 2.0, True, [16.0 * n + 2.0 for n in range(8)]]


BUILT_IN = ("ALLREDUCE", "FP16_COMPRESS")
HOOKS = ("fp16", "PowerSGD", "fp16 PowerSGD", *BUILT_IN)


def losses_with_hooks(rank: int) -> dict[tuple[str, str], list[float]]:
    torch.manual_seed(rank)
    batches = [(torch.randn(8, 20), torch.randint(0, 5, (8,))) for _ in range(8)]
    groups = {"gloo": dist.new_group(backend="gloo"), "taihu": dist.group.WORLD}
    return {(hook, name): trained(group, hook, batches) for hook in HOOKS for name, group in groups.items()}


def trained(group: Any, hook: str, batches: list[Any]) -> list[float]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 5))
    replica = DistributedDataParallel(model, process_group=group)
    state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2)
    hooks: dict[str, tuple[Any, Any]] = {
        "fp16": (group, default_hooks.fp16_compress_hook),
        "PowerSGD": (state, powerSGD_hook.powerSGD_hook),
        "fp16 PowerSGD": (state, default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)),
    }
    if hook in BUILT_IN:
        replica._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, hook))
    else:
        replica.register_comm_hook(*hooks[hook])
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.05)
    losses = []
    for inputs, labels in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(replica(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_hooks_of_pytorch_end_with_gloos_losses(tmp_path: Path) -> None:
    for losses in on_ranks(2, tmp_path, losses_with_hooks):
        for hook in HOOKS:
            assert losses[hook, "taihu"] == pytest.approx(losses[hook, "gloo"], rel=1e-5), hook


def use_in_a_fork(told: Any) -> None:
    with pytest.raises(dist.DistBackendError) as error:
        dist.all_reduce(torch.ones(1))
    told.put(str(error.value))
    dist.destroy_process_group()


def forks(rank: int) -> list[Any]:
    dist.all_reduce(torch.ones(1))
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    child = context.Process(target=use_in_a_fork, args=(told,))
    child.start()
    text = told.get(timeout=60)
    child.join(60)
    loader = torch.utils.data.DataLoader(list(range(8)), batch_size=4, num_workers=1)
    batches = [batch.sum().item() for batch in loader]
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return [child.exitcode, text, batches, tensor.item()]


def test_forks_end_and_cannot_use_the_group(tmp_path: Path) -> None:
    for rank, (code, text, batches, total) in enumerate(on_ranks(2, tmp_path, forks)):
        assert (code, batches, total) == (0, [6, 22], 2.0)
        assert f"this process is a fork of rank {rank}" in text


def two_roots(root: int, group: Any) -> None:
    """Each root has gone on when it hears of the other: in its next call."""
    dist.broadcast(torch.ones(2), root, group=group)
    dist.all_reduce(torch.ones(1), group=group)


def shaped(rank: int, number: int) -> Callable[[Any], Any]:
    """A call of rank `rank` that does not go with the others'."""
    odd, int64 = rank == 1, torch.int64
    return [
        lambda group: dist.all_reduce(torch.ones(3 + odd), group=group),
        lambda group: dist.all_reduce(torch.ones(4, dtype=int64 if odd else torch.float32), group=group),
        lambda group: dist.all_reduce(
            torch.ones(3, dtype=int64), op=dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM, group=group
        ),
        lambda group: dist.barrier(group=group) if odd else dist.all_reduce(torch.ones(2), group=group),
        lambda group: dist.all_gather([torch.ones(2 + odd)] * 3, torch.ones(2 + odd), group=group),
        lambda group: dist.all_reduce(torch.ones(0 if odd else 2), group=group),
        lambda group: dist.all_reduce(torch.ones(0 if odd else 2, dtype=int64), group=group),
        lambda group: dist.all_reduce(torch.ones(5), op=dist.ReduceOp.AVG if odd else dist.ReduceOp.SUM, group=group),
        lambda group: two_roots(int(odd), group),
    ][number]


NAMED = (
    *("of shape (4,)", "of torch.int64", "MAX of torch.int64", "calls barrier", "of shape (3,)"),
    *("SUM of torch.float32 of 0 values", "SUM of torch.int64 of 0 values", "AVG of torch.float32"),
    "with root rank 1",
)


def call_different_things(rank: int) -> list[str]:
    told = []
    for number in range(len(NAMED)):
        group = dist.new_group()
        with pytest.raises(dist.DistBackendError) as error:
            shaped(rank, number)(group)
        told.append(str(error.value))
        dist.destroy_process_group(group)
    return told


def test_ranks_that_call_different_things_are_told_so(tmp_path: Path) -> None:
    for told in on_ranks(3, tmp_path, call_different_things):
        for text, named in zip(told, NAMED, strict=True):
            assert "rank 1 calls" in text
            assert named in text


def fail_as_the_watch_finds_out(rank: int) -> str:
    """A call that fails behind the watch's finding, and before the watch has ended the group's operations."""
    found, raised = threading.Event(), threading.Event()
    fail, expect = GroupExchange.fail, SharedAllreduce._expect_same_calls

    def fail_later(exchange: GroupExchange, error: BaseException) -> None:
        if threading.current_thread().name == "taihu-watch":
            found.set()
            assert raised.wait(60.0)
        fail(exchange, error)

    def expect_later(shared: SharedAllreduce) -> None:
        assert found.wait(60.0)
        expect(shared)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(GroupExchange, "fail", fail_later)
        patched.setattr(SharedAllreduce, "_expect_same_calls", expect_later)
        with pytest.raises(dist.DistBackendError) as error:
            dist.all_reduce(torch.ones(3 + rank))
        raised.set()
    return str(error.value)


def test_a_call_that_fails_as_its_difference_is_found_tells_the_calls(tmp_path: Path) -> None:
    for told in on_ranks(2, tmp_path, fail_as_the_watch_finds_out):
        assert "rank 1 calls" in told
        assert "of shape (4,)" in told


def refuse(rank: int) -> list[str]:
    attempts: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(torch.ones(2).to(torch.uint16)),
        lambda: dist.all_reduce(torch.ones(1).expand(4)),
        lambda: dist.send(torch.ones(1), 1 - rank, tag=-1),
    ]
    told = []
    for attempt in attempts:
        with pytest.raises(ValueError, match="taihu") as error:
            attempt()
        told.append(str(error.value))
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return [*told, str(tensor.item())]


def test_calls_that_cannot_be_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    for told in on_ranks(2, tmp_path, refuse):
        assert "no SUM of torch.uint16" in told[0]
        assert "the same memory" in told[1]
        assert "tag -1" in told[2]
        assert told[3] == "2.0"
