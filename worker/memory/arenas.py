"""The memory that a worker trains in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.core.job import Job
from taihu.core.traits.stages import STAGES, Stage
from taihu.core.wire.frames.headers import BYTES_PER_VALUE, ValueType
from taihu.core.wire.links.shared_memory import SharedBuffer, allocate_values
from taihu.worker.memory.half_arenas import HalfArenas
from taihu.worker.memory.pages import Pages


@dataclass(frozen=True)
class Arenas:
    """The worker's flat fp32 arrays of `layout.elements` values each; `shared` is the memory of the gradients.

    It is None where no other process can share it. `gradient_pages` and `parameter_pages` are there where the memory
    of a group can be given back while others are used. In mixed precision `half` holds what is exchanged instead.
    Where gradients alone travel in 16 bits, `gradients` has the dtype of `gradient_type`.
    """

    parameters: NDArray[np.float32]
    gradients: NDArray[Any]
    shared: SharedBuffer | None = None
    gradient_pages: Pages | None = None
    parameter_pages: Pages | None = None
    half: HalfArenas | None = None
    gradient_type: ValueType = ValueType.FP32

    @cached_property
    def value_type(self) -> ValueType:
        """The type of values that are exchanged."""
        return self.gradient_type if self.half is None else self.half.value_type

    @cached_property
    def sent(self) -> NDArray[Any]:
        """The gradients as they are sent, shape (elements,), of the dtype of `value_type`."""
        return self.gradients if self.half is None else self.half.gradients

    @cached_property
    def received(self) -> NDArray[Any]:
        """The parameters as they come, shape (elements,), of the dtype of `value_type`."""
        return self.parameters if self.half is None else self.half.parameters

    def forget_name(self) -> None:
        """Remove the name by which others find the shared memory, as `SharedBuffer.unlink`."""
        if self.shared is not None:
            self.shared.unlink()


def arenas_of(job: Job, elements: int) -> Arenas:
    """The arenas of a worker of `job`."""
    value_type = ValueType.named(job.train.precision)
    return allocate_arenas(elements, shared=job.shares_memory, stage=job.stage, value_type=value_type)


def allocate_arenas(
    elements: int, *, shared: bool, stage: Stage = STAGES[0], value_type: ValueType = ValueType.FP32
) -> Arenas:
    """Arenas of zeros for a stage of ZeRO, where values of `value_type` are exchanged.

    A stage that does not divide gradients exchanges these alone in 16 bits, and they lie in memory as they travel.

    With `shared`, other processes of this machine can map the gradients, if it has the memory; not from stage 2 on.
    """
    if not stage.divides_gradients:
        size = value_type.dtype.itemsize * elements
        values, buffer = allocate_values(-(-size // BYTES_PER_VALUE), shared=shared)
        gradients = values.view(value_type.dtype)[:elements]
        return Arenas(np.zeros(elements, dtype=np.float32), gradients, buffer, gradient_type=value_type)
    gradient_pages = Pages(elements)
    half = None if value_type is ValueType.FP32 else HalfArenas(elements, value_type, keeps=stage.keeps_halves)
    if not stage.divides_parameters and half is None:
        parameters = np.zeros(elements, dtype=np.float32)
        return Arenas(parameters, gradient_pages.values, gradient_pages=gradient_pages)
    parameter_pages = Pages(elements)
    return Arenas(
        parameter_pages.values,
        gradient_pages.values,
        gradient_pages=gradient_pages,
        parameter_pages=parameter_pages,
        half=half,
    )
