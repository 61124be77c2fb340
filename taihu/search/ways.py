"""The ways to run a job that are compared: exchange, compression, plan, spread layers, ZeRO, precision. Pure.

A way is what differs between them; laid over the job it is a job of its own, which its daemons would run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job, load_job
from taihu.core.job.loose import check_simulated
from taihu.core.job.settled import check_without_script
from taihu.core.traits.exchanges import RING, SERVER
from taihu.core.traits.methods import DLGS, LAGS, METHODS, NONE, QUANTIZED, TOPK, Method
from taihu.core.traits.stages import STAGES, Stage
from taihu.kernels.packing.few_bits import FEW_BITS

PRECISIONS: Final = ("fp32", "bf16", "fp16")
"""From the one that loses nothing on."""

_DENSITIES: Final = (0.1, 0.01, 0.001)
_METHODS: Final = (DLGS, LAGS, TOPK)
"""From the one that selects the least exactly on: what selecting costs the processors no model of links shows."""

_MORE: Final = math.inf  # than any stage
_WHOLE: Final = ("fp32", "fp32")
_PLANS: Final = ("auto", "single", "bucket:4MB")


@dataclass(frozen=True)
class Way:
    """One way to run a job.

    Attributes:
        servers: how many there are; 0 in a ring.
        beside: whether server i runs on the host of worker i.
        method: of compression.
        density: share of the gradient that is sent; 1 without compression.
        plan: how layers are merged.
        fc: what fully connected layers exchange.
        zero: the stage of ZeRO.
        precision: of what is exchanged.
        recompute: of activations.
        value_type: of what is sent of a compressed gradient.
        downlink_value_type: of what comes back of it.
    """

    servers: int
    beside: bool
    method: Method
    density: float
    plan: str
    fc: str
    zero: Stage
    precision: str
    recompute: str
    value_type: str = "fp32"
    downlink_value_type: str = "fp32"

    @classmethod
    def of(cls, job: Job, *, beside: bool) -> Way:
        """The way of a job as it is."""
        check_without_script(job)
        check_simulated(job)
        compression = job.compression
        return cls(
            job.servers,
            beside and job.servers > 0,
            compression.method,
            compression.share,
            job.exchange.plan,
            job.exchange.fc,
            job.stage,
            job.train.precision,
            job.train.recompute,
            compression.value_type if compression.method.selects else "fp32",
            compression.downlink_value_type,
        )

    def over(self, job: Job) -> Job:
        """The job run this way; what else it says stays, but what would have no effect.

        Raises:
            ConfigError: its other settings do not go with that.
        """
        tables: dict[str, dict[str, Any]] = job.model_dump(exclude={"name"}, exclude_unset=True)
        exchange, train = tables.setdefault("exchange", {}), tables.setdefault("train", {})
        cluster, compression = tables.setdefault("cluster", {}), tables.setdefault("compression", {})
        exchange |= {"kind": SERVER if self.servers else RING, "plan": self.plan, "fc": self.fc}
        exchange["zero"] = self.zero
        train |= {"precision": self.precision, "recompute": self.recompute}
        if self.servers:
            cluster["servers"] = self.servers
        else:
            cluster.pop("servers", None)
        if not self.method.selects:
            compression.clear()
        else:
            compression |= {"method": self.method, "density": self.density}
            for key in ("value_type", "downlink_value_type"):
                compression.pop(key, None)
                if getattr(self, key) != "fp32":
                    compression[key] = getattr(self, key)
        return load_job(None, tables, {"": {"name": job.name}})

    def changes(self, other: Way) -> int:
        """The number of settings in which two ways differ; where servers are is none where there are none."""
        ignored = "" if self.servers and other.servers else "beside"
        return sum(value != getattr(other, key) for key, value in vars(self).items() if key != ignored)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Way:
        """The way that `to_json` wrote."""
        return cls(**{**data, "method": METHODS[data["method"]], "zero": STAGES[data["zero"]]})

    def to_json(self) -> dict[str, Any]:
        """The way as results show it."""
        return {**vars(self), "method": self.method.key, "zero": self.zero.key}


@dataclass(frozen=True)
class Allowed:
    """The limits of what is tried.

    Attributes:
        min_density: no less of the gradient is sent.
        precisions: of what is exchanged, among `PRECISIONS`.
        hosts: no more are taken.
        min_bits: no value of a compressed gradient has fewer.
    """

    min_density: float
    precisions: tuple[str, ...]
    hosts: int
    min_bits: int = 32


@dataclass(frozen=True)
class Candidate:
    """A way to run the job, the job that does, and the number of settings in which that differs from what it is."""

    way: Way
    job: Job
    changes: int

    @property
    def hosts(self) -> int:
        """The hosts that it takes."""
        workers, servers = self.job.world.workers, self.way.servers
        return max(workers, servers) if self.way.beside else workers + servers

    @property
    def preference(self) -> tuple[float, ...]:
        """Less is better among those that are as fast: what is lost, what is changed, hosts; and then any order."""
        way = self.way
        place = (way.servers, way.zero.key, _METHODS.index(way.method) if way.method in _METHODS else -1)
        lost = (-way.density, -_bits_of(way.value_type), -_bits_of(way.downlink_value_type))
        return (*lost, PRECISIONS.index(way.precision), self.changes, self.hosts, *place)


def _bits_of(value_type: str) -> int:
    return FEW_BITS.get(value_type, 32 if value_type == "fp32" else 16)


def allowed_for(
    job: Job, hosts: int, min_density: float | None, precisions: Iterable[str] | None, min_bits: int | None = None
) -> Allowed:
    """The limits of a search: what the job loses itself, unless more is allowed; `hosts` 0 are as many as it takes.

    Raises:
        ConfigError: a limit is none, or there is no host for each worker.
    """
    compression, workers = job.compression, job.world.workers
    own = compression.share
    least = own if min_density is None else min_density
    if not 0 < least <= 1:
        raise ConfigError(f"--min-density {least:g}: expected a share above 0 and at most 1, for example 0.01")
    named = ("fp32", job.train.precision) if precisions is None else tuple(precisions)
    unknown = next((name for name in named if name not in PRECISIONS), None)
    if unknown is not None or not named:
        raise ConfigError(f"--precisions {unknown or ''}: expected some of {', '.join(PRECISIONS)}, with commas")
    if 0 < hosts < workers:
        raise ConfigError(
            f"machines.hosts {hosts}: the job has {workers} workers, each on a host of its own; give "
            f"{workers} hosts, or cluster.workers = {hosts}"
        )
    types = (compression.value_type, compression.downlink_value_type) if compression.method.selects else ("fp32",)
    bits = min(map(_bits_of, types)) if min_bits is None else min_bits
    if bits not in {32, 16, *FEW_BITS.values()}:
        raise ConfigError(f"--min-bits {bits}: expected 8, 4 or 2, or 32 for whole values")
    among = tuple(name for name in PRECISIONS if name in named)
    return Allowed(least, among, hosts or workers + job.servers, bits)


def candidates_of(
    job: Job, allowed: Allowed, fits: Callable[[Candidate], bool], spread: Callable[[Job], frozenset[str]]
) -> Iterator[Candidate]:
    """All ways to run `job` that are allowed and that its other settings go with, the job as it is first.

    ZeRO's higher stages and recomputation cost time and save memory: they are tried where it `fits` no other way.
    `spread` names the layers that a job would spread over its workers; ways that spread the same ones are one.
    """
    own = Way.of(job, beside=bool(job.servers) and job.world.workers + job.servers > allowed.hosts)
    seen = set[Way]()
    for base in (own, *_bases(own, job, allowed, _modes(own, job, spread))):
        for candidate in _thrifty(base, own, job, fits):
            is_own = candidate.way == own
            if candidate.way in seen or not (is_own or _is_new(candidate, own, spread)):
                continue
            if not _is_allowed(candidate, allowed):
                continue
            seen.add(candidate.way)
            yield candidate


def why_no_higher_stage(candidate: Candidate) -> str:
    """The reason why the settings of a way do not go with the next stage of ZeRO; "" where they do."""
    way = candidate.way
    higher = next((stage for stage in STAGES if stage.key > way.zero.key), None)
    if higher is None:
        return ""
    try:
        replace(way, zero=higher).over(candidate.job)
    except ConfigError as error:
        return str(error)
    return ""


def _is_allowed(candidate: Candidate, allowed: Allowed) -> bool:
    way = candidate.way
    beside = not way.beside or way.servers <= candidate.job.world.workers
    return (
        beside
        and way.density >= allowed.min_density
        and min(map(_bits_of, (way.value_type, way.downlink_value_type))) >= allowed.min_bits
        and way.precision in allowed.precisions
        and candidate.hosts <= allowed.hosts
    )


def _modes(own: Way, job: Job, spread: Callable[[Job], frozenset[str]]) -> Sequence[str]:
    """The modes of fully connected layers: only one where none of them can be spread."""
    whole = _candidate(
        replace(
            own,
            fc="shard",
            method=NONE,
            density=1.0,
            precision="fp32",
            zero=STAGES[1],
            value_type="fp32",
            downlink_value_type="fp32",
        ),
        own,
        job,
    )
    others = ("auto", "shard") if whole is not None and spread(whole.job) else ()
    return tuple(dict.fromkeys((own.fc, "data", *others)))


def _bases(own: Way, job: Job, allowed: Allowed, modes: Sequence[str]) -> Iterator[Way]:
    """All combinations but of ZeRO's stages and recomputation."""
    sent = [(NONE, 1.0, precision, *_WHOLE) for precision in allowed.precisions]
    selected = product(_METHODS, _densities(own, allowed.min_density))
    few = list(_few_bits(own, job, allowed.min_bits))
    sent += [(*each, "fp32", *types) for each, types in product(selected, (_WHOLE, *few))]
    sent += [(QUANTIZED, 1.0, "fp32", *types) for types in few]
    plans = tuple(dict.fromkeys((own.plan, *_PLANS)))
    for (servers, beside), (method, density, precision, up, down), fc in product(_exchanges(own, job), sent, modes):
        if not servers and (up, down) != _WHOLE:  # rings sum in fp32
            continue
        exchanged = replace(own, servers=servers, beside=beside, fc=fc, value_type=up, downlink_value_type=down)
        for plan in plans if not method.is_of_whole_model else ("auto",):
            yield replace(exchanged, method=method, density=density, precision=precision, plan=plan)


def _few_bits(own: Way, job: Job, least: int) -> Iterator[tuple[str, str]]:
    """Types of few bits, up and down: back they come where servers update some parameters alone."""
    rule, by = job.exchanged_optimizer.rule, job.compression.momentum_at
    comes_back = job.exchange.returns != "parameters" or (rule.is_linear and by != "servers")
    own_types = (own.value_type, own.downlink_value_type)
    for name in (name for name, bits in FEW_BITS.items() if bits >= least):
        yield name, name if comes_back else "fp32"
    if own_types != _WHOLE:
        yield own_types


def _exchanges(own: Way, job: Job) -> Iterator[tuple[int, bool]]:
    """Servers, and whether they are beside workers."""
    workers = job.world.workers
    yield (0, False)
    counts = {own.servers, workers, *(1 << power for power in range(workers.bit_length()))} - {0}
    yield from product(sorted(count for count in counts if count <= max(workers, own.servers)), (True, False))


def _densities(own: Way, least: float) -> Sequence[float]:
    """The densities that compressed gradients may have; none where nothing may be left out."""
    if least >= 1.0:
        return ()
    known = {own.density, least, *_DENSITIES} - {1.0}
    return sorted(density for density in known if density >= least)


def _thrifty(base: Way, own: Way, job: Job, fits: Callable[[Candidate], bool]) -> Iterator[Candidate]:
    """A way with the stages that cost no time, and with those that save memory if it takes them to fit.

    Where only a higher stage fits, a lower one with recomputation may be faster.
    """
    if base == own:
        yield Candidate(own, job, 0)
    stages = _stages(base)
    for recompute in ("none", own.recompute if own.recompute != "none" else "memory"):
        least = _MORE
        for zero in stages:
            candidate = _candidate(replace(base, zero=zero, recompute=recompute), own, job)
            if candidate is None or least < zero.key > 1:
                continue
            yield candidate
            if zero.key < least and fits(candidate):
                least = zero.key
        stages = [zero for zero in stages if zero.key < least > 1]


def _stages(way: Way) -> Sequence[Stage]:
    """The stages that go with what is sent."""
    if way.method.selects:
        return (STAGES[1] if way.servers else STAGES[0],)
    return [stage for stage in STAGES if way.precision == "fp32" or stage.divides_gradients]


def _candidate(way: Way, own: Way, job: Job) -> Candidate | None:
    try:
        return Candidate(way, way.over(job), way.changes(own))
    except ConfigError:
        return None


def _is_new(candidate: Candidate, own: Way, spread: Callable[[Job], frozenset[str]]) -> bool:
    """Whether no other way does the same: spreads these layers, and merges by this plan."""
    way, job = candidate.way, candidate.job
    if way.plan == "single" and not job.plans_by_measuring and own.plan != "single":
        return False
    if way.fc == "data":
        return True
    names = spread(job)
    if not names:
        return False
    if way.fc == "auto" or own.fc == "shard":
        return True
    auto = _candidate(replace(way, fc="auto"), own, job)
    return auto is None or spread(auto.job) != names
