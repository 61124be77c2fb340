"""Tensors of a device that computes and copies late, in operations of the backend `taihu`: as those of the CPU."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.late_streams import LateDevice, LateEvent, LateStreams
from support.torch_ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel

from taihu.torch.group.meeting.place import GroupPlace
from taihu.torch.group.operations.checks import check_cpu
from taihu.torch.group.operations.devices import Devices, device_of, kinds_here
from taihu.torch.group.process_group import TaihuGroup

SIZE = 3
SHAPES = ((7,), (5, 3), (0,), (300_001,))
DTYPES = (torch.float32, torch.bfloat16, torch.int64)
GARBAGE = 99
Started = tuple[list[Any], Any]
Room = Callable[[tuple[int, ...]], Any]


@dataclass
class FromHost:
    """Streams for copies from the host, which notice a source that is changed before it is copied."""

    streams: LateStreams
    changed: list[Any] = field(default_factory=list)

    def copy(self, target: Any, source: Any) -> None:
        as_queued = source.clone()

        def work() -> None:
            if not torch.equal(as_queued, source):
                self.changed.append(source)
            target.copy_(source)

        self.streams.side.put(work)

    def side_waits(self) -> None:
        self.streams.side_waits()

    def compute_waits(self) -> None:
        self.streams.compute_waits()

    def hold(self, tensor: Any) -> None:
        self.streams.hold(tensor)

    def mark(self) -> LateEvent:
        return self.streams.mark()


class Late:
    """A `Device` in memory; its tensors are PyTorch's of the CPU, and hold garbage until it has computed them."""

    def __init__(self, seed: int) -> None:
        numbers = Random(seed)
        self.late = LateDevice(lambda: numbers.randrange(4))
        self.inward = LateStreams(self.late)
        self.outward = FromHost(LateStreams(self.late))

    def room(self, tensor: Any) -> Any:
        return torch.full(tensor.shape, GARBAGE, dtype=tensor.dtype)

    def tensor(self, values: Any) -> Any:
        """A tensor that has these values when it has been computed, at some time."""
        tensor = torch.full_like(values, -GARBAGE)
        self.late.compute.put(lambda: tensor.copy_(values))
        return tensor

    def room_of(self, dtype: Any, shape: tuple[int, ...]) -> Any:
        """A tensor to fill, to which the device still writes."""
        return self.tensor(torch.full(shape, GARBAGE, dtype=dtype))

    def seen(self, tensor: Any) -> Any:
        """The values that the device sees next, when it has done all; it writes over them then, as it may."""
        seen = torch.full_like(tensor, -GARBAGE)

        def look() -> None:
            seen.copy_(tensor)
            tensor.fill_(GARBAGE)

        self.late.compute.put(look)
        return seen


def late_group(device: Late, timeout_s: float = 60.0) -> Any:
    """A group of all ranks whose tensors lie on `device`."""

    def create(options: Any, _: Any) -> TaihuGroup:
        place = GroupPlace(options.group_id, options.group_rank, options.group_size, timeout_s)
        members = options.global_ranks_in_group
        return TaihuGroup(options.store, place, members, devices=Devices(find=lambda _: device))

    dist.Backend.register_backend("late", create, extended_api=True, devices=["cpu"])
    return dist.new_group(backend="late")


def all_reduce(name: str) -> Callable[..., Started]:
    def start(tensor: Any, _: Room, **group: Any) -> Started:
        return [tensor], dist.all_reduce(tensor, op=getattr(dist.ReduceOp, name), **group)

    return start


def all_reduce_strided(tensor: Any, _: Room, **group: Any) -> Started:
    columns = tensor.view(-1)[::2]
    return [tensor], dist.all_reduce(columns, **group)


def reduce(tensor: Any, _: Room, **group: Any) -> Started:
    work = dist.reduce(tensor, 1, **group)
    return [tensor] if dist.get_rank() == 1 else [], work


def broadcast(tensor: Any, _: Room, **group: Any) -> Started:
    return [tensor], dist.broadcast(tensor, 1, **group)


def all_gather(tensor: Any, room: Room, **group: Any) -> Started:
    places = [room(tensor.shape) for _ in range(SIZE)]
    return places, dist.all_gather(places, tensor, **group)


def all_gather_into_tensor(tensor: Any, room: Room, **group: Any) -> Started:
    place = room((SIZE * tensor.numel(),))
    return [place], dist.all_gather_into_tensor(place, tensor.view(-1), **group)


def all_gather_in_place(tensor: Any, _: Room, **group: Any) -> Started:
    """As FSDP gathers: the own shard lies where it will be."""
    shards = tensor.view(-1)[: tensor.numel() // SIZE * SIZE].view(SIZE, -1)
    return [shards], dist.all_gather_into_tensor(shards.view(-1), shards[dist.get_rank()], **group)


def reduce_scatter(tensor: Any, room: Room, **group: Any) -> Started:
    place = room(tensor.shape)
    return [place], dist.reduce_scatter(place, [tensor] * SIZE, **group)


def reduce_scatter_tensor(tensor: Any, room: Room, **group: Any) -> Started:
    size = tensor.numel() // SIZE
    place = room((size,))
    return [place], dist.reduce_scatter_tensor(place, tensor.view(-1)[: size * SIZE], **group)


def gather(tensor: Any, room: Room, **group: Any) -> Started:
    places = [room(tensor.shape) for _ in range(SIZE)] if dist.get_rank() == 2 else None
    work = dist.gather(tensor, places, dst=2, **group)
    return places or [], work


def scatter(tensor: Any, room: Room, **group: Any) -> Started:
    place = room(tensor.shape)
    return [place], dist.scatter(place, [tensor] * SIZE if dist.get_rank() == 1 else None, src=1, **group)


def all_to_all(tensor: Any, room: Room, **group: Any) -> Started:
    rows = tensor.numel() // SIZE * SIZE
    place = room((rows,))
    return [place], dist.all_to_all_single(place, tensor.view(-1)[:rows], **group)


OPERATIONS: dict[str, Callable[..., Started]] = {
    **{f"all_reduce {name}": all_reduce(name) for name in ("SUM", "MAX")},
    "all_reduce of a strided tensor": all_reduce_strided,
    "reduce": reduce,
    "broadcast": broadcast,
    "all_gather": all_gather,
    "all_gather_into_tensor": all_gather_into_tensor,
    "all_gather in place": all_gather_in_place,
    "reduce_scatter": reduce_scatter,
    "reduce_scatter_tensor": reduce_scatter_tensor,
    "gather": gather,
    "scatter": scatter,
    "all_to_all": all_to_all,
}


def made(shape: tuple[int, ...], dtype: Any, rank: int) -> Any:
    generator = torch.Generator().manual_seed(10 * rank + len(shape))
    return torch.rand(shape, generator=generator).mul_(40).to(dtype)


def compare(rank: int) -> dict[str, Any]:
    """All operations, two at a time under way: names of those whose results are not the CPU's, and who waited."""
    device = Late(rank)
    group = late_group(device)
    outcomes = []
    under_way: list[Callable[[], None]] = []
    for name, start in OPERATIONS.items():
        for shape in SHAPES:
            for dtype in DTYPES:
                values = made(shape, dtype, rank)
                room = partial(torch.full, fill_value=GARBAGE, dtype=dtype)
                expected, work = start(values.clone(), room, async_op=True)
                work.wait()
                late_room = partial(device.room_of, dtype)
                results, work = start(device.tensor(values), late_room, group=group, async_op=True)
                seen: list[Any] = []
                outcomes.append((f"{name} {shape} {dtype}", expected, seen))
                under_way.append(partial(look, device, work, results, seen))
                if len(under_way) == 2:
                    under_way.pop(rank % 2)()
    under_way.pop()()
    waited = set(device.late.waited)
    device.late.finish()
    wrong = [name for name, expected, seen in outcomes if not all(map(torch.equal, expected, seen))]
    return {
        "wrong": wrong,
        "changed": len(device.outward.changed),
        "waited": threading.get_ident() in waited,
        "count": len(outcomes),
    }


def look(device: Late, work: Any, results: list[Any], seen: list[Any]) -> None:
    assert work.wait()
    seen.extend(device.seen(result) for result in results)


def test_results_are_those_of_tensors_of_the_cpu_and_the_script_does_not_wait_for_its_device(tmp_path: Path) -> None:
    for told in on_ranks(SIZE, tmp_path, compare):
        assert told["wrong"] == []
        assert told["changed"] == 0
        assert not told["waited"]
        assert told["count"] == len(OPERATIONS) * len(SHAPES) * len(DTYPES)


def while_the_device_rests(rank: int) -> dict[str, Any]:
    """Operations of a device that has not computed their tensors yet."""
    device = Late(rank)
    group = late_group(device)
    device.late.may_run.clear()
    tensors = [device.tensor(torch.full((5,), float(rank + number))) for number in range(3)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    with pytest.raises(dist.DistBackendError) as late:
        works[0].wait(timedelta(seconds=0.05))
    ended = works[0].is_completed()
    future = works[1].get_future().then(lambda future: future.value()[0])
    device.late.may_run.set()
    assert future.wait() is tensors[1]
    of_future = device.seen(tensors[1])
    works[2].wait()
    works[0].wait()
    seen = [device.seen(tensors[0]), of_future, device.seen(tensors[2])]
    addresses = device.inward.held & device.outward.streams.held
    held = [tensor.data_ptr() in addresses for tensor in tensors]
    device.late.finish()
    return {"late": str(late.value), "ended": ended, "seen": [float(each[0]) for each in seen], "held": held}


def test_an_operation_is_issued_while_its_tensors_are_computed_and_wait_and_futures_come_behind(
    tmp_path: Path,
) -> None:
    for told in on_ranks(2, tmp_path, while_the_device_rests):
        assert "allreduce did not end within 0.05 s" in told["late"]
        assert not told["ended"]
        assert told["seen"] == [1.0, 3.0, 5.0]
        assert told["held"] == [True] * 3


def failing(rank: int) -> dict[str, Any]:
    device = Late(rank)
    group = late_group(device)
    tensors = [device.tensor(torch.full((4,), float(number))) for number in range(3)]
    works = [dist.broadcast(tensors[0], 0, group=group, async_op=True)]
    # Another operation on rank 1, and one behind it on all.
    place = device.tensor(torch.full((8,), 3.0))
    differing = dist.all_reduce if rank else partial(dist.all_gather_into_tensor, place)
    works.append(differing(tensors[1], group=group, async_op=True))
    works.append(dist.all_reduce(tensors[2], group=group, async_op=True))
    works[0].wait()
    errors = []
    for work in works[1:]:
        with pytest.raises(dist.DistBackendError) as error:
            work.wait()
        errors.append(str(error.value))
    with pytest.raises(RuntimeError, match="taihu group"):
        works[1].get_future().wait()
    seen = [device.seen(tensor) for tensor in (*tensors, place)]
    device.late.finish()
    return {"errors": errors, "seen": [each.tolist() for each in seen]}


def test_an_operation_that_fails_leaves_tensors_of_a_device_as_they_were(tmp_path: Path) -> None:
    for told in on_ranks(2, tmp_path, failing):
        assert all("calls allreduce" in error for error in told["errors"])
        assert told["seen"] == [[0.0] * 4, [1.0] * 4, [2.0] * 4, [3.0] * 8]


def never_computed(rank: int, is_aborted: bool) -> dict[str, Any]:
    """The device of rank 1 never comes to what it is to send."""
    device = Late(rank)
    group = late_group(device, 60.0 if is_aborted else 1.0)
    if rank:
        device.late.may_run.clear()
    tensor = device.tensor(torch.ones(3))
    work = dist.all_reduce(tensor, group=group, async_op=True)
    if is_aborted and rank:
        group.abort()
    with pytest.raises(dist.DistBackendError) as error:
        work.wait()
    device.late.may_run.set()
    seen = device.seen(tensor)
    device.late.finish()
    return {"error": str(error.value), "seen": seen.tolist()}


@pytest.mark.parametrize("is_aborted", [False, True])
def test_a_device_that_does_not_come_is_named_and_its_rank_can_abort(tmp_path: Path, *, is_aborted: bool) -> None:
    for told in on_ranks(2, tmp_path, never_computed, is_aborted):
        assert ("rank 1 has aborted the group" if is_aborted else "Timed out after 1 s") in told["error"]
        assert "rank 1" in told["error"]
        assert told["seen"] == [1.0] * 3


def trained(rank: int) -> list[list[Any]]:
    """The parameters of a net after some steps over the CPU's group, and over that of a device that copies late.

    DistributedDataParallel computes at once here: so who waits for copies back has the device do them.
    """
    device = Late(rank)
    group = late_group(device)
    streams = device.outward.streams
    run_copies = partial(device.late.run, lambda: not streams.side.waiting)
    streams.compute_waits = run_copies  # type: ignore[method-assign]
    torch.manual_seed(rank)
    net = torch.nn.Sequential(torch.nn.Linear(6, 300), torch.nn.ReLU(), torch.nn.Linear(300, 2))
    parameters = []
    for process_group in (None, group):
        model = DistributedDataParallel(copy.deepcopy(net), process_group=process_group, bucket_cap_mb=0.001)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rng = torch.Generator().manual_seed(rank)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.rand((8, 6), generator=rng)).square().mean().backward()
            optimizer.step()
        parameters.append([parameter.tolist() for parameter in model.parameters()])
    return parameters


def test_a_model_of_a_late_device_is_trained_to_the_bits_of_the_cpu(tmp_path: Path) -> None:
    answers = on_ranks(2, tmp_path, trained)
    for of_cpu, of_device in answers:
        assert of_cpu == of_device
    assert answers[0] == answers[1]


def test_tensors_of_several_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="taihu all_gather: tensors on cpu, meta; expected all of them on one"):
        Devices().stage("all_gather", [torch.ones(1)], [torch.ones(1, device="meta")])
    with pytest.raises(ValueError, match="taihu send: expected a tensor on cpu, got one on meta; give it a cpu"):
        check_cpu("send", [torch.ones(1, device="meta")])


def test_the_cpu_has_no_stage_and_cuda_is_registered_where_it_is() -> None:
    tensor = torch.ones(1)
    stage = Devices().stage("all_reduce", [tensor], [tensor])
    assert stage.at(tensor) is tensor
    assert stage.devices == []
    assert device_of(torch.device("cpu")) is None
    assert kinds_here() == (["cpu", "cuda"] if torch.cuda.device_count() else ["cpu"])
    assert dist.Backend.backend_capability["taihu"] == kinds_here()
