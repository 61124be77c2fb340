"""The profile of a job: the measured costs of its steps, and what its compression sends.

Layers are numbered in backward order (0 is the output side, the L-th layer of the papers), as in
`taihu.core.model.layout`. Every cost of a group follows from sums over its layers, so that the costs of all groups
are a few array expressions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Annotated, Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from taihu.core.base.errors import ConfigError
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.fc_mode import FcLayer
from taihu.core.traits.methods import DLGS, METHODS, NONE, Method, Threshold

__all__ = [
    "Compression",
    "Downlink",
    "GroupSizes",
    "LayerCost",
    "LinearCost",
    "LinkCost",
    "Profile",
    "Threshold",
    "rice_bits_per_index",
]

Downlink = Literal["dense", "exact", "doublesqueeze"]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Array = NDArray[np.float64]

_DENSE_VALUE_BYTES: Final = 4
_VALUE_BYTES: Final = (0.25, 0.5, 1, 2, 4)
# Kiely, Selecting the Golomb parameter in Rice coding: the best parameter follows from the golden ratio.
_LOG_GOLDEN = np.log((np.sqrt(5.0) - 1.0) / 2.0)


@dataclass(frozen=True)
class LayerCost:
    """A layer's number of parameters, and the seconds that backward needs for it."""

    name: str
    elements: Annotated[int, Field(ge=0)]
    backward_seconds: Seconds


@dataclass(frozen=True)
class LinearCost:
    """Seconds of a pass over n elements: `base_seconds + n * seconds_per_element`."""

    base_seconds: Seconds
    seconds_per_element: Seconds


@dataclass(frozen=True)
class LinkCost:
    """The cost of a group's exchange for one worker while all workers exchange.

    `alpha_seconds` is charged once for each group, as time in which nothing else goes up: it holds the start-up
    of both directions and the server's fixed work.
    """

    alpha_seconds: Seconds
    up_seconds_per_byte: Seconds
    down_seconds_per_byte: Seconds


@dataclass(frozen=True)
class Profile:
    """The costs of one step, layers in backward order, on `workers` workers and `servers` servers.

    Without servers groups are summed around a ring of the workers; all of its time is then charged to the way up.
    `scan` is one compression that reuses its threshold, `top_k` one that selects exactly. `sparse_up_ratio` and
    `sparse_down_ratio` are measured bytes over those that would be sent if every threshold kept exactly k values and
    workers selected independently of each other; they do not, so that the union of what they push is smaller.
    `refresh_ratio` is the measured share of all selections of `dlgs` that were exact, 0 where it is not known: a
    threshold that selects too much or too little is made anew before its time.
    `fc_layers` are the fully connected ones, in forward order; `batch` is a worker's number of examples, 0 if
    unknown; a step has `local_steps` such batches, and all but the last backward of them counts as forward. Where all
    values are sent, each has `dense_value_bytes`: 4, or 2 in mixed precision. `compute` names the processor that
    forward and backward were modelled for; on "cpu" they were measured. `carriage` is what values between machines
    took, "" where that is not known or there was one machine.
    """

    layers: Annotated[tuple[LayerCost, ...], Field(min_length=1)]
    forward_seconds: Seconds
    scan: LinearCost
    top_k: LinearCost
    link: LinkCost
    workers: PositiveInt
    servers: Annotated[int, Field(ge=0)]
    sparse_up_ratio: PositiveFloat = 1.0
    sparse_down_ratio: PositiveFloat = 1.0
    fc_layers: tuple[FcLayer, ...] = ()
    batch: Annotated[int, Field(ge=0)] = 0
    local_steps: PositiveInt = 1
    dense_value_bytes: Literal[2, 4] = _DENSE_VALUE_BYTES
    compute: str = "cpu"
    carriage: Literal["", "grpc", "tcp", "trial"] = ""
    refresh_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0

    @property
    def layout(self) -> Layout:
        """A layout with layers of these names and sizes; each is one tensor."""
        return Layout(tuple(LayerSpec(c.name, (TensorSpec("all", (c.elements,)),)) for c in self.layers))

    def with_workers(self, workers: int) -> Profile:
        """The same job with another number of workers.

        A server's link carries the bytes of `workers / servers` workers; a worker's own link bounds it from below. On
        a ring every link carries the bytes of its own worker.
        """
        if not self.servers:
            return replace(self, workers=workers)
        ratio = max(workers / self.servers, 1.0) / max(self.workers / self.servers, 1.0)
        link = replace(
            self.link,
            up_seconds_per_byte=self.link.up_seconds_per_byte * ratio,
            down_seconds_per_byte=self.link.down_seconds_per_byte * ratio,
        )
        return replace(self, link=link, workers=workers)

    def to_json(self) -> dict[str, Any]:
        """A JSON object of numbers, texts, lists and objects under the names of the fields."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Profile:
        """The profile that `to_json` wrote.

        Raises:
            ConfigError: a key is missing, of the wrong type or out of range.
        """
        try:
            return _reader().validate_json(json.dumps(data), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            seen = "" if first["type"] == "missing" else f", got {str(first['input'])[:60]}"
            raise ConfigError(f"profile: {where + ': ' if where else ''}{first['msg']}{seen}") from None


@cache
def _reader() -> TypeAdapter[Profile]:
    # Pydantic takes milliseconds to make one: not each process that imports this reads a profile.
    return TypeAdapter(Profile)


@dataclass(frozen=True)
class GroupSizes:
    """Sizes that costs of groups depend on, arrays of one shape: `elements`, and number of `layers`.

    `kept` is the number of values that one worker sends.
    """

    elements: Array
    layers: Array
    kept: Array


@dataclass(frozen=True)
class Compression:
    """The values that are sent of a group; with `method` none all are, and most of the rest has no meaning.

    The unit that shares a threshold is the layer for `lags`, for `dlgs` the layer or the group; for `topk` it is the
    whole model, which therefore is one group. Of a unit of d elements max(1, ceil(density * d)) are kept. All units
    of a group are selected from by one call: what a call costs is charged for each group, not for each unit.

    Attributes:
        method: docs/methods.md section 1.5.
        density: share of values kept, in (0, 1].
        refresh_every: steps from one exact selection of `dlgs` to the next (the paper's s).
        value_bytes: bytes of a kept value: 4, 2, or 1, 1/2 or 1/4 of few bits.
        downlink: answers with every value (`dense`), with the fp32 values that any worker pushed (`exact`), or
            compressed once more (`doublesqueeze`); docs/methods.md section 1.6.
        frame_bytes: dense bytes that one frame covers at most.
        frame_header_bytes: bytes of a frame beside its payload.
        section_header_bytes: bytes of a sparse section, one for each layer and server, beside its indices.
        threshold: what shares a threshold of `dlgs`: `layer` or `group`.
        down_value_bytes: bytes of a value that comes back where any worker pushed one, as `value_bytes`.

    Raises:
        ConfigError: a value is none of these.
    """

    method: Method = DLGS
    density: float = 0.01
    refresh_every: int = 32
    value_bytes: float = 4
    downlink: Downlink = "exact"
    frame_bytes: int = 1 << 19
    frame_header_bytes: int = 64
    section_header_bytes: int = 4
    threshold: Threshold = "layer"
    down_value_bytes: float = 4

    def __post_init__(self) -> None:
        known = {
            "downlink": get_args(Downlink),
            "value_bytes": _VALUE_BYTES,
            "down_value_bytes": _VALUE_BYTES,
            "threshold": get_args(Threshold),
        }
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                expected = ", ".join(map(str, choices))
                raise ConfigError(f"compression.{name} {getattr(self, name)!r}: expected one of {expected}")
        if not 0 < self.density <= 1:
            raise ConfigError(f"compression.density {self.density}: expected a share above 0 and at most 1")
        for name in ("refresh_every", "frame_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"compression.{name} {getattr(self, name)}: expected at least 1")

    @classmethod
    def of_results(cls, results: Mapping[str, Any]) -> Compression:
        """The compression of a run, from its results; those without its keys are of a run that had none.

        Raises:
            ConfigError: a key has a value that none can have.
        """
        none = cls(NONE)
        try:
            method = METHODS[results.get("compression", NONE)]
        except ConfigError as error:
            raise ConfigError(f"compression.method: {error}") from None
        if not method.selects:
            return none
        density, refresh_every = results.get("density"), results.get("refresh_every", none.refresh_every)
        if not isinstance(density, float | int) or not isinstance(refresh_every, int):
            raise ConfigError(f"density {density!r}, refresh_every {refresh_every!r}: expected numbers")
        downlink = results.get("downlink", none.downlink)
        # Results from before there was a choice are of thresholds by group.
        threshold = results.get("threshold", "group" if method.reuses else none.threshold)
        return cls(method, density, refresh_every, downlink=downlink, threshold=threshold)

    def sizes(self, profile: Profile, first: NDArray[np.int64], last: NDArray[np.int64]) -> GroupSizes:
        """Sizes of the groups of layers `first` to `last`, both included; the arrays have one shape."""
        layer_elements = np.array([layer.elements for layer in profile.layers])
        elements = _range_sums(layer_elements, first, last)
        layers = (last - first + 1).astype(np.float64)
        if not self.method.selects:
            return GroupSizes(elements, layers, elements)
        if self.method.unit_by(self.threshold) == "layer":
            return GroupSizes(elements, layers, _range_sums(self._kept(layer_elements), first, last))
        return GroupSizes(elements, layers, self._kept(elements))

    def seconds(self, profile: Profile, sizes: GroupSizes) -> Array:
        """Seconds to compress each group, mean over all steps (docs/methods.md section 1.3)."""
        if not self.method.selects:
            return np.zeros_like(sizes.elements)
        exact, reused = (
            cost.base_seconds + sizes.elements * cost.seconds_per_element for cost in (profile.top_k, profile.scan)
        )
        ratio = max(1.0 / self.refresh_every, profile.refresh_ratio) if self.method.reuses else 1.0
        if self.method.sends_all:
            ratio = 0.0
        return ratio * exact + (1.0 - ratio) * reused

    def up_bytes(self, profile: Profile, sizes: GroupSizes) -> Array:
        """Bytes that one worker sends for each group."""
        if not self.method.selects:
            return self._dense_bytes(profile, sizes)
        own = self._sparse_bytes(profile, sizes, sizes.kept, self.value_bytes)
        if not profile.servers:
            own = self._peer_bytes(profile, sizes, own)
        return profile.sparse_up_ratio * own

    def down_bytes(self, profile: Profile, sizes: GroupSizes) -> Array:
        """Bytes that one worker receives for each group; on a ring, where bytes go both ways at once, none."""
        if not profile.servers:
            return np.zeros_like(sizes.elements)
        if not self.method.selects or self.downlink == "dense":
            return self._dense_bytes(profile, sizes)
        if self.downlink == "doublesqueeze":
            return profile.sparse_down_ratio * self._sparse_bytes(profile, sizes, sizes.kept, self.value_bytes)
        union = self._sparse_bytes(profile, sizes, _union(profile, sizes), self.down_value_bytes)
        return profile.sparse_down_ratio * union

    def frames(self, profile: Profile, sizes: GroupSizes) -> Array:
        """Frames in which each group goes to each server, or around the ring, at least one."""
        covered = sizes.elements * _DENSE_VALUE_BYTES / max(1, profile.servers)
        return np.maximum(1.0, np.ceil(covered / self.frame_bytes))

    def _peer_bytes(self, profile: Profile, sizes: GroupSizes, own: Array) -> Array:
        """Bytes that one worker sends by the route of the fewest, see `taihu.core.planner.sparse_route`."""
        others = profile.workers - 1
        union = self._sparse_bytes(profile, sizes, _union(profile, sizes), _DENSE_VALUE_BYTES)
        fewest = np.minimum(others * own, others / profile.workers * (own + union))
        if self.downlink == "doublesqueeze":
            fewest = np.minimum(fewest, 2.0 * others.bit_length() * own)
        return fewest

    def _kept(self, elements: Array) -> Array:
        return np.minimum(elements, np.maximum(1.0, np.ceil(self.density * elements)))

    def _dense_bytes(self, profile: Profile, sizes: GroupSizes) -> Array:
        size_bytes = profile.dense_value_bytes * sizes.elements
        if not profile.servers:
            return 2.0 * (profile.workers - 1) / profile.workers * size_bytes
        return size_bytes + self._frame_headers(profile, sizes)

    def _sparse_bytes(self, profile: Profile, sizes: GroupSizes, kept: Array, value_bytes: float) -> Array:
        """Values, Rice-coded indices and headers."""
        shares = kept / np.maximum(sizes.elements, 1.0)
        # Where all are kept, nothing says which.
        index_bytes = np.where(shares < 1.0, rice_bits_per_index(shares) / 8.0, 0.0)
        sections = self.section_header_bytes * profile.servers * sizes.layers
        return kept * (value_bytes + index_bytes) + sections + self._frame_headers(profile, sizes)

    def _frame_headers(self, profile: Profile, sizes: GroupSizes) -> Array:
        return self.frame_header_bytes * profile.servers * self.frames(profile, sizes)


def _range_sums(values: Array, first: NDArray[np.int64], last: NDArray[np.int64]) -> Array:
    until = np.concatenate(([0.0], np.cumsum(values)))
    return np.asarray(until[last + 1] - until[first])


def rice_bits_per_index(density: Array) -> Array:
    """Expected bits of a Rice-coded gap between selected values, with the best parameter for each density.

    Args:
        density: any shape, values in [0, 1]; gaps are taken as geometric (independent selection).
    """
    skipped = 1.0 - np.clip(density, 1e-12, 1.0 - 1e-12)
    parameter = np.maximum(0.0, 1.0 + np.floor(np.log2(_LOG_GOLDEN / np.log(skipped))))
    return np.asarray(parameter + 1.0 / (1.0 - skipped ** (2.0**parameter)))


def _union(profile: Profile, sizes: GroupSizes) -> Array:
    """The expected number of values that any worker keeps, when they select independently of each other."""
    left_out = (1.0 - sizes.kept / np.maximum(sizes.elements, 1.0)) ** profile.workers
    return sizes.elements * (1.0 - left_out)
