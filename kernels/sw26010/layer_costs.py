"""The cost of a network's layers on the processor, forward and backward, from their shapes alone.

Activations are fp32 and NHWC, as the engine has them; convolutions go through an explicit column matrix. Nothing is
computed here; the functional kernels count the same ledgers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from taihu.kernels.nn.window import Window
from taihu.kernels.sw26010 import passes
from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.product import plan_product
from taihu.kernels.sw26010.streams import Pass, plan_slabs
from taihu.kernels.sw26010.windows import WindowTask, plan_windows

Images = tuple[int, int, int, int]
_ITEM = 4


@dataclass(frozen=True)
class LayerCost:
    """The ledgers of one layer in one step."""

    forward: Ledger = field(default_factory=Ledger)
    backward: Ledger = field(default_factory=Ledger)


@dataclass(frozen=True)
class LinearParts:
    """The ledgers of a fully connected layer's products, with those of its bias."""

    forward: Ledger
    weight_gradients: Ledger
    input_gradient: Ledger


def _sum(*ledgers: Ledger) -> Ledger:
    total = ledgers[0]
    for ledger in ledgers[1:]:
        total = total.then(ledger)
    return total


def _pass(task: Pass, rows: int, width: int, core_groups: int) -> Ledger:
    slabs = plan_slabs(task, rows, width, itemsize=_ITEM, core_groups=core_groups)
    return _sum(*(plan.cost() for _, plan in slabs))


def _product(m: int, n: int, k: int, orders: str, core_groups: int) -> Ledger:
    return plan_product(m, n, k, itemsize=_ITEM, orders=orders, core_groups=core_groups).cost()


def positions_of(images: Images, window: Window) -> tuple[int, int]:
    """(OH, OW) of a convolution."""
    size, stride, padding = window
    height, width = ((side + 2 * padding - size) // stride + 1 for side in images[1:3])
    return height, width


def convolution_cost(
    images: Images,
    filters: int,
    window: Window,
    *,
    groups: int = 1,
    bias: bool = True,
    input_gradient: bool = True,
    core_groups: int = 1,
) -> LayerCost:
    """A convolution by im2col and products; backward makes the columns again, for the gradient of the weights.

    Args:
        images: (B, H, W, C) of the input.
        filters: channels of the output.
        window: size, stride and padding.
        groups: into which channels and filters are cut.
        bias: whether there is one.
        input_gradient: whether backward makes the gradient of the input.
        core_groups: 1 to 4.
    """
    batch, height, width, channels = images
    sides = positions_of(images, window)
    rows, depth, own = batch * sides[0] * sides[1], channels // groups * window.size**2, filters // groups
    one: Images = (batch, height, width, channels // groups)
    copy = [_pass(passes.COPY, batch * height * width, channels // groups, core_groups)] if groups > 1 else []
    pointwise = window == (1, 1, 0)

    def task(name: WindowTask) -> list[Ledger]:
        return [] if pointwise else [plan_windows(name, one, sides, window, _ITEM, core_groups).cost()]

    forward = [*copy, *task("im2col"), _product(rows, own, depth, "CCC", core_groups)] * groups
    backward = [*copy, *task("im2col"), _product(depth, own, rows, "FCC", core_groups)] * groups
    if input_gradient:
        backward += [_product(rows, depth, own, "CFC", core_groups), *task("col2im"), *copy] * groups
    if bias:
        forward.append(_pass(passes.ADD_BIAS, rows, filters, core_groups))
        backward.append(_pass(passes.COLUMN_SUMS, rows, filters, core_groups))
    return LayerCost(_sum(*forward), _sum(*backward))


def linear_cost(
    batch: int, inputs: int, units: int, *, bias: bool = True, input_gradient: bool = True, core_groups: int = 1
) -> LayerCost:
    """A fully connected layer, (B, inputs) by (inputs, units)."""
    parts = linear_parts(batch, inputs, units, bias=bias, core_groups=core_groups)
    gradients = parts.weight_gradients
    return LayerCost(parts.forward, gradients.then(parts.input_gradient) if input_gradient else gradients)


def linear_parts(batch: int, inputs: int, units: int, *, bias: bool = True, core_groups: int = 1) -> LinearParts:
    """The three products of `linear_cost`, each for itself; of no examples nothing."""
    if not batch:
        return LinearParts(Ledger(), Ledger(), Ledger())
    forward = [_product(batch, units, inputs, "CCC", core_groups)]
    weights = [_product(inputs, units, batch, "FCC", core_groups)]
    if bias:
        forward.append(_pass(passes.ADD_BIAS, batch, units, core_groups))
        weights.append(_pass(passes.COLUMN_SUMS, batch, units, core_groups))
    back = _product(batch, inputs, units, "CFC", core_groups)
    return LinearParts(_sum(*forward), _sum(*weights), back)


def batch_norm_cost(rows: int, channels: int, *, core_groups: int = 1) -> LayerCost:
    """Batch normalisation over `rows` rows."""
    forward, backward = (
        _sum(*(_pass(task, rows, channels, core_groups) for task in tasks))
        for tasks in (
            (passes.MOMENTS, passes.SCALE_SHIFT),
            (passes.GRADIENT_MOMENTS, passes.NORMALIZE_GRADIENT),
        )
    )
    return LayerCost(forward, backward)


def pooling_cost(
    images: Images, positions: tuple[int, int], window: Window, *, maximum: bool, core_groups: int = 1
) -> LayerCost:
    """Maximum or average pooling of `images` (B, H, W, C) at (OH, OW) positions."""
    tasks: tuple[WindowTask, WindowTask] = ("max", "max gradient") if maximum else ("average", "average gradient")
    forward, backward = (plan_windows(task, images, positions, window, _ITEM, core_groups).cost() for task in tasks)
    return LayerCost(forward, backward)


def elementwise_cost(forward: Pass, backward: Pass | None, elements: int, *, core_groups: int = 1) -> LayerCost:
    """One pass over elements in each direction, or none backward."""
    ledgers = [Ledger() if task is None else _pass(task, elements, 1, core_groups) for task in (forward, backward)]
    return LayerCost(*ledgers)


def copy_cost(pixels: int, channels: int, *, core_groups: int = 1) -> LayerCost:
    """A copy of an activation in each direction."""
    moved = _pass(passes.COPY, pixels, channels, core_groups)
    return LayerCost(moved, moved)


def update_cost(elements: int, *, momentum: bool = True, core_groups: int = 1) -> Ledger:
    """SGD over all parameters."""
    return _pass(passes.SGD_MOMENTUM if momentum else passes.SGD, elements, 1, core_groups)
