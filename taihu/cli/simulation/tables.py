"""The rows of `taihu simulate`: in lines, and as results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from taihu.cli.simulation.inputs import Work
from taihu.core.base.words import aligned, counted
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.planner.memory import MemoryUse
from taihu.core.trace.parts import TracePart
from taihu.core.wire.frames.headers import BYTES_PER_VALUE
from taihu.local.display.display import human_bytes
from taihu.simulation.from_start import FirstSteps
from taihu.simulation.job import Simulated
from taihu.simulation.loss import Recovery
from taihu.simulation.placement import Placement

_COLUMNS: Final = (
    "step s",
    "compute s",
    "compress s",
    "exchange s",
    "wait s",
    "efficiency",
    "speed-up",
    "sent",
    "received",
)


@dataclass(frozen=True)
class Row:
    """One job's step and the memory of its processes; its first steps, or a loss, where these were asked for."""

    job: Job
    step: Simulated
    memory: dict[str, MemoryUse]
    first: FirstSteps | None = None
    recovery: Recovery | None = None

    @property
    def parts(self) -> tuple[TracePart, ...]:
        """The records of the processes."""
        return self.step.parts if self.recovery is None else self.recovery.parts

    @property
    def speed_up(self) -> float:
        """Over one worker alone."""
        return self.job.world.workers * self.step.efficiency

    def to_json(self) -> dict[str, Any]:
        """The row of the results."""
        return {
            "nodes": self.job.world.workers,
            "servers": self.job.servers,
            **self.step.to_json(),
            "speed_up": self.speed_up,
            "memory_per_process": {role: use.total for role, use in self.memory.items()},
            "memory_by_kind": {role: asdict(use) for role, use in self.memory.items()},
            **({} if self.first is None else _first_steps(self.first)),
            **({} if self.recovery is None else {"lost": self.recovery.to_json()}),
        }


def _first_steps(first: FirstSteps) -> dict[str, Any]:
    """The first steps as results show them."""
    return {"seconds_of_steps": list(first.seconds), "plans": [_plan(plan) for plan in first.plans]}


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "version": plan.version,
        "from_step": plan.from_step,
        "groups": len(plan.groups),
        "frame_bytes": plan.frame_elements * BYTES_PER_VALUE,
        "carriage": plan.carriage,
        "predicted_seconds": plan.predicted_seconds or None,
    }


def facts_of(job: Job, work: Work, placement: Placement) -> dict[str, Any]:
    """The facts of the results that all rows share."""
    compression = job.compression
    return {
        "model": job.model.name,
        "parameters": work.layout.elements,
        "batch": job.train.batch,
        "exchange": job.exchange.kind.key,
        "compression": compression.method.key,
        "density": compression.share,
        "zero": job.stage.key,
        "precision": job.train.precision,
        "recompute": job.train.recompute,
        "network": placement.network.name,
        "compute": work.compute.source,
        "seed": placement.seed,
    }


def described(job: Job, work: Work, placement: Placement, rows: Sequence[Row]) -> list[str]:
    """The result in lines: what was simulated, and a row for each step."""
    facts = facts_of(job, work, placement)
    keys = ("exchange", "compression", "zero", "precision", "recompute")
    how = ", ".join(f"{key} {facts[key]}" for key in keys)
    compute = "measured" if work.profile is not None else "modelled (sw26010)"
    lines = [
        f"{facts['model']}: {facts['parameters']:,} parameters, batch {facts['batch']}, {how}",
        f"network {facts['network']}, compute {compute}, seed {facts['seed']}",
    ]
    header = ["nodes", "servers", "groups", *_COLUMNS]
    return [
        *lines,
        *aligned([header, *map(_cells, rows)], left=0),
        *_memory_lines(rows[-1], work),
        *_plan_lines(rows[-1]),
        *_loss_lines(rows[-1]),
    ]


def _cells(row: Row) -> list[str]:
    step = row.step
    seconds = (step.seconds, step.compute_seconds, step.compress_seconds, step.exchange_seconds, step.wait_seconds)
    return [
        f"{row.job.world.workers:,}",
        f"{row.job.servers:,}",
        f"{len(step.plan.groups):,}",
        *(f"{each:.4g}" for each in seconds),
        f"{step.efficiency:.1%}",
        f"{row.speed_up:,.1f}",
        *map(human_bytes, step.worker_bytes),
    ]


def _memory_lines(row: Row, work: Work) -> list[str]:
    memory = ", ".join(f"{human_bytes(use.total)} a {role}" for role, use in row.memory.items())
    of = counted(row.job.world.workers, "node")
    activations = "without activations: the profile is of another model than the job"
    if work.knows_model:
        activations = f"with {human_bytes(row.memory['worker'].activations)} of activations, without the examples"
    lines = [
        "bytes sent and received are a worker's in a step",
        f"memory with {of}: {memory}, {activations}",
    ]
    if row.step.server_bytes is not None:
        sent, received = map(human_bytes, row.step.server_bytes)
        lines.append(f"a server's host sends {sent} and receives {received} in a step with {of}")
    return lines


def _plan_lines(row: Row) -> Iterator[str]:
    """The plans that the first steps ran by, and how long these took."""
    if row.first is None:
        return
    ends = [*(plan.from_step for plan in row.first.plans[1:]), len(row.first.seconds) + 1]
    for plan, end in zip(row.first.plans, ends, strict=True):
        of_plan = row.first.seconds[plan.from_step - 1 : end - 1]
        predicted = f", predicted {plan.predicted_seconds:.4g} s" if plan.predicted_seconds else ""
        yield (
            f"plan {plan.version} from step {plan.from_step}: {counted(len(plan.groups), 'group')}, frames of "
            f"{human_bytes(plan.frame_elements * BYTES_PER_VALUE)}, {plan.carriage}{predicted}; steps of "
            f"{min(of_plan):.4g} to {max(of_plan):.4g} s"
        )


def _loss_lines(row: Row) -> Iterator[str]:
    """A loss, and how the run went on."""
    if (found := row.recovery) is None:
        return
    back_s = found.loss.at_s + found.loss.restart_s
    yield (
        f"{found.loss.member} falls silent after {found.loss.at_s:g} s, in step {found.step}, and is back at "
        f"{back_s:g} s; given up at {found.noticed_s:.4g} s: {found.reason}"
    )
    yield (
        f"step {found.replayed} is replayed from {found.resumed_s:.5g} s on, as attempt {found.attempt}: "
        f"{found.seconds_lost:.4g} s lost"
    )
