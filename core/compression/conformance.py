"""The promises of a method that selects, each checked on a small model by the objects that a worker has.

A method that keeps all of them trains, plans, goes on from checkpoints and recovers as the built-in ones do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError
from taihu.core.compression.balance import Weighed
from taihu.core.compression.groups import GroupCompressor, Selection
from taihu.core.compression.methods import Compressor
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.groups import Group
from taihu.core.planner.profile import Compression, LayerCost, LinearCost, LinkCost, Profile
from taihu.core.settings.compression import ValueName
from taihu.core.traits.methods import Method

Values = NDArray[np.float32]

_SIZES: Final = (40, 7, 1, 53, 300)
_LAYOUT: Final = Layout(tuple(LayerSpec(f"layer{i}", (TensorSpec("all", (n,)),)) for i, n in enumerate(_SIZES)))
_WHOLE: Final = (Group(0, len(_SIZES) - 1),)
_STEPS: Final = 20
_PATIENCE: Final = 30
_LEAST_SHARE: Final = 0.5


class BrokenPromiseError(Exception):
    """A promise that is not kept, in words."""


@dataclass(frozen=True)
class Trial:
    """A method as it is tried.

    Attributes:
        method: its traits.
        density: share that it is to keep.
        seed: of the gradients.
    """

    method: Method
    density: float = 0.1
    seed: int = 0

    @cached_property
    def plans(self) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
        """Two plans: where it selects from the whole model there is but one."""
        if self.method.is_of_whole_model:
            return _WHOLE, _WHOLE
        return (Group(0, 1), Group(2, 4)), (Group(0, 0), Group(1, 3), Group(4, 4))

    def worker(self, value_type: ValueName = "fp32", *, forgets_non_finite: bool = False, **options: Any) -> Worker:
        """A worker that compresses by it; `options` are those of `Compressor`."""
        refresh = 4 if self.method.reuses else 1
        density = 1.0 if self.method.sends_all else self.density
        compressor = Compressor(self.method, density, refresh, value_type, **options)
        return Worker(self, compressor, forgets_non_finite=forgets_non_finite)

    def gradient(self, step: int) -> Values:
        """Whole numbers, whose sums are exact."""
        drawn = np.random.default_rng([self.seed, step]).integers(-40, 41, _LAYOUT.elements)
        return drawn.astype(np.float32)


class Worker:
    """The compression of one worker of a trial.

    Attributes:
        weighed: the balance of each group that was compressed, as the checker of histories gets it.
    """

    def __init__(self, trial: Trial, compressor: Compressor, *, forgets_non_finite: bool = False) -> None:
        self._trial, self._compressor = trial, compressor
        self.gradients, self.parameters = (np.zeros(_LAYOUT.elements, dtype=np.float32) for _ in range(2))
        self.groups = trial.plans[0]
        self.own = GroupCompressor(
            compressor,
            _LAYOUT,
            self.groups,
            gradients=self.gradients,
            parameters=self.parameters,
            forgets_non_finite=forgets_non_finite,
        )
        self.weighed: list[Weighed] = []

    def compress(self, group: int, step: int) -> Selection:
        """Compress a group, whose gradients are there."""
        return self.own.compress(group, step, self.weighed.append)

    def sent(self, step: int, gradient: Values | None = None, *, last_first: bool = False) -> Values:
        """All that is sent in a step, as it is decoded, among zeros."""
        self.gradients[:] = self._trial.gradient(step) if gradient is None else gradient
        sent = np.zeros_like(self.gradients)
        order = range(len(self.groups))
        for group in reversed(order) if last_first else order:
            selection = self.compress(group, step)
            self._check_places(selection, group)
            sent[selection.indices] = self.own.decoded(selection)
        return sent

    def adopt(self, groups: tuple[Group, ...]) -> None:
        """Go on by another plan."""
        self.groups = groups
        self.own.adopt(groups)

    def _check_places(self, selection: Selection, group: int) -> None:
        indices, outcome = selection.indices, selection.outcome
        if len(indices) and not (np.diff(indices) > 0).all():
            raise BrokenPromiseError("positions do not ascend, or some come twice")
        starts = np.cumsum([0, *outcome.selected.tolist()])
        for unit, first, last in zip(outcome.units, starts, starts[1:], strict=False):
            own = indices[first:last]
            if len(own) and not (unit.start <= own[0] and own[-1] < unit.stop):
                raise BrokenPromiseError(
                    f"outcomes.selected says that {len(own)} entries are of {unit.name}, elements {unit.start} to "
                    f"{unit.stop - 1}, and positions {own[0]} to {own[-1]} are there"
                )
            most = self._compressor.most_selected(unit.elements)
            if len(own) > most:
                raise BrokenPromiseError(
                    f"{len(own)} entries of {unit.name} in group {group}: there is room for {most} of "
                    f"{unit.elements} at density {self._compressor.density:g}"
                )


def _balances(trial: Trial, **options: Any) -> None:
    worker = trial.worker(**options)
    for step in range(1, _STEPS):
        worker.sent(step)
        worker.parameters += worker.gradients
    for number, each in enumerate(worker.weighed):
        wrong = np.flatnonzero(each.owed.view(np.uint32) != each.together.view(np.uint32))
        # Of zeros the sign means nothing.
        places = [place for place in wrong.tolist() if each.owed[place] or each.together[place]]
        if places:
            place = places[0]
            raise BrokenPromiseError(
                f"compression {number + 1}, entry {place}: {each.owed[place]:g} was owed, {each.sent[place]:g} is "
                f"sent and {each.after[place]:g} held back"
            )


def _keeps_balance(trial: Trial) -> None:
    _balances(trial)


def _keeps_balance_with_momentum(trial: Trial) -> None:
    _balances(trial, momentum=0.5, weight_decay=0.25)
    _balances(trial, momentum=0.5, nesterov=True)


def _keeps_balance_of_rounded_values(trial: Trial) -> None:
    kinds: tuple[ValueName, ...] = ("bf16", "int8", "int2")
    for kind in kinds:
        _balances(trial, value_type=kind)


def _leaves_others_alone(trial: Trial) -> None:
    worker = trial.worker()
    bounds = [(_LAYOUT.offsets[g.first_layer], _LAYOUT.offsets[g.last_layer + 1]) for g in worker.groups]
    for step in range(1, 6):
        worker.gradients[:] = trial.gradient(step)
        for group, (start, stop) in enumerate(bounds):
            before, gradients = worker.own.state.residual.copy(), worker.gradients.copy()
            worker.compress(group, step)
            others = np.ones(len(before), dtype=bool)
            others[start:stop] = False
            if not np.array_equal(before[others], worker.own.state.residual[others]):
                raise BrokenPromiseError(f"the residual of other groups changed with group {group}")
            if not np.array_equal(gradients, worker.gradients):
                raise BrokenPromiseError(f"the gradients changed with group {group}")


def _is_the_same_again(trial: Trial) -> None:
    one, other, turned = trial.worker(), trial.worker(), trial.worker()
    for step in range(1, _STEPS):
        expected = one.sent(step)
        if not np.array_equal(expected, other.sent(step)):
            raise BrokenPromiseError(f"step {step} of the same gradients sends something else the second time")
        if not np.array_equal(expected, turned.sent(step, last_first=True)):
            raise BrokenPromiseError(f"step {step} sends something else where the last group is compressed first")


def _goes_on(trial: Trial) -> None:
    whole, before = trial.worker(), trial.worker()
    for step in range(1, 8):
        whole.sent(step)
        before.sent(step)
    kept = {name: array.copy() for name, array in before.own.state.arrays().items()}
    after = trial.worker()
    after.own.state.resume(kept)
    for step in range(8, _STEPS):
        if not np.array_equal(whole.sent(step), after.sent(step)):
            raise BrokenPromiseError(
                f"step {step} sends something else behind a checkpoint of step 7: all that lasts from step to step "
                "must be in the state"
            )


def _follows_another_plan(trial: Trial) -> None:
    worker = trial.worker()
    total = np.zeros(_LAYOUT.elements)
    for step in range(1, _STEPS):
        if step in (6, 12):
            worker.adopt(trial.plans[step == 6])
        total += trial.gradient(step) - worker.sent(step).astype(np.float64)
    if not np.array_equal(total, worker.own.state.residual):
        raise BrokenPromiseError("behind another plan the residual is not what was brought less what was sent")


def _tells_what_is_not_finite(trial: Trial) -> None:
    for odd in (np.nan, np.inf, -np.inf):
        worker = trial.worker(forgets_non_finite=True)
        for step in range(1, 4):
            worker.sent(step)
        gradient = trial.gradient(4)
        gradient[[3, _LAYOUT.elements - 1]] = odd
        if np.isfinite(worker.sent(4, gradient)).all():
            raise BrokenPromiseError(f"a gradient with {odd} was held back: nobody would hear of it")
        if not np.isfinite(worker.own.state.residual).all():
            raise BrokenPromiseError(f"of a gradient with {odd} something that is not finite stays held back")


def _sends_its_share(trial: Trial) -> None:
    worker = trial.worker()
    sent = sum(np.count_nonzero(worker.sent(step)) for step in range(1, _STEPS + 1))
    asked = sum(worker.own.kept(n, _STEPS) for n in _SIZES) if trial.method.unit == "layer" else 0
    least = _LEAST_SHARE * _STEPS * max(asked, trial.density * _LAYOUT.elements)
    if sent < least:
        raise BrokenPromiseError(f"{sent} entries in {_STEPS} steps at density {trial.density:g}: expected {least:g}")


def _forgets_nothing(trial: Trial) -> None:
    worker = trial.worker()
    gradient = trial.gradient(0)
    gradient[gradient == 0] = 1.0
    steps = round(_PATIENCE / trial.density)
    for step in range(1, steps + 1):
        worker.sent(step, gradient)
    held, brought = np.linalg.norm(worker.own.state.residual), steps * np.linalg.norm(gradient)
    if held > _LEAST_SHARE * brought:
        raise BrokenPromiseError(
            f"of the same gradient in {steps} steps {held / brought:.0%} are still held back: some entries never go"
        )


def _is_planned(trial: Trial) -> None:
    free = LinearCost(1e-5, 1e-9)
    layers = tuple(LayerCost(layer.name, layer.elements, 0.1) for layer in _LAYOUT.layers)
    profile = Profile(layers, 0.1, free, free, LinkCost(1e-3, 1e-8, 1e-8), 3, 1)
    compression = Compression(trial.method, trial.density)
    first = np.array([group.first_layer for group in trial.plans[0]])
    last = np.array([group.last_layer for group in trial.plans[0]])
    sizes = compression.sizes(profile, first, last)
    told = (compression.seconds(profile, sizes), compression.up_bytes(profile, sizes))
    if not all(np.isfinite(each).all() and (each > 0).all() for each in told):
        raise BrokenPromiseError(f"the planner has no costs for it: seconds {told[0]}, bytes {told[1]}")


@dataclass(frozen=True)
class Promise:
    """A promise in words, and its check, which raises where it is not kept."""

    words: str
    check: Callable[[Trial], None]


PROMISES: Final = (
    Promise("what is owed is sent or held back, to the bit", _keeps_balance),
    Promise("so it is with momentum and weight decay before the selection", _keeps_balance_with_momentum),
    Promise("so it is where values are rounded", _keeps_balance_of_rounded_values),
    Promise("groups are compressed each for itself", _leaves_others_alone),
    Promise("the same gradients send the same bits, in whatever order of groups", _is_the_same_again),
    Promise("a run goes on from a checkpoint with the same bits", _goes_on),
    Promise("what is held back outlasts a change of plan", _follows_another_plan),
    Promise("values that are not finite reach all workers, and none of them stays", _tells_what_is_not_finite),
    Promise("as much is sent as the density asks for", _sends_its_share),
    Promise("nothing is held back for ever", _forgets_nothing),
    Promise("the planner knows its costs", _is_planned),
)
"""All promises, each checked on its own; those before it need not be kept."""


def broken_by(promise: Promise, trial: Trial) -> str:
    """The way in which a method breaks a promise, in words; "" where it keeps it. Errors of its own code pass."""
    try:
        promise.check(trial)
    except (BrokenPromiseError, ConfigError) as error:
        return str(error)
    return ""
