"""Tables 1 and 2 of the ZeRO paper (Rajbhandari et al. 2020), computed, to the digits that are printed there.

Both are of model states in mixed precision with Adam, K = 12 bytes a parameter (docs/methods.md section 5).
"""

from __future__ import annotations

from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from typing import Final

from taihu.core.planner.memory import model_state_bytes
from taihu.core.traits.stages import STAGES

__all__ = ["memory_per_device", "model_sizes"]

_GB: Final = 10**9
_BILLION: Final = 10**9
_DEVICES: Final = (1, 4, 16, 64, 256, 1024)
# The column of 7.5 billion parameters is rounded, the others are cut off.
_MODELS: Final = (
    ("7.5B", 7_500_000_000, ROUND_HALF_UP),
    ("128B", 128 * _BILLION, ROUND_DOWN),
    ("1T", 1000 * _BILLION, ROUND_DOWN),
)
_MODEL_PARALLEL: Final = (1, 2, 4, 8, 16)
_DATA_PARALLEL: Final = 64
_DEVICE_BYTES: Final = 32 * _GB
_STAGES: Final = ("Pos", "Pos+g", "Pos+g+p")


def memory_per_device() -> list[list[str]]:
    """Table 1, after a title: GB of model states on each device, by the number of devices, for three models."""
    title = ["DP", *(f"{name} {stage}" for name, _, _ in _MODELS for stage in _STAGES)]
    return [
        title,
        *(
            [
                str(devices),
                *(
                    _gigabytes(parameters, devices, stage, rounding)
                    for _, parameters, rounding in _MODELS
                    for stage in (1, 2, 3)
                ),
            ]
            for devices in _DEVICES
        ),
    ]


def model_sizes() -> list[list[str]]:
    """Table 2, its left half: parameters of the largest model that 32 GB devices hold, 64 of which share data.

    The right half, models that the authors trained, is no computation. Rows of more model parallelism are multiples
    of the first one as it is printed.
    """
    per_device = [_rounded(_largest(stage), ROUND_DOWN, 1) for stage in range(4)]
    return [
        ["MP", "GPUs", "Baseline", *_STAGES],
        *(
            [str(degree), str(degree * _DATA_PARALLEL), *(_parameters(degree * size) for size in per_device)]
            for degree in _MODEL_PARALLEL
        ),
    ]


def _gigabytes(parameters: int, devices: int, stage: int, rounding: str) -> str:
    """Three digits, or all before the point, at most two of them behind it."""
    exact = Decimal(model_state_bytes(parameters, devices, STAGES[stage])) / _GB
    places = min(2, max(0, 3 - len(str(int(exact)))))
    return _plain(_rounded(exact, rounding, places))


def _largest(stage: int) -> Decimal:
    """Billions of parameters of which one device holds a part."""
    return Decimal(_DEVICE_BYTES) / Decimal(model_state_bytes(1, _DATA_PARALLEL, STAGES[stage])) / _BILLION


def _parameters(billions: Decimal) -> str:
    """`7.6B`, `128B`, from 500 billion on `0.5T`."""
    if billions < 500:
        return f"{_plain(billions)}B"
    return f"{_plain(_rounded(billions / 1000, ROUND_DOWN, 1))}T"


def _rounded(value: Decimal, rounding: str, places: int) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-places), rounding=rounding)


def _plain(value: Decimal) -> str:
    """Without zeros at the end behind the point."""
    text = str(value)
    return text.rstrip("0").rstrip(".") if "." in text else text
