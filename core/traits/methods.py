"""Methods of compression: the ranges that share a threshold, and how often it is made anew (docs/methods.md 1.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from taihu.core.traits.registry import Registry

UnitKind = Literal["model", "layer", "group"]
Threshold = Literal["layer", "group"]


@dataclass(frozen=True, repr=False)
class Method:
    """One method of compression.

    Attributes:
        key: its name in a job file.
        selects: whether something of the gradient is held back; else all of it is sent as it is.
        unit: the range from which the density keeps a share; None leaves it to `compression.threshold`.
        reuses: whether a threshold serves for `compression.refresh_every` steps; else every selection is exact.
        sends_all: whether every value is sent, in few bits, whatever the density.
        is_chosen: whether another one stands in for it before the first step, by what the run measures.
        selection: "module:function" that selects, see `taihu.core.compression.selecting`.
        codes: "module:function" that makes the codes in which gradients go, see `taihu.core.compression.coding`;
            empty where they go as values.
    """

    key: str
    selects: bool
    unit: UnitKind | None
    reuses: bool = False
    sends_all: bool = False
    is_chosen: bool = False
    selection: str = "taihu.core.compression.selecting:by_threshold"
    codes: str = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"

    def __str__(self) -> str:
        return self.key

    @property
    def holds_back(self) -> bool:
        """Whether a worker keeps something of its gradients for later steps."""
        return self.selects or bool(self.codes)

    @property
    def is_of_whole_model(self) -> bool:
        """Whether it selects from the whole gradient, which then is one group."""
        return self.unit == "model"

    def unit_by(self, threshold: Threshold) -> UnitKind:
        """The range from which the density keeps a share, where `compression.threshold` says so much."""
        return self.unit or threshold


NONE: Final = Method("none", selects=False, unit="group")
TOPK: Final = Method("topk", selects=True, unit="model")
LAGS: Final = Method("lags", selects=True, unit="layer")
DLGS: Final = Method("dlgs", selects=True, unit=None, reuses=True)

QUANTIZED: Final = Method(
    "quantized",
    selects=True,
    unit="layer",
    sends_all=True,
    selection="taihu.core.compression.selecting:everything",
)

AUTO: Final = Method("auto", selects=False, unit="group", is_chosen=True)

POWERSGD: Final = Method("powersgd", selects=False, unit="layer", codes="taihu.core.compression.low_rank:powersgd")

METHODS: Final = Registry(Method, "taihu.methods", (NONE, TOPK, LAGS, DLGS, QUANTIZED, POWERSGD, AUTO))
