"""A server's shard between two steps, as named numbers and arrays that any format can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from taihu.core.base.errors import ModelError
from taihu.core.base.words import counted

__all__ = ["Snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """The state of one server's shard after `step`; see `ServerShard.snapshot`.

    Attributes:
        step: the last step that all parameters have been updated by, 0 for the initial ones.
        plan: the version of the plan that the state is divided by.
        arrays: copies by name, each of one dimension: `parameters` (n,) fp32, `optimizer.NAME` (n,) fp32, and with
            DoubleSqueeze `residual` (n,) fp32, `thresholds` (units,) fp32, `ages` and `kept` (units,) int64, a unit
            being a frame or what it covers of a layer. None in stage 0 of ZeRO, where the workers have all there is.
    """

    step: int
    plan: int
    arrays: Mapping[str, NDArray[Any]]

    @property
    def keeps_nothing(self) -> bool:
        """Whether the workers have all there is, so that only the step is to be remembered."""
        return not self.arrays

    def check(self, expected: Mapping[str, NDArray[Any]]) -> None:
        """Raise ModelError unless the arrays have the names, shapes and types of `expected`."""
        if self.arrays.keys() != expected.keys():
            raise ModelError(
                f"snapshot of step {self.step} holds {_listed(self.arrays)}, expected {_listed(expected)}; continue "
                "with the settings that wrote it"
            )
        for name, array in self.arrays.items():
            own = expected[name]
            if array.shape != own.shape or array.dtype != own.dtype:
                raise ModelError(
                    f"snapshot of step {self.step}, {name}: got {array.dtype}{list(array.shape)}, expected "
                    f"{own.dtype}{list(own.shape)}; use the model, plan and number of servers that wrote it"
                )

    def __str__(self) -> str:
        held = counted(len(self.arrays), "array") if self.arrays else "nothing, the workers have all there is"
        return f"step {self.step}, plan {self.plan}: {held}"


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names)) or "nothing"
