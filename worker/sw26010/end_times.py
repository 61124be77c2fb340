"""Times of a fully connected end of which a rank computes some columns, pass by pass: pure, nothing is timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from taihu.kernels.sw26010.layer_costs import LayerCost, linear_parts
from taihu.kernels.sw26010.ledger import Ledger
from taihu.worker.fc.stage import ComputedPart, StagePart
from taihu.worker.sw26010.times import LayerTime


@dataclass(frozen=True)
class EndTimes:
    """Modelled times of the end of a model on one rank.

    Attributes:
        layers: by name: what the rank computes of each in a step, in all passes.
        seconds: of a part of a layer, for so many examples.
    """

    layers: Mapping[str, LayerTime]
    seconds: Mapping[tuple[str, ComputedPart, int], float]


def end_times(parts: Sequence[StagePart], times: Mapping[str, LayerTime], core_groups: int) -> EndTimes:
    """The times of `parts`, which `times` has as layers that are whole on every rank.

    Elementwise layers behind a layer see as many values as on one rank: their times are shared out over the rows.

    Raises:
        BlockingError: a layer does not fit.
    """
    layers: dict[str, LayerTime] = {}
    seconds: dict[tuple[str, ComputedPart, int], float] = {}
    for part in parts:
        behind = [times[name] for name in part.behind if name in times]
        layers |= {each.name: each for each in behind}
        products = {
            rows: linear_parts(rows, part.inputs, part.width, bias=part.bias, core_groups=core_groups)
            for rows in {*part.rows, *part.gradient_rows}
        }
        for rows, product in products.items():
            share = rows / sum(part.rows)
            forward, backward = (
                share * sum(getattr(each, f"{direction}_seconds") for each in behind)
                for direction in ("forward", "backward")
            )
            seconds[part.name, "forward", rows] = product.forward.seconds + forward
            seconds[part.name, "input gradient", rows] = product.input_gradient.seconds + backward
            seconds[part.name, "weight gradients", rows] = product.weight_gradients.seconds
        cost = LayerCost(
            reduce(Ledger.then, (products[rows].forward for rows in part.rows)),
            reduce(
                Ledger.then,
                [products[rows].input_gradient for rows in part.rows]
                + [products[rows].weight_gradients for rows in part.gradient_rows],
            ),
        )
        layers[part.name] = LayerTime(part.name, times[part.name].kind, cost)
    return EndTimes(layers, seconds)
