"""Passes of all workers' examples through the fully connected layers (docs/methods.md section 4). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, get_args

from taihu.core.base.errors import ConfigError
from taihu.core.planner.partition import slice_bounds

Scheme = Literal["gather", "turns", "slices"]


@dataclass(frozen=True)
class Pass:
    """One pass: of rank r's examples those in [starts[r], stops[r]), rank after rank.

    `rows[r]` is the first row of rank r in the pass; `rows[-1]` is their number. Of all passes of a step, this one's
    rows begin at `first_row`.
    """

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    first_row: int

    @property
    def rows(self) -> tuple[int, ...]:
        """Prefix sums of the numbers of rows, one longer than there are ranks."""
        counts = (stop - start for start, stop in zip(self.starts, self.stops, strict=True))
        return (0, *accumulate(counts))


def plan_passes(scheme: Scheme, ranks: int, batch: int) -> tuple[Pass, ...]:
    """The passes of a step in which each of `ranks` workers has `batch` examples.

    `gather`: all examples in one pass. `turns`: pass r has all of rank r. `slices`: every pass has an equal part of
    everybody's; where the batch is smaller than the number of ranks there are fewer passes.

    Raises:
        ConfigError: there is no such scheme.
    """
    if scheme not in get_args(Scheme):
        raise ConfigError(f"exchange.fc_scheme {scheme!r}: expected one of {', '.join(get_args(Scheme))}")
    if scheme == "gather":
        cuts = [[(0, batch)] * ranks]
    elif scheme == "turns":
        cuts = [[(0, batch if rank == turn else 0) for rank in range(ranks)] for turn in range(ranks)]
    else:
        passes = min(ranks, batch)
        cuts = [[slice_bounds(batch, passes, part)] * ranks for part in range(passes)]
    made: list[Pass] = []
    first_row = 0
    for cut in cuts:
        one = _pass(cut, first_row)
        first_row += one.rows[-1]
        made.append(one)
    return tuple(made)


def _pass(cut: Sequence[tuple[int, int]], first_row: int) -> Pass:
    return Pass(tuple(start for start, _ in cut), tuple(stop for _, stop in cut), first_row)
