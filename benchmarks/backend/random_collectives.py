"""Random programs of torch.distributed over the backend `taihu` and over Gloo, in the same processes: alike or not.

    python -m benchmarks random_collectives [--programs 2000] [--ranks 2,3] [--seed 0] [--json FILE]

A program is up to six calls of random kinds, types, shapes, layouts, reductions, roots and groups, at once or async,
with waits in any order, which all ranks draw alike from its number. An outcome is the values of all calls, or the
error of one that cannot be; some calls have a value here, and none in Gloo. Where values differ each rank computes
them by itself, from what all ranks have, in float64: they are "Gloo's own" where they are ours. Whatever differs is
printed with the program's number, and the exit code is 1 then. Needs torch.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.multiprocessing

import taihu.torch.backend  # noqa: F401 - registers the backend
from benchmarks.backend.computed_collectives import CollectiveCall, computed
from benchmarks.base.rows import in_lines

__all__ = ["compare_programs", "main"]

_TYPES: Final = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool, torch.complex64),
)
_SHAPES: Final = ((0,), (1,), (), (7,), (4, 3), (2, 3, 2), (1000,), (30_001,), (300_001,))
_REDUCTIONS: Final = ("SUM", "SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR")
_TOLERANCE: Final = MappingProxyType({torch.float16: 8e-3, torch.bfloat16: 8e-2})
_MOST_CALLS: Final = 6
_SHOWN: Final = 20
_KINDS: Final = ("equal", "errors alike", "not in Gloo", "Gloo's own")
_TOGETHER: Final = 25
"""The number of programs that run in the same groups."""

Outputs = list[Any]
Outcome = list[Outputs] | str
"""The outputs of each call, or the error of one."""


@dataclass(frozen=True)
class Step:
    """One call of a program; `number` gives its tensors' values, `is_async` whether it is waited for at the end."""

    kind: str
    dtype: Any
    shape: tuple[int, ...]
    is_strided: bool
    reduction: str
    root: int
    number: int
    is_async: bool


@dataclass(frozen=True)
class Ranks:
    """A group, this process's rank in it, and the backend that it is of."""

    group: Any
    rank: int
    size: int
    is_gloo: bool

    def tensor(self, step: Step, salt: int = 0, shape: tuple[int, ...] | None = None) -> Any:
        """A tensor of this rank; Gloo, which wants contiguous ones, gets its values in such."""
        shape = step.shape if shape is None else shape
        generator = torch.Generator().manual_seed(1000 * step.number + 10 * self.rank + salt)
        values = torch.randint(0, 3, shape, generator=generator)
        if step.dtype.is_floating_point or step.dtype.is_complex:
            values = values + torch.rand(shape, generator=generator)
        values = values.to(step.dtype)
        if step.is_strided and not self.is_gloo and values.dim():
            wide = torch.zeros((*shape[:-1], 2 * shape[-1]), dtype=step.dtype)
            wide[..., ::2] = values
            return wide[..., ::2]
        return values

    def root(self, step: Step) -> int:
        """The root's rank in the whole run."""
        return int(dist.get_global_rank(self.group, step.root % self.size))

    def is_root(self, step: Step) -> bool:
        """Whether this is it."""
        return step.root % self.size == self.rank


Call = Callable[[Step, Ranks], tuple[Any, Outputs]]


def _op(step: Step) -> Any:
    return getattr(dist.ReduceOp, step.reduction)


def _all_reduce(step: Step, ranks: Ranks) -> tuple[Any, Outputs]:
    tensor = ranks.tensor(step)
    return dist.all_reduce(tensor, op=_op(step), group=ranks.group, async_op=step.is_async), [tensor]


def _reduce(step: Step, ranks: Ranks) -> tuple[Any, Outputs]:
    tensor = ranks.tensor(step)
    work = dist.reduce(tensor, ranks.root(step), op=_op(step), group=ranks.group, async_op=step.is_async)
    return work, [tensor] if ranks.is_root(step) else []


def _broadcast(step: Step, ranks: Ranks) -> tuple[Any, Outputs]:
    tensor = ranks.tensor(step)
    return dist.broadcast(tensor, ranks.root(step), group=ranks.group, async_op=step.is_async), [tensor]


def _all_gather(step: Step, ranks: Ranks) -> tuple[Any, Outputs]:
    places = [ranks.tensor(step, 1) for _ in range(ranks.size)]
    return dist.all_gather(places, ranks.tensor(step), group=ranks.group, async_op=step.is_async), places


def _all_gather_single(step: Step, ranks: Ranks) -> tuple[Any, Outputs]:
    own = ranks.tensor(step).reshape(-1).contiguous()
    place = torch.zeros(ranks.size * own.numel(), dtype=step.dtype)
    return dist.all_gather_single(place, own, group=ranks.group, async_op=step.is_async), [place]


def _gather(step: Step, ranks: Ranks) -> tuple[Any, Outputs]:
    places = [ranks.tensor(step, 1) for _ in range(ranks.size)] if ranks.is_root(step) else None
    work = dist.gather(ranks.tensor(step), places, dst=ranks.root(step), group=ranks.group, async_op=step.is_async)
    return work, places or []


def _scatter(step: Step, ranks: Ranks) -> tuple[Any, Outputs]:
    given = [ranks.tensor(step, salt) for salt in range(ranks.size)] if ranks.is_root(step) else None
    place = ranks.tensor(step, 5)
    return dist.scatter(place, given, src=ranks.root(step), group=ranks.group, async_op=step.is_async), [place]


def _reduce_scatter(step: Step, ranks: Ranks) -> tuple[Any, Outputs]:
    out, terms = ranks.tensor(step, 9), [ranks.tensor(step, salt) for salt in range(ranks.size)]
    return dist.reduce_scatter(out, terms, op=_op(step), group=ranks.group, async_op=step.is_async), [out]


def _all_to_all(step: Step, ranks: Ranks) -> tuple[Any, Outputs]:
    places = [ranks.tensor(step, 9) for _ in range(ranks.size)]
    sent = [ranks.tensor(step, salt) for salt in range(ranks.size)]
    return dist.all_to_all(places, sent, group=ranks.group, async_op=step.is_async), places


def _all_to_all_single(step: Step, ranks: Ranks) -> tuple[Any, Outputs]:
    """Rank r sends (r + to + number) % 3 rows of two to each."""
    sizes = [(ranks.rank + other + step.number) % 3 for other in range(ranks.size)]
    sent, place = (ranks.tensor(step, salt, (sum(sizes), 2)).contiguous() for salt in (0, 9))
    return dist.all_to_all_single(place, sent, sizes, sizes, group=ranks.group, async_op=step.is_async), [place]


def _barrier(step: Step, ranks: Ranks) -> tuple[Any, Outputs]:
    return dist.barrier(group=ranks.group, async_op=step.is_async), []


def _neighbours(ranks: Ranks) -> tuple[int, int]:
    return tuple(dist.get_global_rank(ranks.group, (ranks.rank + way) % ranks.size) for way in (1, -1))


def _messages(step: Step, ranks: Ranks) -> tuple[Any, Outputs]:
    right, left = _neighbours(ranks)
    places = [ranks.tensor(step, 8), ranks.tensor(step, 9)]
    works = [dist.irecv(places[1], left, group=ranks.group, tag=2 * step.number + 1)]
    works += [
        dist.isend(ranks.tensor(step, salt), right, group=ranks.group, tag=2 * step.number + salt)
        for salt in range(2)
    ]
    works += [dist.irecv(places[0], left, group=ranks.group, tag=2 * step.number)]
    for work in works:
        assert work is not None  # noqa: S101 - this rank is in the group
        work.wait()
    return None, places


def _batch(step: Step, ranks: Ranks) -> tuple[Any, Outputs]:
    right, left = _neighbours(ranks)
    place = ranks.tensor(step, 9)
    sent = dist.P2POp(dist.isend, ranks.tensor(step), right, group=ranks.group)
    for work in dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, place, left, group=ranks.group)]):
        work.wait()
    return None, [place]


def _objects(step: Step, ranks: Ranks) -> tuple[Any, Outputs]:
    own = {"rank": ranks.rank, "text": "x" * (step.number % 50) * (ranks.rank + 1), "tensor": ranks.tensor(step)}
    gathered: Outputs = [None] * ranks.size
    dist.all_gather_object(gathered, own, group=ranks.group)
    shared: Outputs = [own, ranks.rank]
    dist.broadcast_object_list(shared, src=ranks.root(step), group=ranks.group)
    mine: Outputs = [None]
    given = [{"for": to} for to in range(ranks.size)] if ranks.is_root(step) else None
    dist.scatter_object_list(mine, given, src=ranks.root(step), group=ranks.group)
    return None, [str(gathered), str(shared), str(mine)]


def _sparse(step: Step, ranks: Ranks) -> tuple[Any, Outputs]:
    """Sums of sparse tensors, coalesced or not, which Gloo has for some types."""
    dtype = step.dtype if step.dtype.is_floating_point and step.dtype.itemsize > 2 else torch.float32
    rows = torch.tensor([[ranks.rank, 3, 3 if step.is_strided else 2]])
    values = torch.ones(3, 2, dtype=dtype) * (ranks.rank + 1)
    tensor = torch.sparse_coo_tensor(rows, values, (8, 2), check_invariants=False)
    dist.all_reduce(tensor, group=ranks.group)
    return None, [tensor.to_dense()]


def _callback(step: Step, ranks: Ranks) -> tuple[Any, Outputs]:
    """A sum in the callback of a sum."""
    tensor = ranks.tensor(step)

    def again(future: Any) -> Any:
        inner = dist.all_reduce(future.value()[0], op=dist.ReduceOp.SUM, group=ranks.group, async_op=True)
        return inner.get_future().wait()[0]

    work = dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=ranks.group, async_op=True)
    return None, [work.get_future().then(again).wait().clone()]


_CALLS: Final[Mapping[str, Call]] = MappingProxyType(
    {
        "all_reduce": _all_reduce,
        "reduce": _reduce,
        "broadcast": _broadcast,
        "all_gather": _all_gather,
        "all_gather_single": _all_gather_single,
        "gather": _gather,
        "scatter": _scatter,
        "reduce_scatter": _reduce_scatter,
        "all_to_all": _all_to_all,
        "all_to_all_single": _all_to_all_single,
        "barrier": _barrier,
        "messages": _messages,
        "batch": _batch,
        "objects": _objects,
        "sparse": _sparse,
        "callback": _callback,
    }
)


def _program(number: int) -> list[Step]:
    draw = random.Random(number)  # noqa: S311 - the same on all ranks
    return [
        Step(
            draw.choice(list(_CALLS)),
            draw.choice(_TYPES),
            draw.choice(_SHAPES),
            draw.random() < 0.3,
            draw.choice(_REDUCTIONS),
            draw.randrange(6),
            draw.randrange(10_000),
            draw.random() < 0.5,
        )
        for _ in range(draw.randint(1, _MOST_CALLS))
    ]


def _outcome(program: Sequence[Step], ranks: Ranks, seed: int) -> Outcome:
    """The values of all calls, or the kind of call whose arguments were refused."""
    works: list[tuple[int, Any]] = []
    outputs: list[Outputs] = []
    errors: dict[int, str] = {}
    for place, step in enumerate(program):
        try:
            work, filled = _CALLS[step.kind](step, ranks)
        except (ValueError, TypeError, RuntimeError) as error:
            errors[place] = f"{type(error).__name__}: {error}"
            break
        outputs.append(filled)
        if work is not None:
            works.append((place, work))
    random.Random(100 * seed + ranks.rank).shuffle(works)  # noqa: S311
    for place, work in works:
        try:
            work.wait()
        except RuntimeError as error:  # Gloo looks at some arguments there
            errors[place] = str(error)
    first = min(errors, default=-1)
    return outputs if first < 0 else f"call {first}: {program[first].kind}: {errors[first]}"


def _difference(own: Outcome, other: Outcome) -> str:
    """The difference between taihu's outcome and Gloo's; "" where there is none."""
    if isinstance(own, str) or isinstance(other, str):
        same = isinstance(own, str) and isinstance(other, str) and own.split(":")[0] == other.split(":")[0]
        return "" if same else f"taihu: {str(own)[:200]}, Gloo: {str(other)[:200]}"
    for mine, theirs in zip(chain.from_iterable(own), chain.from_iterable(other), strict=True):
        if isinstance(mine, str):
            if mine != theirs:
                return f"{mine[:100]}, not {theirs[:100]}"
            continue
        limit = _TOLERANCE.get(mine.dtype, 1e-5)
        if not torch.allclose(mine, theirs, rtol=limit, atol=limit, equal_nan=True):
            return f"{mine.dtype} {tuple(mine.shape)}: {mine.reshape(-1)[:4]}, not {theirs.reshape(-1)[:4]}"
    return ""


def _computed(step: Step, ranks: Ranks) -> Outputs | None:
    """The outputs of a call, of what all ranks have; None for kinds that are not computed."""
    everybody = [Ranks(ranks.group, rank, ranks.size, is_gloo=True) for rank in range(ranks.size)]
    call = CollectiveCall(step.kind, step.reduction, step.root % ranks.size, ranks.rank, ranks.size)
    return computed(call, lambda rank, salt: everybody[rank].tensor(step, salt))


def _is_gloos_own(program: Sequence[Step], ranks: Ranks, own: Outcome, other: Outcome) -> bool:
    """Whether our values, which are not Gloo's, are those that follow from what all ranks have."""
    if isinstance(own, str) or isinstance(other, str):
        return False
    computed = [_computed(step, ranks) for step in program]
    expected = [theirs if each is None else each for each, theirs in zip(computed, other, strict=True)]
    return not _difference(own, expected)


def _groups(ranks: Sequence[int]) -> tuple[Ranks, Ranks]:
    """Groups of these ranks over taihu and over Gloo; all ranks call this, those among them get them."""
    limit = timedelta(seconds=60)
    made = [dist.new_group(list(ranks), backend=name, timeout=limit) for name in ("taihu", "gloo")]
    place = ranks.index(dist.get_rank()) if dist.get_rank() in ranks else -1
    ours, theirs = (Ranks(group, place, len(ranks), group is made[1]) for group in made)
    return ours, theirs


def _destroy(pair: tuple[Ranks, Ranks]) -> None:
    for ranks in pair:
        if ranks.rank >= 0:
            dist.destroy_process_group(ranks.group)


def compare_programs(numbers: Sequence[int]) -> tuple[Counter[str], list[str]]:
    """Run programs, on each rank of a group that there is.

    Returns:
        How many ended in which way, and the programs that differ, in words.
    """
    everybody = list(range(dist.get_world_size()))
    counts: Counter[str] = Counter()
    differing: list[str] = []
    pairs: dict[bool, tuple[Ranks, Ranks]] = {}
    for number in numbers:
        if number % _TOGETHER == 0:  # what has failed once stays so
            for pair in pairs.values():
                _destroy(pair)
            pairs.clear()
        is_part = len(everybody) > 2 and number % 4 == 0
        members = everybody[1:] if is_part else everybody
        if is_part not in pairs:
            pairs[is_part] = _groups(members)
        if dist.get_rank() not in members:
            continue
        program = _program(number)
        ours_ranks, _ = pairs[is_part]
        ours, theirs = (_outcome(program, ranks, number) for ranks in pairs[is_part])
        told = _difference(ours, theirs)
        kind = "errors alike" if isinstance(ours, str) and not told else "equal"
        if isinstance(theirs, str) and not isinstance(ours, str):
            kind = "not in Gloo"
        elif told and _is_gloos_own(program, ours_ranks, ours, theirs):
            kind = "Gloo's own"
        elif told:
            kind = "differ"
            differing.append(f"program {number} {[step.kind for step in program]}: {told}")
        counts[kind] += 1
    return counts, differing


def _run(rank: int, size: int, numbers: Sequence[int], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "taihu", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    counts, differing = compare_programs(numbers)
    Path(folder, f"{rank}.json").write_text(json.dumps({"counts": counts, "differing": differing}))
    dist.destroy_process_group()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=2000, help="of each number of ranks")
    parser.add_argument("--ranks", default="2,3")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first program")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows: dict[str, Any] = {}
    for size in map(int, options.ranks.split(",")):
        numbers = range(options.seed, options.seed + options.programs)
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(_run, (size, numbers, folder), size)
            parts = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(size)]
        counts = {kind: max(part["counts"].get(kind, 0) for part in parts) for kind in _KINDS}
        differing = sorted({text for part in parts for text in part["differing"]})
        rows[f"{size} ranks"] = {"programs": options.programs, **counts, "differing": differing}
        print(f"{size} ranks: {options.programs} programs, {counts}, {len(differing)} differ")
        print(*differing[:_SHOWN], sep="\n")
    if options.json is not None:
        options.json.write_text(in_lines(rows) + "\n")
    return int(any(row["differing"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
