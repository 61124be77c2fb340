"""Products whose outputs are spread over the workers: transfers of activations around those of the own columns.

The transfers are those of `allreduce.parts.shards` (docs/methods.md section 3). Every call begins with a small one in
which workers tell each other what they call, and with how many examples: these need not be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from itertools import accumulate
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch.autograd.function import once_differentiable

from taihu.allreduce.parts.mesh import Transfer
from taihu.allreduce.parts.shards import columns_to_rows, gather_rows, rows_to_columns, scatter_rows, sum_terms
from taihu.core.base.errors import RunError
from taihu.worker.engine.base.workspace import Workspace
from taihu.worker.fc.tail import Mover

_MARK: Final = "_taihu_spread"


class Call(IntEnum):
    """A use of a spread layer, which all workers make of it at the same time."""

    EVALUATION = 0
    FORWARD = 1
    FIRST_FORWARD = 2
    STATE = 3
    NORM = 4

    @property
    def label(self) -> str:
        """The call in words."""
        return (
            "a forward without gradients",
            "a forward",
            "a forward of inputs that need no gradient",
            "state_dict()",
            "clip_grad_norm_()",
        )[self]


class Spread:
    """This worker's part in the calls of layers that are spread over the workers; one thread calls it at a time.

    Copies of layers use the same one: it cannot be copied.

    Args:
        mover: moves parts between the workers.
        waits: called with whether this worker waits for others from now on.

    Attributes:
        names: of the layers, in an order that all workers have.
    """

    def __init__(self, mover: Mover, waits: Callable[[bool], None] = lambda _: None) -> None:
        self.rank, self.size = mover.rank, mover.size
        self.names: list[str] = []
        self._mover = mover
        self._waits = waits
        self._workspace = Workspace()

    def __deepcopy__(self, _: dict[int, Any]) -> Spread:
        return self

    def begin(self, call: Call, layer: int, number: float) -> NDArray[np.float64]:
        """The numbers that all workers bring to a call, by rank, shape (P,); valid until the next call.

        Args:
            call: of this worker.
            layer: position of the layer in `names`.
            number: of this worker.

        Raises:
            RunError: another worker calls something else.
            TaihuError: the workers cannot be reached.
        """
        table = self.room("calls", (self.size, 3), np.float64)
        table[self.rank] = call, layer, number
        self.move("call", gather_rows(self.rank, range(self.size + 1), table))
        others = np.flatnonzero((table[:, :2] != table[self.rank, :2]).any(axis=1))
        if len(others):
            theirs, their_layer = map(int, table[others[0], :2])
            raise RunError(
                f"worker {self.rank} is at {call.label} of {self.names[layer]}, worker {others[0]} at "
                f"{Call(theirs).label} of {self.names[their_layer]}: spread layers are called by all workers "
                "together, for evaluation and state_dict(), too"
            )
        numbers: NDArray[np.float64] = table[:, 2]
        return numbers

    def rows(self, call: Call, layer: int, own: int) -> tuple[int, ...]:
        """Prefix sums of the numbers of examples by rank, of which `own` are this worker's; see `begin`."""
        return (0, *accumulate(map(int, self.begin(call, layer, own))))

    def room(self, key: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """A buffer with arbitrary content, until the same key is taken again."""
        return self._workspace.take(key, shape, dtype)

    def start(self, name: str, transfer: Transfer) -> Callable[[], None]:
        """Start a transfer; returns what waits for its end."""
        arrived = self._mover.start(name, transfer)

        def wait() -> None:
            self._waits(True)
            try:
                arrived()
            finally:
                self._waits(False)

        return wait

    def move(self, name: str, transfer: Transfer) -> None:
        """Carry out a transfer."""
        self.start(name, transfer)()

    def whole(self, own: torch.Tensor, bounds: Sequence[int]) -> torch.Tensor:
        """The tensor of which rank r has rows [bounds[r], bounds[r + 1]), `own` here; on all ranks."""
        whole = torch.empty((bounds[-1], *own.shape[1:]), dtype=own.dtype)
        whole[bounds[self.rank] : bounds[self.rank + 1]] = own.detach()
        self.move("state", gather_rows(self.rank, bounds, whole.view(bounds[-1], -1).numpy()))
        return whole

    def total_norm(self, parameters: Iterable[torch.nn.Parameter]) -> torch.Tensor:
        """The 2-norm of all gradients, those of all workers' columns among them; the same bits on all workers."""
        squares = [0.0, 0.0]
        for parameter in parameters:
            if parameter.grad is not None:
                squares[is_spread(parameter)] += (
                    torch.linalg.vector_norm(parameter.grad, dtype=torch.float64).item() ** 2
                )
        rest, own = squares
        return torch.tensor(float(np.sqrt(rest + self.begin(Call.NORM, 0, own).sum())))


class Product(torch.autograd.Function):
    """x W^T + b for the examples of all workers, of which each computes its own columns, and gets its own rows.

    Gradients with respect to W and b are 1/P of the sum over all workers' examples: the means of P workers, as where
    gradients are exchanged. Those with respect to x are of this worker's own loss.
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]  # noqa: PLR0917 - what autograd passes on
        ctx,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        spread: Spread,
        layer: int,
        columns: tuple[int, ...],
        call: Call,
    ) -> torch.Tensor:
        """The outputs of the own examples.

        Args:
            ctx: of autograd.
            x: (m, K), the own examples, on the CPU; m may differ from worker to worker, and be 0.
            weight: (n, K), the own columns.
            bias: (n,) or None.
            spread: of this worker.
            layer: position of the layer in `spread.names`.
            columns: bounds of the columns of all ranks, N at the end.
            call: a kind of forward.

        Returns:
            (m, N), of the dtype of x.
        """
        rank, rows = spread.rank, spread.rows(call, layer, len(x))
        dtype, own = numpy_dtype(x), slice(rows[spread.rank], rows[spread.rank + 1])
        shape = rows[-1], x.shape[1]
        is_kept = call is not Call.EVALUATION
        whole = torch.empty(shape, dtype=x.dtype) if is_kept else torch.from_numpy(spread.room("x", shape, dtype))
        whole[own] = x
        spread.move("gather", gather_rows(rank, rows, whole.numpy()))
        y = spread.room("y", (rows[-1], len(weight)), dtype)
        torch.mm(whole, weight.T, out=torch.from_numpy(y))
        if bias is not None:
            y += bias.detach().numpy()
        outputs = torch.empty((len(x), columns[-1]), dtype=x.dtype)
        spread.move("regather", columns_to_rows(rank, rows, columns, y, outputs.numpy()))
        if is_kept:
            ctx.save_for_backward(whole, weight)
            ctx.spread, ctx.rows, ctx.columns, ctx.call = spread, rows, columns, call
        return outputs

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx, gradient: torch.Tensor):  # type: ignore[no-untyped-def]
        """The gradients of x (m, K), W (n, K) and b (n,), from that of the outputs (m, N)."""
        whole, weight = ctx.saved_tensors
        spread: Spread = ctx.spread
        rank, rows, dtype = spread.rank, ctx.rows, numpy_dtype(whole)
        dy = spread.room("dy", (rows[-1], len(weight)), dtype)
        mine = gradient.contiguous().numpy()
        spread.move("scatter", rows_to_columns(rank, rows, ctx.columns, mine, dy))
        returned = None if ctx.call is Call.FIRST_FORWARD else _Returning(spread, rows, dy, weight)
        dy *= dtype.type(1.0 / spread.size)
        dy_tensor = torch.from_numpy(dy)
        of_weight = torch.mm(dy_tensor.T, whole) if ctx.needs_input_grad[1] else None
        of_bias = dy_tensor.sum(0) if ctx.needs_input_grad[2] else None
        of_x = None if returned is None else returned.wait()
        return of_x, of_weight, of_bias, None, None, None, None


class _Returning:
    """Gradients of inputs on their way to the examples' owners, while gradients of weights are computed."""

    def __init__(self, spread: Spread, rows: Sequence[int], dy: NDArray[Any], weight: torch.Tensor) -> None:
        rank, inputs = spread.rank, weight.shape[1]
        terms = spread.room("dx", (rows[-1], inputs), dy.dtype)
        torch.mm(torch.from_numpy(dy), weight, out=torch.from_numpy(terms))
        self._rank = rank
        self._own = terms[rows[rank] : rows[rank + 1]]
        self._received = spread.room("received", (spread.size, *self._own.shape), dy.dtype)
        self._arrived = spread.start("scatter", scatter_rows(rank, rows, terms, self._received))

    def wait(self) -> torch.Tensor:
        """The gradient with respect to the own inputs, (m, K)."""
        self._arrived()
        total = np.empty_like(self._own)
        sum_terms(self._rank, self._own, self._received, total)
        return torch.from_numpy(total)


def numpy_dtype(tensor: torch.Tensor) -> np.dtype[Any]:
    """The dtype of a tensor of fp32 or fp64 values."""
    return np.dtype(np.float64 if tensor.dtype == torch.float64 else np.float32)


def mark(parameter: torch.nn.Parameter, is_own: bool) -> None:
    """Note that a parameter is this worker's columns, or was a whole layer that is spread now."""
    setattr(parameter, _MARK, is_own)


def is_spread(parameter: torch.Tensor) -> bool:
    """Whether it is this worker's columns of a spread layer: nobody else has them, and nothing of it is exchanged."""
    return getattr(parameter, _MARK, False) is True


def was_spread(parameter: torch.Tensor) -> bool:
    """Whether it was the whole of a layer that is spread now."""
    return getattr(parameter, _MARK, True) is False
