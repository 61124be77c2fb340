"""The choice of fully connected layers to spread over the workers, by what links do (docs/methods.md section 3).

Data-parallel, a layer of K inputs and N outputs exchanges its (K + 1) N gradients. Sharded by output columns over P
workers with M examples each, it moves activations instead: its inputs are gathered, (P - 1) M K values received by
each worker, and what leaves the last sharded layer in a row goes back to the examples' owners, M N (P - 1) / P
values; backward moves as much the other way. Between sharded neighbours only columns are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Final, Literal

Mode = Literal["data", "shard"]

_VALUE_BYTES: Final = 4
# Every combination of so many layers is compared; of more, each layer is looked at on its own.
_MOST_COMPARED: Final = 10


@dataclass(frozen=True)
class FcLayer:
    """One fully connected layer: K inputs, N outputs."""

    name: str
    inputs: int
    outputs: int


@dataclass(frozen=True)
class FcLinks:
    """Measured links: start-up seconds of a transfer and of the exchange of a gradient, and seconds per byte.

    `seconds_per_byte` is that of one worker's link in one direction.
    """

    transfer_seconds: float
    exchange_seconds: float
    seconds_per_byte: float


@dataclass(frozen=True)
class FcJob:
    """The number of examples of each worker, and who takes part; `servers` 0 stands for a ring."""

    batch: int
    workers: int
    servers: int


@dataclass(frozen=True)
class FcChoice:
    """The prediction for one layer, on its own, and what it is to be in the best combination of all.

    `rule` is what the inequality printed in the paper says, M P < (K + 1) N / (3 K + 2 N), which knows no latency.
    """

    layer: FcLayer
    data_seconds: float
    shard_seconds: float
    choice: Mode
    rule: Mode

    def to_json(self) -> dict[str, Any]:
        """The row of the results, under the names of the fields."""
        fields = asdict(self)
        return {**fields.pop("layer"), **fields}


def choose_fc(
    layers: Sequence[FcLayer], job: FcJob, links: FcLinks, *, insist: bool = False, leave_one: bool = False
) -> tuple[FcChoice, ...]:
    """Choose for `layers`, one behind the other in forward order, what takes the least time together.

    A layer with fewer outputs than there are workers stays data-parallel. With `insist`, everything else is sharded;
    with `leave_one`, not all layers are: the one of the fewest parameters stays.
    """
    modes = list(_fastest(layers, job, links, insist=insist))
    if leave_one and modes and "data" not in modes:
        modes[min(range(len(layers)), key=lambda index: layers[index].inputs * layers[index].outputs)] = "data"
    return tuple(
        FcChoice(
            layer,
            step_seconds([layer], ["data"], job, links),
            step_seconds([layer], ["shard"], job, links),
            mode,
            printed_rule(layer, job),
        )
        for layer, mode in zip(layers, modes, strict=True)
    )


def _fastest(layers: Sequence[FcLayer], job: FcJob, links: FcLinks, *, insist: bool) -> Sequence[Mode]:
    both: tuple[Mode, ...] = ("shard",) if insist else ("data", "shard")
    possible = [both if 1 < job.workers <= layer.outputs else ("data",) for layer in layers]
    if len(layers) <= _MOST_COMPARED:
        return min(product(*possible), key=lambda modes: step_seconds(layers, modes, job, links))
    return [
        min(modes, key=lambda mode: step_seconds([layer], [mode], job, links))
        for layer, modes in zip(layers, possible, strict=True)
    ]


def step_seconds(layers: Sequence[FcLayer], modes: Sequence[str], job: FcJob, links: FcLinks) -> float:
    """Seconds of communication of one step, nothing of it hidden."""
    others, batch = job.workers - 1, job.batch
    transfers, values = 0, 0.0
    exchanges = 0.0
    columns = False  # whether activations lie by columns
    for layer, mode in zip(layers, modes, strict=True):
        if mode == "shard":
            transfers += 1
            values += others * batch * layer.inputs
        else:
            if columns:
                transfers += 1
                values += batch * layer.inputs * others / job.workers
            exchanges += links.exchange_seconds + _gradient_bytes(layer, job) * links.seconds_per_byte
        columns = mode == "shard"
    if columns:
        transfers += 1
        values += batch * layers[-1].outputs * others / job.workers
    one_way = transfers * links.transfer_seconds + values * _VALUE_BYTES * links.seconds_per_byte
    return exchanges + 2.0 * one_way


def printed_rule(layer: FcLayer, job: FcJob) -> Mode:
    """The choice by the paper's inequality."""
    examples = (layer.inputs + 1) * layer.outputs / (3 * layer.inputs + 2 * layer.outputs)
    return "shard" if job.batch * job.workers < examples else "data"


def _gradient_bytes(layer: FcLayer, job: FcJob) -> float:
    """Bytes that the busiest link carries in one direction for the layer's gradient."""
    size = _VALUE_BYTES * (layer.inputs + 1) * layer.outputs
    if job.servers:
        return size * max(job.workers / job.servers, 1.0)
    return 2.0 * (job.workers - 1) / job.workers * size
