"""Every operation of the backend `taihu` against Gloo's, in the same processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.torch_ranks import on_ranks

SIZE = 3
Outputs = list[Any]
Operation = Callable[[Any, Any, Any], Outputs]

SHAPES = {
    "none": (0,),
    "one": (1,),
    "scalar": (),
    "odd": (7,),
    "matrix": (5, 3),
    # Over what is gathered at once, and from where on a broadcast goes around a ring.
    "large": (300_001,),
}
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.int8)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 4e-2, torch.float32: 1e-5, torch.float64: 1e-12}


def made(shape: tuple[int, ...], dtype: Any, rank: int, layout: str = "contiguous") -> Any:
    """A tensor of this rank; with layout `strided` not contiguous, of the same shape."""
    generator = torch.Generator().manual_seed(100 * rank + len(shape))
    room = (*shape[:-1], 2 * shape[-1]) if layout == "strided" and shape else shape
    if dtype.is_floating_point:
        tensor = torch.rand(room, generator=generator).mul_(2.0).sub_(0.5).to(dtype)
    else:
        tensor = torch.randint(0, 2 if dtype is torch.bool else 5, room, generator=generator).to(dtype)
    return tensor[..., ::2] if room != shape else tensor


def empty_like(tensor: Any, layout: str) -> Any:
    room = (*tensor.shape[:-1], 2 * tensor.shape[-1]) if layout == "strided" and tensor.dim() else tensor.shape
    return (
        torch.zeros(room, dtype=tensor.dtype)[..., ::2]
        if room != tensor.shape
        else torch.zeros(room, dtype=tensor.dtype)
    )


def reduced(name: str) -> Operation:
    def all_reduce(group: Any, tensor: Any, _: str) -> Outputs:
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, name), group=group)
        return [tensor]

    return all_reduce


def reduced_to(root: int) -> Operation:
    def reduce(group: Any, tensor: Any, _: str) -> Outputs:
        dist.reduce(tensor, root, group=group)
        return [tensor] if dist.get_rank() == root else []

    return reduce


def sent_to_all(root: int) -> Operation:
    def broadcast(group: Any, tensor: Any, _: str) -> Outputs:
        dist.broadcast(tensor, root, group=group)
        return [tensor]

    return broadcast


def all_gather(group: Any, tensor: Any, layout: str) -> Outputs:
    places = [empty_like(tensor, layout) for _ in range(SIZE)]
    dist.all_gather(places, tensor, group=group)
    return places


def all_gather_single(group: Any, tensor: Any, _: str) -> Outputs:
    flat = tensor.reshape(-1)
    place = torch.zeros(SIZE * flat.numel(), dtype=flat.dtype)
    dist.all_gather_single(place, flat.contiguous(), group=group)
    stacked = torch.zeros(SIZE, flat.numel(), dtype=flat.dtype)
    dist.all_gather_single(stacked, flat.contiguous().unsqueeze(0), group=group)
    return [place, stacked]


def all_gather_in_place(group: Any, tensor: Any, _: str) -> Outputs:
    """As FSDP gathers: the own shard lies where it will be."""
    place = torch.zeros(SIZE, tensor.numel(), dtype=tensor.dtype)
    place[dist.get_rank()] = tensor.reshape(-1)
    dist.all_gather_single(place.view(-1), place[dist.get_rank()], group=group)
    return [place]


def gather(group: Any, tensor: Any, layout: str) -> Outputs:
    places = [empty_like(tensor, layout) for _ in range(SIZE)] if dist.get_rank() == 2 else None
    dist.gather(tensor, places, dst=2, group=group)
    return places or []


def scatter(group: Any, tensor: Any, layout: str) -> Outputs:
    place = empty_like(tensor, layout)
    given = [tensor, tensor.flip(0) if tensor.dim() else tensor, tensor] if dist.get_rank() == 1 else None
    dist.scatter(place, given, src=1, group=group)
    return [place]


def scattered_sum(name: str) -> Operation:
    def reduce_scatter(group: Any, tensor: Any, layout: str) -> Outputs:
        out = empty_like(tensor, layout)
        terms = [tensor.clone() if turn else tensor for turn in range(SIZE)]
        dist.reduce_scatter(out, terms, op=getattr(dist.ReduceOp, name), group=group)
        flat = torch.cat([term.reshape(-1) for term in terms])
        single = torch.zeros(tensor.numel(), dtype=tensor.dtype)
        dist.reduce_scatter_single(single, flat, op=getattr(dist.ReduceOp, name), group=group)
        return [out, single]

    return reduce_scatter


def all_to_all(group: Any, tensor: Any, layout: str) -> Outputs:
    places = [empty_like(tensor, layout) for _ in range(SIZE)]
    dist.all_to_all(places, [tensor, tensor.clone(), tensor], group=group)
    return places


def all_to_all_single(group: Any, tensor: Any, _: str) -> Outputs:
    rank, flat = dist.get_rank(), tensor.reshape(-1).contiguous()
    even = torch.zeros(SIZE * flat.numel(), dtype=flat.dtype)
    dist.all_to_all_single(even, torch.cat([flat, flat, flat]), group=group)
    # Rank r sends r + to rows of two to each.
    rows = torch.arange(2 * (3 * rank + 3)).reshape(-1, 2).to(flat.dtype)
    place = torch.zeros(3 * rank + 3, 2, dtype=flat.dtype)
    sizes = [rank + other for other in range(SIZE)]
    dist.all_to_all_single(place, rows, sizes, sizes, group=group)
    return [even, place]


def messages(group: Any, tensor: Any, layout: str) -> Outputs:
    """Around a ring, receives first; two tags that are taken in the other order."""
    rank = dist.get_rank()
    right, left = (rank + 1) % SIZE, (rank - 1) % SIZE
    first, second = empty_like(tensor, layout), empty_like(tensor, layout)
    works = [dist.irecv(second, left, group=group, tag=8)]
    works += [
        dist.isend(tensor, right, group=group, tag=7),
        dist.isend(tensor.neg() if tensor.dtype.is_floating_point else tensor, right, group=group, tag=8),
    ]
    works += [dist.irecv(first, left, group=group, tag=7)]
    for work in works:
        work.wait()
    return [first, second]


def coalesced(group: Any, tensor: Any, _: str) -> Outputs:
    tensors = [tensor.clone() for _ in range(3)]
    for each in tensors:
        dist.all_reduce(each, group=group)
    return tensors


OPERATIONS: dict[str, Operation] = {
    **{
        f"all_reduce {name}": reduced(name) for name in ("SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR")
    },
    **{f"reduce to {root}": reduced_to(root) for root in (0, 2)},
    **{f"broadcast of {root}": sent_to_all(root) for root in (0, 2)},
    **{f"reduce_scatter {name}": scattered_sum(name) for name in ("SUM", "MAX")},
    "all_gather": all_gather,
    "all_gather_single": all_gather_single,
    "all_gather in place": all_gather_in_place,
    "gather": gather,
    "scatter": scatter,
    "all_to_all": all_to_all,
    "all_to_all_single": all_to_all_single,
    "messages": messages,
}
Case = tuple[str, str, str, str]


def cases() -> Iterator[Case]:
    """Operation, type, shape and layout."""
    for name, dtype in product(OPERATIONS, DTYPES):
        if (name.endswith("AVG") and dtype not in FLOATS) or (
            name[-4:] in (" BOR", "BAND", "BXOR") and dtype in FLOATS
        ):
            continue
        for shape in SHAPES:
            if shape != "large" or dtype in (torch.float32, torch.bfloat16, torch.uint8):
                yield name, str(dtype).removeprefix("torch."), shape, "contiguous"
        yield name, str(dtype).removeprefix("torch."), "matrix", "strided"


def compare(rank: int) -> dict[Case, str]:
    """The difference from Gloo's result on this rank, by case; "" where there is none."""
    gloo, taihu = dist.new_group(backend="gloo"), dist.group.WORLD
    seen = {}
    for case in cases():
        name, kind, shape, layout = case
        dtype = getattr(torch, kind)
        own = OPERATIONS[name](taihu, made(SHAPES[shape], dtype, rank, layout), layout)
        others = OPERATIONS[name](gloo, made(SHAPES[shape], dtype, rank, layout).contiguous(), "contiguous")
        seen[case] = "; ".join(difference(*pair) for pair in zip(own, others, strict=True)).strip("; ")
    return seen


def difference(own: Any, other: Any) -> str:
    tolerance = TOLERANCE.get(own.dtype, 0.0)
    try:
        torch.testing.assert_close(own, other, rtol=tolerance, atol=tolerance, check_stride=False)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Case, str]]:
    return on_ranks(SIZE, tmp_path_factory.mktemp("collectives"), compare)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_what_gloo_gives(name: str, differences: list[dict[Case, str]]) -> None:
    seen = [
        f"rank {rank}, {' '.join(case)}: {text}"
        for rank, found in enumerate(differences)
        for case, text in found.items()
        if case[0] == name and text
    ]
    assert not seen, "\n".join(seen[:10])
