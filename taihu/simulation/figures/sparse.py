"""The figure of docs/methods.md section 1.4: steps of three models through one server, dense and sparse."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from taihu.core.job import Job, load_job
from taihu.core.model.layout import Layout
from taihu.core.planner.profile import LinearCost
from taihu.core.traits.methods import DLGS, LAGS, NONE, TOPK, Method
from taihu.simulation.compute import Compute, of_modelled
from taihu.simulation.costs import costs_of
from taihu.simulation.figures.figure import Figure, Panel, Row, Series
from taihu.simulation.job import simulate_job
from taihu.simulation.machines import ethernet
from taihu.simulation.placement import Placement
from taihu.worker.engine import build_model
from taihu.worker.sw26010 import modelled_step

_PRINTED: Final = 1.99
_WORKERS: Final = 3
_BITS_PER_SECOND: Final = 2 * 25e9
_DENSITIES: Final = (0.1, 0.01)
_PLANS: Final = {NONE: "auto", TOPK: "single", LAGS: "per-layer", DLGS: "auto"}
_AUTO: Final = "`auto` takes the fewest groups within 2 % of the best plan"
_FASTER: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_SLOWEST, _FASTEST, _NEAR = 1 / 64, 1024.0, 1.01
_PROCESSORS: Final = "the paper has GPUs (RTX 4090) and one EPYC 7402 a host; compute here is a SW26010's"


@dataclass(frozen=True)
class Setting:
    """A model as the paper trains it: its input (H, W, C), classes, and a worker's batch."""

    name: str
    shape: tuple[int, int, int]
    classes: int
    batch: int


MODELS: Final = (
    Setting("resnet20", (32, 32, 3), 10, 32),
    Setting("vgg16_cifar", (32, 32, 3), 10, 32),
    Setting("resnet50", (224, 224, 3), 100, 64),
)


@dataclass(frozen=True)
class Step:
    """Seconds of a step by its parts, as far as nothing hides them; `selects` is all of selecting."""

    compute: float
    sparsify: float
    communicate: float
    selects: float

    @property
    def seconds(self) -> float:
        """Of the step."""
        return self.compute + self.sparsify + self.communicate


def work_of(setting: Setting, rate: float | None = None) -> tuple[Layout, Compute]:
    """The layers of the model, and what they take on an SW26010, or on what trains `rate` examples a second.

    Of a rate each layer has the share that it has on an SW26010.
    """
    model = build_model(setting.name, setting.shape, setting.classes)
    step = modelled_step(model, setting.shape, setting.batch)
    compute = of_modelled("sw26010", step.forward_seconds, step.backward_seconds)
    return model.layout, compute if rate is None else _faster(compute, rate * compute.seconds / setting.batch)


def step_of(layout: Layout, compute: Compute, method: Method, density: float = 1.0) -> Step:
    """A step of three workers and a server.

    What selecting adds to a step is what it would be shorter by if selecting took no time.
    """
    job = _job(method, density)
    placement = Placement(*ethernet(_BITS_PER_SECOND))
    whole = simulate_job(job, layout, compute, placement)
    if not method.selects:
        return Step(whole.compute_seconds, 0.0, whole.wait_seconds, 0.0)
    free = replace(
        costs_of(job, layout, compute, placement.network), scan=LinearCost(0.0, 0.0), top_k=LinearCost(0.0, 0.0)
    )
    waited = min(simulate_job(job, layout, compute, placement, free).wait_seconds, whole.wait_seconds)
    return Step(whole.compute_seconds, whole.wait_seconds - waited, waited, whole.compress_seconds)


def _job(method: Method, density: float) -> Job:
    compression = {"method": method, "density": density} if method.selects else {"method": method}
    cluster = {"workers": _WORKERS, "servers": 1}
    return load_job(None, {"cluster": cluster, "compression": compression, "exchange": {"plan": _PLANS[method]}})


Steps = Mapping[tuple[Method, float], Step]


def sparse_methods(rates: Mapping[str, float] = MappingProxyType({})) -> Figure:
    """Speed-up of DLGS, what of it others reach, and where the time of a step goes.

    Args:
        rates: examples a second that a worker trains, by model; others are those of an SW26010.
    """
    works = {setting.name: work_of(setting, rates.get(setting.name)) for setting in MODELS}
    steps = {name: _steps(*work) for name, work in works.items()}
    gains = {name: _gain(of_model) for name, of_model in steps.items()}
    rows = [
        Row(f"{name}, DLGS at 0.01 over dense", (1.0, _PRINTED), gain, _above(gain, name in rates), basis="bound")
        for name, gain in gains.items()
    ]
    rows += [row for name, of_model in steps.items() for row in _against_others(name, of_model)]
    rows += [_dense(name, of_model[NONE, 1.0]) for name, of_model in steps.items()]
    rows += [_needed(setting, *works[setting.name]) for setting in MODELS]
    given = ", ".join(f"{name} {rate:g}" for name, rate in rates.items())
    compute = f"examples a second as given: {given}; else " if rates else ""
    return Figure(
        "steps of three workers and one server at 2 x 25 Gbit/s: dense, Top-K, LAGS and DLGS",
        "50 us and TCP's share of 50 Gbit/s, additions at 4 GB/s, selection at 0.5 ns (reused) and 2 ns (exact) an "
        f"element: the simulator's own; compute: {compute}as modelled for an SW26010; nothing from this figure",
        rows,
        (*(_breakdown(name, of_model) for name, of_model in steps.items()), _by_processor(works)),
    )


def _steps(layout: Layout, compute: Compute) -> dict[tuple[Method, float], Step]:
    sparse = (TOPK, LAGS, DLGS)
    found: dict[tuple[Method, float], Step] = {(NONE, 1.0): step_of(layout, compute, NONE)}
    for density in _DENSITIES:
        for method in sparse:
            found[method, density] = step_of(layout, compute, method, density)
    return found


def _gain(steps: Steps) -> float:
    return steps[NONE, 1.0].seconds / steps[DLGS, 0.01].seconds


def _above(gain: float, is_given: bool) -> str:
    if gain <= _PRINTED:
        return ""
    return "at the rate that was given; the last rows have that of 1.99" if is_given else _PROCESSORS


def _against_others(name: str, steps: Steps) -> Iterator[Row]:
    """The claims 3 and 4: DLGS is the fastest, and LAGS selects for longer and is faster than Top-K."""
    at_least = (1.0, math.inf)
    for density in _DENSITIES:
        own, lags, top_k = (steps[method, density] for method in (DLGS, LAGS, TOPK))
        other = min(steps[NONE, 1.0].seconds, lags.seconds, top_k.seconds)
        ratios = {
            "the fastest other's step over DLGS'": other / own.seconds,
            "LAGS' selecting over Top-K's": lags.selects / top_k.selects,
            "Top-K's step over LAGS'": top_k.seconds / lags.seconds,
        }
        for words, ratio in ratios.items():
            term = _AUTO if ratio < 1.0 else ""
            yield Row(f"{name} at {density:g}, {words}", at_least, ratio, term, basis="bound")


def _dense(name: str, step: Step) -> Row:
    case = f"{name}, dense: communication that nothing hides over compute"
    return Row(case, (), step.communicate / step.compute, basis="not printed")


def _breakdown(name: str, steps: Steps) -> Panel:
    bars = [f"{method} {density:g}" if method.selects else method.key for method, density in steps]
    parts = (
        ("compute", [1e3 * step.compute for step in steps.values()]),
        ("sparsify, not hidden", [1e3 * step.sparsify for step in steps.values()]),
        ("communicate, not hidden", [1e3 * step.communicate for step in steps.values()]),
    )
    series = [Series(label, bars, seconds, "bars") for label, seconds in parts]
    return Panel(name, "", "ms of a step", series)


def _by_processor(works: Mapping[str, tuple[Layout, Compute]]) -> Panel:
    """DLGS over dense where the processor is so many times as fast: the paper's 1.99 belongs to one of them."""
    series = [Series(name, _FASTER, [_gain_at(*work, times) for times in _FASTER]) for name, work in works.items()]
    printed = Series("printed, the most", (), (_PRINTED, _PRINTED), "range")
    return Panel("DLGS at 0.01 over dense", "times the speed of an SW26010", "times", (*series, printed), "x")


def _needed(setting: Setting, layout: Layout, compute: Compute) -> Row:
    """Examples a second of each worker with which DLGS gains what is printed: the faster, the more it gains."""
    slow, fast = _SLOWEST, _FASTEST
    while fast / slow > _NEAR:
        middle = math.sqrt(slow * fast)
        slow, fast = (middle, fast) if _gain_at(layout, compute, middle) < _PRINTED else (slow, middle)
    rate = fast * setting.batch / compute.seconds
    return Row(f"{setting.name}: examples a second with which DLGS gains {_PRINTED:g}", (), rate, basis="not printed")


def _gain_at(layout: Layout, compute: Compute, times: float) -> float:
    faster = _faster(compute, times)
    placement = Placement(*ethernet(_BITS_PER_SECOND))
    dense, sparse = (
        simulate_job(_job(*method), layout, faster, placement).seconds for method in ((NONE, 1.0), (DLGS, 0.01))
    )
    return dense / sparse


def _faster(compute: Compute, times: float) -> Compute:
    forward, backward = (_divided(seconds, times) for seconds in (compute.forward, compute.backward))
    return Compute(compute.source, forward, backward)


def _divided(seconds: Sequence[float], times: float) -> tuple[float, ...]:
    return tuple(each / times for each in seconds)
