"""Memory of the examples that a worker keeps during a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.worker.data.base.dataset import ArrayExamples, Dataset, Examples
from taihu.worker.data.base.text import TextExamples
from taihu.worker.data.own.inputs import ArrayInputs, Inputs, Paired, is_mapped


def kept_bytes(dataset: Dataset) -> int:
    """Bytes of the arrays that `dataset` keeps in memory, and not in a file that is mapped."""
    owners = {id(owner): owner for part in (dataset.train, dataset.test) for owner in map(_owner, _arrays(part))}
    return sum(owner.nbytes for owner in owners.values() if not is_mapped(owner))


def _arrays(examples: Examples) -> Iterator[NDArray[Any]]:
    match examples:
        case ArrayExamples(inputs=inputs, values=values):
            yield from (inputs, values)
        case TextExamples(text=text, starts=starts):
            yield from (text, starts)
        case Paired(inputs=inputs, values=values, rows=rows):
            yield values
            yield from () if rows is None else (rows,)
            yield from _of_inputs(inputs)
        case _:
            return


def _of_inputs(inputs: Inputs) -> Iterator[NDArray[Any]]:
    if isinstance(inputs, ArrayInputs):
        yield inputs.array


def _owner(array: NDArray[Any]) -> NDArray[Any]:
    """The array whose memory this one is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
