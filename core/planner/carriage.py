"""The carriage of values between machines: gRPC's streams, unless a trial showed connections beside it to be faster.

Frames hold the same bytes either way, so that results do not depend on it. All workers follow one plan, which says
which of both a step takes: a trial compares whole steps, in which links and processors are busy with one of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from taihu.core.planner.measurement import StepMeasurement

if TYPE_CHECKING:
    # It brings gRPC, which planning does not need.
    from taihu.core.wire.links.pipe import Carrier

Carriage = Literal["grpc", "tcp", "trial"]
"""gRPC's streams, connections beside it, or both in turns, to compare them."""
CARRIAGES: tuple[Carriage, ...] = get_args(Carriage)

_WORTHWHILE_GAIN = 0.03

Reports = Sequence[Sequence[StepMeasurement]]


def first_carriage(transport: str, *, one_host: bool, waits_for_groups: bool) -> Carriage:
    """The carriage that the first plan says.

    Args:
        transport: `exchange.transport`.
        one_host: only processes of this machine take part, which no firewall parts.
        waits_for_groups: layers are not merged as they will be yet, and the trial waits until they are.
    """
    if transport == "grpc":
        return "grpc"
    if transport != "auto" or one_host:
        return "tcp"
    return "grpc" if waits_for_groups else "trial"


def carrier_in(carriage: Carriage, step: int) -> Carrier:
    """The carrier of a step's values."""
    if carriage == "trial":
        return "grpc" if step % 2 else "tcp"
    return carriage


def carriers_of(carriage: Carriage) -> tuple[Carrier, Carrier]:
    """The carriers of the values of steps with even numbers, and with odd ones."""
    return carrier_in(carriage, 0), carrier_in(carriage, 1)


def faster_carrier(reports: Reports) -> Carrier:
    """The carrier that a trial has shown to be faster: connections where they are by more than 3 %, else gRPC.

    A step's exchange takes as long as the workers' do on average: one that is answered early begins the next step
    early, and waits in it for the others, so that the slowest one's time is partly that of the step before, by the
    other carrier. Steps that exchanged one group at a time are compared with their like. Steps of connections that
    were not there everywhere do not count: no firewall need let them pass.

    Args:
        reports: for each worker the steps that it measured during a trial.
    """
    totals: dict[Carrier, float] = {"grpc": 0.0, "tcp": 0.0}
    fell_back = {step.step for report in reports for step in report if _fell_back(step)}
    for serial in (False, True):
        of_workers: dict[int, list[float]] = {}
        for step in (step for report in reports for step in report if step.serial == serial):
            of_workers.setdefault(step.step, []).append(step.exchange_seconds)
        by_carrier = {
            carrier: [
                statistics.fmean(seconds)
                for step, seconds in of_workers.items()
                if carrier_in("trial", step) == carrier and step not in fell_back
            ]
            for carrier in totals
        }
        if all(by_carrier.values()):
            for carrier, seconds in by_carrier.items():
                totals[carrier] += statistics.median(seconds)
    return "tcp" if totals["tcp"] < totals["grpc"] * (1.0 - _WORTHWHILE_GAIN) else "grpc"


def _fell_back(step: StepMeasurement) -> bool:
    """Whether values took gRPC in a step of a trial that was for connections."""
    return carrier_in("trial", step.step) == "tcp" and "grpc" in step.path.split(" and ")


def steps_by(carrier: Carrier, reports: Reports) -> Reports:
    """Of the steps of a trial those that took `carrier`; all, where none of them exchanged one group at a time."""
    chosen = [[step for step in report if carrier_in("trial", step.step) == carrier] for report in reports]
    return chosen if all(any(step.serial for step in report) for report in chosen) else reports
