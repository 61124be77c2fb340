"""Sums of sparse tensors over the backend `taihu`: against dense sums in rank order, and Gloo's training."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from support.torch_ranks import on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taihu.core.base.errors import ExchangeError
from taihu.torch.group.operations.sparse import Form, Gathered, add_up, header, places_in, read_headers

RANKS = 3
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
# Sizes of sparse and of dense dimensions, and how many values each rank has.
SHAPES = {
    "one dimension": ((5,), (), (2, 3, 4)),
    "three": ((3, 4, 2), (), (9, 1, 5)),
    "dense behind": ((6, 2), (3, 2), (3, 0, 7)),
    "no values": ((4,), (2,), (0, 0, 0)),
    "no elements": ((0, 3), (2,), (0, 0, 0)),
    "scalar": ((), (2,), (1, 2, 0)),
    "large": ((30_000,), (16,), (9000, 1, 20_000)),
}


def made(name: str, dtype: Any, rank: int) -> Any:
    """A rank's tensor, with indices that come twice."""
    sparse, dense, counts = SHAPES[name]
    count, generator = counts[rank], torch.Generator().manual_seed(rank)
    rows = [torch.randint(0, max(size, 1), (count,), generator=generator) for size in sparse]
    indices = torch.stack(rows) if rows else torch.zeros((0, count), dtype=torch.int64)
    values = torch.randint(0, 9, (count, *dense), generator=generator)
    values = values.to(dtype) * (0.37 if dtype.is_floating_point else 1)
    return torch.sparse_coo_tensor(indices, values, (*sparse, *dense), dtype=dtype, check_invariants=True)


def sums(rank: int) -> dict[Any, tuple[bool, str, bytes]]:
    """Of each shape and type: whether coalesced, the difference from the dense sum in rank order, and the bits."""
    seen = {}
    for name in SHAPES:
        for dtype in DTYPES:
            tensor = made(name, dtype, rank)
            work = dist.all_reduce(tensor, async_op=True)
            work.wait()
            assert work.get_future().wait()[0] is tensor
            expected = made(name, dtype, 0).coalesce().to_dense()
            for other in range(1, RANKS):
                expected += made(name, dtype, other).coalesce().to_dense()
            right = torch.equal(tensor.to_dense(), expected)
            bits = bytes(tensor._values().contiguous().view(torch.uint8).numpy().tobytes())
            bits += bytes(tensor._indices().contiguous().numpy().tobytes())
            seen[name, str(dtype)] = (tensor.is_coalesced(), "" if right else f"{tensor}, not {expected}", bits)
    return seen


def test_sums_are_those_of_dense_tensors_in_rank_order(tmp_path: Path) -> None:
    first, *others = on_ranks(RANKS, tmp_path, sums)
    assert len(first) == len(SHAPES) * len(DTYPES)
    assert not {case: text for case, (_, text, _) in first.items() if text}
    assert all(coalesced for coalesced, _, _ in first.values())
    assert all(other == first for other in others)


def refusals(rank: int) -> list[str]:
    told = []
    for op in (dist.ReduceOp.AVG, dist.ReduceOp.MAX):
        with pytest.raises(ValueError, match="of sparse tensors; expected SUM") as refused:
            dist.all_reduce(torch.eye(2).to_sparse(), op=op)
        told.append(str(refused.value))
    with pytest.raises(RuntimeError) as error:
        dist.all_reduce(torch.eye(2 + rank // 2).to_sparse())
    return [*told, str(error.value)]


def test_shapes_that_differ_are_told_on_all_ranks(tmp_path: Path) -> None:
    for average, greatest, told in on_ranks(RANKS, tmp_path, refusals):
        assert "no AVG of" in average
        assert "no MAX of" in greatest
        assert "calls allreduce of sparse torch.float32 of shape (2, 2)" in told
        assert "rank 2 calls allreduce of sparse torch.float32 of shape (3, 3)" in told


@st.composite
def forms_and_tensors(draw: st.DrawFn) -> tuple[Form, list[Any]]:
    sparse = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
    dense = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    tensors = []
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(0, 8))
        rows = [draw(st.lists(st.integers(0, size - 1), min_size=count, max_size=count)) for size in sparse]
        indices = torch.tensor(rows, dtype=torch.int64).reshape(len(sparse), count)
        seed = draw(st.integers(0, 999))
        values = torch.randn((count, *dense), generator=torch.Generator().manual_seed(seed))
        tensors.append(torch.sparse_coo_tensor(indices, values, (*sparse, *dense), check_invariants=True))
    return Form(sparse, dense, torch.float32), tensors


def gathered(form: Form, tensors: list[Any]) -> Gathered:
    terms = [tensor.coalesce() for tensor in tensors]
    places = [places_in(form, term.indices(), rank) for rank, term in enumerate(terms)]
    room = Gathered.empty(form, [len(each) for each in places])
    for rank, (term, each) in enumerate(zip(terms, places, strict=True)):
        for place, part in zip(room.of(rank), (each, term.values()), strict=True):
            place.copy_(part)
    return room


@given(forms_and_tensors())
def test_any_tensors_add_up_as_dense_ones(case: tuple[Form, list[Any]]) -> None:
    form, tensors = case
    total = add_up(form, gathered(form, tensors))
    expected = torch.zeros((*form.sparse, *form.dense))
    for tensor in tensors:
        expected += tensor.coalesce().to_dense()
    assert torch.equal(total.to_dense(), expected)
    assert total.is_coalesced()
    # As many places as one of the ranks names: PyTorch's own coalesced sum has them, too.
    everything = sum(tensors[1:], tensors[0]).coalesce()
    assert torch.equal(total.indices(), everything.indices())
    counts = [tensor.coalesce()._nnz() for tensor in tensors]
    assert read_headers(form, [header(form, count) for count in counts]) == counts


FORM = Form((2, 3), (2,), torch.float32)


def test_what_a_rank_tells_wrongly_is_named() -> None:
    with pytest.raises(ExchangeError, match="worker 1 tells of 7 values"):
        read_headers(FORM, [header(FORM, 6), header(FORM, 7)])
    other = Form((2, 3), (2,), torch.float64)
    with pytest.raises(ExchangeError, match=r"worker 1 has a sparse tensor torch.float64 \[2, 3, 2\] with 2"):
        read_headers(FORM, [header(FORM, 1), header(other, 1)])
    with pytest.raises(ExchangeError, match="worker 4 has an index from 0 to 3 in dimension 1"):
        places_in(FORM, torch.tensor([[0, 1], [0, 3]]), 4)
    for wrong in ([2, 2], [3, 1], [-1, 2], [0, 6]):
        room = Gathered([0, 0, 2], torch.tensor(wrong), torch.zeros(2, 2))
        with pytest.raises(ExchangeError, match="worker 1 has sent indices"):
            add_up(FORM, room)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-2, 70), min_size=68, max_size=68))
def test_whatever_a_rank_tells_is_taken_or_refused(words: list[int]) -> None:
    own = header(FORM, 1)
    with suppress(ExchangeError):
        counts = read_headers(FORM, [own, np.array([words[0], *own[1:]])])
        assert 0 <= counts[1] <= FORM.span
    with pytest.raises(ExchangeError, match="expected the same type and sizes on all"):
        read_headers(FORM, [own, np.array(words)])


def losses(group: Any, rank: int) -> list[float]:
    torch.manual_seed(5)
    model = DistributedDataParallel(
        nn.Sequential(nn.Embedding(40, 6, sparse=True), nn.Flatten(), nn.Linear(18, 4)), process_group=group
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(rank)
    seen = []
    for _ in range(5):
        words = torch.randint(0, 40, (8, 3), generator=generator)
        labels = words[:, 0] % 4
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words), labels)
        loss.backward()
        assert model.module[0].weight.grad.is_sparse
        optimizer.step()
        seen.append(float(loss))
    return seen


def train(rank: int) -> tuple[list[float], list[float]]:
    gloo = dist.new_group(backend="gloo")
    return losses(dist.group.WORLD, rank), losses(gloo, rank)


def test_a_sparse_embedding_trains_as_over_gloo(tmp_path: Path) -> None:
    for own, other in on_ranks(2, tmp_path, train):
        assert own == pytest.approx(other, rel=1e-5)
        assert own[-1] != own[0]
