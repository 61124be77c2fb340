"""Cases that seeds stand for: a job, who supervises it, the order of tasks, and faults. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from taihu.explore.faults import Fault, Kind
from taihu.explore.line_switches import LinesDraw

Marks = Mapping[tuple[str, str], int]
"""Counts of a calm run: how often each member passed each label."""

SUPERVISORS: Final = ("local", "early", "late", "twice", "never")
"""Those that start processes again: `taihu train`'s supervision, or another launcher with its habit."""

AGENTS: Final = "agents"
"""The supervisor of a run whose workers agents run: a launcher that starts all but workers again at once."""

# What goes wrong among many goes wrong among few, and these are run many times as often.
_SIZES: Final = (
    (1, 1),
    (1, 2),
    (1, 2),
    (1, 2),
    (2, 2),
    (2, 2),
    (2, 2),
    (1, 3),
    (2, 1),
    (2, 3),
    (3, 2),
    (1, 4),
    (3, 3),
)
# The share of jobs on one host, of those whose settings go together with that.
_SHARING: Final = 0.25
# The share of jobs with no checkpoint but the last, of those that hold their steps: on one host, and on several.
_KEPT_RARELY: Final = (0.5, 0.25)
# The share of jobs with local steps, of those likewise.
_STEPPING_LOCALLY: Final = 0.15
# The share of jobs whose rate rises, of those that hold something back.
_WARMING_UP: Final = 0.5
_SMALL: Final = {"data": {"name": "synthetic:1x8x8"}, "model": {"name": "small_cnn"}}
_MLP: Final = {"data": {"name": "synthetic:1x6x6"}, "model": {"name": "mlp"}}


@dataclass(frozen=True)
class Shape:
    """The job of a case.

    Attributes:
        servers: how many; 0 for a ring.
        workers: how many.
        steps: of the run.
        every_steps: between two checkpoints.
        settings: of the job beside these, by sections.
        step_s: virtual seconds that a worker computes in each step, about.
    """

    servers: int
    workers: int
    steps: int
    every_steps: int
    settings: Mapping[str, Mapping[str, Any]]
    step_s: float = 0.0

    @property
    def members(self) -> list[str]:
        """All members; the first one hosts the coordinator."""
        servers = [f"server {index}" for index in range(self.servers)]
        return servers + [f"worker {rank}" for rank in range(self.workers)]

    @property
    def is_on_one_host(self) -> bool:
        """Whether all processes run on one host, and share its memory."""
        return bool(self.settings["exchange"]["transport"] == "same-host")

    @property
    def holds_steps(self) -> bool:
        """Whether the members hold their last steps in memory."""
        return self.settings["train"].get("precision") != "fp16"

    def __str__(self) -> str:
        route = f"{self.servers} servers" if self.servers else "a ring"
        own = {f"{section}.{key}": value for section, keys in self.settings.items() for key, value in keys.items()}
        told = " ".join(f"{key}={value}" for key, value in sorted(own.items()))
        steps = f"{self.steps} steps of {self.step_s:g} s"
        return f"{route}, {self.workers} workers, {steps}, checkpoints every {self.every_steps}: {told}"


@dataclass(frozen=True)
class OrderDraw:
    """The order of tasks: at random with this share of points at which tasks are held up, or by priorities.

    Attributes:
        changes: points at which priorities change; None for an order at random.
        preempting: the share of points.
        holds: points at which tasks are held up, of the first ones; None for all.
        stalling: the share of points of an order at random at which tasks stand still for some time.
    """

    changes: int | None
    preempting: float = 0.0
    holds: int | None = None
    stalling: float = 0.0

    def __str__(self) -> str:
        most = "" if self.holds is None else f", the first {self.holds} times"
        if self.changes is None:
            return f"at random, held up at {self.preempting:.0%} of points, for long at {self.stalling:.1%}{most}"
        return f"by priorities that change {self.changes} times{most}"


@dataclass(frozen=True)
class Machines:
    """Machines that come to a run, each with an agent.

    Attributes:
        arrivals: of each, in seconds from the run's beginning.
        least: with fewer no worker gets an agent.
    """

    arrivals: tuple[float, ...]
    least: int = 1

    def __str__(self) -> str:
        return f"agents come after {', '.join(f'{each:g}' for each in self.arrivals)} s, at least {self.least}"


@dataclass(frozen=True)
class Case:
    """All that a run follows from.

    Without `between`, tasks are switched at points alone; without `machines`, the supervisor starts workers, too.
    """

    seed: int
    shape: Shape
    supervisor: str
    order: OrderDraw
    faults: tuple[Fault, ...] = field(default=())
    between: LinesDraw | None = None
    machines: Machines | None = None

    def lines(self) -> list[str]:
        """The case in words."""
        return [
            f"seed {self.seed}: {self.shape}",
            f"supervisor {self.supervisor}; order {self.order}",
            *([] if self.between is None else [str(self.between)]),
            *([] if self.machines is None else [str(self.machines)]),
            *(f"fault: {fault}" for fault in self.faults),
        ]


def shape_of(chance: Random) -> Shape:
    """Draw a job."""
    if chance.random() < 0.3:
        return _ring(chance)
    servers, workers = chance.choice(_SIZES)
    exchange: dict[str, Any] = {"kind": "server", "zero": chance.choice((1, 1, 2, 3))}
    return _shaped(chance, servers, workers, exchange)


def brought_together(shape: Shape) -> Shape:
    """The job, or the same on one host, which its settings may not go together with."""
    if Random(str(shape)).random() >= _SHARING:  # noqa: S311
        return shape
    exchange = {**shape.settings["exchange"], "transport": "same-host"}
    return replace(shape, settings={**shape.settings, "exchange": exchange})


def kept_rarely(shape: Shape) -> Shape:
    """The job, or the same with no checkpoint but the last, where its members hold their steps."""
    share = _KEPT_RARELY[not shape.is_on_one_host]
    if not shape.holds_steps or Random(f"rarely {shape}").random() >= share:  # noqa: S311
        return shape
    return replace(shape, every_steps=1000)


def stepping_locally(shape: Shape) -> Shape:
    """The job, or the same with two local steps in a step, which its settings may not go together with."""
    if Random(f"local {shape}").random() >= _STEPPING_LOCALLY:  # noqa: S311
        return shape
    exchange = {**shape.settings["exchange"], "local_steps": 2}
    return replace(shape, settings={**shape.settings, "exchange": exchange})


def warming_up(shape: Shape) -> Shape:
    """The job, or the same with a learning rate that rises for a while, where something is held back."""
    if "compression" not in shape.settings or Random(f"warm {shape}").random() >= _WARMING_UP:  # noqa: S311
        return shape
    optimizer = {**shape.settings["optimizer"], "warmup_steps": 4}
    return replace(shape, settings={**shape.settings, "optimizer": optimizer})


def _ring(chance: Random) -> Shape:
    exchange: dict[str, Any] = {"kind": "ring", "zero": chance.choice((0, 0, 1, 2))}
    workers = chance.choice((2, 2, 2, 2, 3, 3, 3, 4))
    if chance.random() < 0.2:
        exchange |= {"zero": 0, "fc": "shard", "fc_scheme": chance.choice(("gather", "turns", "slices"))}
    return _shaped(chance, 0, workers, exchange)


def _shaped(chance: Random, servers: int, workers: int, exchange: dict[str, Any]) -> Shape:
    exchange["transport"] = chance.choice(("grpc", "tcp", "tcp"))
    exchange["plan"] = chance.choice(("single", "single", "per-layer", "bucket:40kB", "bucket:40kB", "auto"))
    exchange["frame_bytes"] = chance.choice((16384, 65536, 262144))
    settings: dict[str, dict[str, Any]] = {
        name: dict(keys) for name, keys in chance.choice((_SMALL, _SMALL, _MLP)).items()
    }
    settings["train"] = {"batch": 4, "seed": chance.randrange(1, 4)}
    settings["optimizer"] = {"name": chance.choice(("sgd", "adam"))}
    if chance.random() < 0.35 and exchange.get("fc") is None and exchange["zero"] <= 1:
        settings["compression"] = _compression(chance, servers, str(settings["optimizer"]["name"]))
        exchange["plan"] = "bucket:40kB"
    elif chance.random() < 0.2 and exchange.get("fc") is None:
        settings["train"]["precision"] = chance.choice(("bf16", "fp16"))
        exchange["zero"] = max(2, exchange["zero"])
    elif chance.random() < 0.15:
        settings["train"]["recompute"] = "memory"
    settings["exchange"] = exchange
    steps = chance.choice((3, 3, 4, 6))
    if exchange["plan"] == "auto":
        exchange["calibration_steps"] = 4
        steps = 10
    every_steps = chance.choice((1, 2, 2, 3))
    return Shape(servers, workers, steps, every_steps, settings, chance.choice((0.0, 0.0, 0.02, 0.2)))


def _compression(chance: Random, servers: int, optimizer: str) -> dict[str, Any]:
    """Draw a method and what comes back; each method has state of its own that must outlive its process."""
    own: dict[str, Any] = {"method": chance.choice(("topk", "lags", "dlgs")), "density": 0.05}
    if servers:
        own["downlink"] = chance.choice(("dense", "exact", "doublesqueeze"))
    if own["method"] == "topk" and optimizer == "sgd" and own.get("downlink") != "dense":
        own["momentum_at"] = "workers"
    if own["method"] == "lags":
        own |= {"clip": "whole", "clip_norm": 0.5}
    if own["method"] == "dlgs":
        own["value_type"] = "int4"
        if own.get("downlink") == "exact":
            own["downlink_value_type"] = "int4"
    return own


def supervisor_of(chance: Random) -> str:
    """Draw who supervises."""
    return chance.choice(("local", "local", "local", *SUPERVISORS))


def order_of(chance: Random) -> OrderDraw:
    """Draw an order of tasks."""
    if chance.random() < 0.5:
        return OrderDraw(None, chance.choice((0.02, 0.2, 0.5, 0.8)), stalling=chance.choice((0.0, 0.003, 0.02)))
    return OrderDraw(chance.choice((1, 2, 3, 5)))


def faults_of(chance: Random, shape: Shape, supervisor: str, marks: Marks, lasted_s: float) -> tuple[Fault, ...]:
    """Draw faults of a case whose calm run passed `marks` within `lasted_s` virtual seconds."""
    count = chance.choice((0, 1, 1, 1, 1, 2, 2, 3))
    faults = [_fault(chance, shape.members, marks, lasted_s) for _ in range(count)]
    if shape.is_on_one_host:  # it would take all with it, and whoever could start them again
        faults = [replace(each, kind=Kind.KILL) if each.kind is Kind.POWER_LOSS else each for each in faults]
    return tuple(map(_leaving, faults)) if supervisor in _BRING_ANOTHER else tuple(faults)


def _leaving(fault: Fault) -> Fault:
    """Half of those that get SIGTERM from a launcher which starts processes again are to leave, as pods do."""
    leaves = fault.kind is Kind.TERMINATE and Random(str(fault)).random() < 0.5  # noqa: S311
    return replace(fault, kind=Kind.LEAVE) if leaves else fault


def _fault(chance: Random, members: Sequence[str], marks: Marks, lasted_s: float) -> Fault:
    kind = chance.choice(_DRAWN)
    member = chance.choice(members)
    seconds = chance.choice((0.05, 0.5, 2.0, 8.0, 20.0)) if kind.lasts else 0.0
    if kind is Kind.INTERRUPT:
        return Fault(kind, "run", after_s=round(chance.random() * lasted_s * 1.1, 6))
    # Labels alike, so that a farewell is as likely as one of a thousand locks.
    labels = [label for name, label in marks if name == member]
    if labels and chance.random() < 0.8:
        mark = chance.choice(labels)
        return Fault(kind, member, mark, nth=chance.randint(1, marks[member, mark]), seconds=seconds)
    return Fault(kind, member, after_s=round(chance.random() * lasted_s * 1.1, 6), seconds=seconds)


_BRING_ANOTHER: Final = frozenset({"early", "late", "twice"})
# A process that is killed is what most can go wrong with.
_DRAWN: Final = (
    *(kind for kind in Kind if kind not in (Kind.LEAVE, Kind.SUSPEND)),
    Kind.KILL,
    Kind.KILL,
    Kind.KILL,
    Kind.KILL,
    Kind.KILL,
    Kind.STOP,
    Kind.DROP,
    Kind.DROP_ONE,
)
