"""Tables 1 and 2 of the ZeRO paper (Rajbhandari et al. 2020), computed, to the digits that are printed there.

Both are of model states in mixed precision with Adam, K = 12 bytes a parameter (docs/methods.md section 5). Two more
compute the bytes that its sentences name, beside what is printed: activations of transformers (sections 3.2 and 6.1),
and the models that one device trains without model parallelism (section 10.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Final

from taihu.core.planner.memory import model_state_bytes
from taihu.core.traits.stages import STAGES

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
_BATCH: Final = 32
_TOKENS: Final = 1024
_HALF_BYTES: Final = 2
# Values of a transformer's layer for each of its inputs' values, by the paper's first footnote of section 3.2.
_VALUES_OF_A_LAYER: Final = 12
_UNKNOWN: Final = "-"


@dataclass(frozen=True)
class _Transformer:
    """A model of the paper, and the GB that are printed for it.

    Attributes:
        name: its size.
        layers: of equal shape.
        width: of the hidden state.
        model_parallel: devices that divide each layer.
        all_printed: of all activations.
        kept_printed: with one a layer kept, and the others computed again.
        divided_printed: with those kept divided over the devices (Pa).
    """

    name: str
    layers: int
    width: int
    model_parallel: int = 1
    all_printed: str = _UNKNOWN
    kept_printed: str = _UNKNOWN
    divided_printed: str = _UNKNOWN


_TRANSFORMERS: Final = (
    _Transformer("1.5B", 48, 1600, all_printed="60", kept_printed="8"),
    _Transformer("100B", 125, 8192, kept_printed="60"),
    _Transformer("100B", 125, 8192, model_parallel=16, kept_printed="33", divided_printed="2"),
)
_TRAINED_ALONE: Final = (("Baseline", 0, 1, 1_400_000_000), ("Pos+g", 2, 128, 13_000_000_000))


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


def activations() -> list[list[str]]:
    """GB of a transformer's activations on a device in 16 bits, 32 sequences of 1,024 tokens, beside what is printed.

    Kept are the inputs of each layer, whole on every device that divides the model, or a part with Pa.
    """
    title = ["model", "layers", "width", "MP", "all", "printed", "kept inputs", "printed", "with Pa", "printed"]
    return [title, *map(_activation_row, _TRANSFORMERS)]


def _activation_row(model: _Transformer) -> list[str]:
    inputs = model.layers * model.width * _TOKENS * _BATCH * _HALF_BYTES
    every = _in_gb(_VALUES_OF_A_LAYER * inputs) if model.model_parallel == 1 else _UNKNOWN
    divided = _in_gb(inputs / model.model_parallel) if model.model_parallel > 1 else _UNKNOWN
    return [
        model.name,
        str(model.layers),
        str(model.width),
        str(model.model_parallel),
        every,
        model.all_printed,
        _in_gb(inputs),
        model.kept_printed,
        divided,
        model.divided_printed,
    ]


def trained_alone() -> list[list[str]]:
    """The largest models trained without model parallelism on 32 GB, and what their states leave of those."""
    title = ["method", "devices", "trained", "GB of states", "GB left", "states alone allow"]
    rows = []
    for name, stage, devices, parameters in _TRAINED_ALONE:
        states = model_state_bytes(parameters, devices, STAGES[stage])
        most = Decimal(_DEVICE_BYTES) / Decimal(model_state_bytes(1, devices, STAGES[stage])) / _BILLION
        trained = _parameters(Decimal(parameters) / _BILLION)
        allowed = _parameters(_rounded(most, ROUND_DOWN, 1))
        rows.append([name, str(devices), trained, _in_gb(states), _in_gb(_DEVICE_BYTES - states), allowed])
    return [title, *rows]


def _in_gb(count: float | Fraction) -> str:
    return f"{float(count) / _GB:.1f}"


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
