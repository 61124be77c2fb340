"""The order of parameters in the layout: that in which gradients were complete in worker 0's first backward.

A parameter has a number, its position in the model from the output side; `order[layer]` is the number of the one that
is this layer of the layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError
from taihu.core.model.layout import Layout

ORDER: Final = "order"
"""The name of the order in a state, shape (parameters,), int64; one that has none is in the order of numbers."""

_OF_VALUES: Final = ("residual", "velocity")
# Whatever else there is belongs to layers in their order, and is made anew where that is another.
_STAY: Final = (*_OF_VALUES, "squares", ORDER)


def whole_order(came: Iterable[int], count: int) -> tuple[int, ...]:
    """All numbers below `count`: those that `came` as they did, and the others behind them."""
    return tuple(dict.fromkeys([*came, *range(count)]))


def with_layers(layout: Layout, order: Sequence[int]) -> Layout:
    """The layout whose layer i is layer `order[i]` of `layout`."""
    return Layout(tuple(layout.layers[number] for number in order))


def order_of_state(arrays: Mapping[str, NDArray[Any]], layout: Layout) -> tuple[int, ...]:
    """The order in which a state of compression was kept, see `CompressionState.arrays`.

    Args:
        arrays: the state.
        layout: of the parameters in the order of their numbers.

    Raises:
        ConfigError: it belongs to other parameters.
    """
    seen, count = arrays["residual"].size, len(layout.layers)
    if seen != layout.elements:
        raise ConfigError(
            f"the state holds back {seen:,} values, expected {layout.elements:,}: load the state of a worker that "
            "trains the same parameters"
        )
    order = tuple(map(int, arrays.get(ORDER, np.arange(count)).tolist()))
    if sorted(order) != list(range(count)):
        raise ConfigError(
            f"the state is in an order of {len(order)} parameters, expected each of {count} once: load the state of "
            "a worker that trains the same parameters"
        )
    return order


def state_in_order(
    arrays: Mapping[str, NDArray[Any]], layout: Layout, order: Sequence[int]
) -> dict[str, NDArray[Any]]:
    """A state of compression as one that is kept in `order`; thresholds of another order are made anew.

    Args:
        arrays: the state.
        layout: of the parameters in the order of their numbers.
        order: of the state that is returned.

    Raises:
        ConfigError: it belongs to other parameters.
    """
    before = order_of_state(arrays, layout)
    if before == tuple(order):
        return dict(arrays)
    offsets = with_layers(layout, before).offsets
    layers = {number: slice(offsets[place], offsets[place + 1]) for place, number in enumerate(before)}
    moved = {name: array if name in _STAY else array[:0] for name, array in arrays.items()}
    moved[ORDER] = np.array(order, dtype=np.int64)
    for name in _OF_VALUES:
        if len(values := arrays[name]):
            moved[name] = np.concatenate([values[layers[number]] for number in order])
    return moved


def carried_over(
    arrays: Mapping[str, NDArray[Any]], before: Mapping[int, slice], after: Mapping[int, slice]
) -> dict[str, NDArray[Any]]:
    """A state of compression of other parameters: who stays keeps its values, and thresholds are made anew.

    Args:
        arrays: the state.
        before: the places of its parameters, by what they are known by.
        after: the places of the parameters of the state that is returned, which cover it.
    """
    elements = sum(place.stop - place.start for place in after.values())
    moved = {name: array if name in _STAY else array[:0] for name, array in arrays.items()}
    for name in _OF_VALUES:
        if len(values := arrays[name]):
            moved[name] = np.zeros(elements, dtype=values.dtype)
            for key, place in after.items():
                former = before.get(key)
                if former is not None and former.stop - former.start == place.stop - place.start:
                    moved[name][place] = values[former]
    return moved
