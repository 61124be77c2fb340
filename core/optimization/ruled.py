"""A server's shard of a script's parameters: updates by rules that came with the layout, and rates of each step."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError, FrameError, GivenUpError
from taihu.core.job.update_rules import UpdateRules
from taihu.core.optimization.rules import Constants, OptimizerShard, OptimizerState
from taihu.core.system.threads import Lock

Values = NDArray[np.float32]


class StepRates:
    """The learning rates of the present step, which all workers bring alike. Pure.

    Who has none brings `()`, and takes part by those of the others.

    Args:
        parameter_groups: how many rates there are.
    """

    def __init__(self, parameter_groups: int) -> None:
        self._count = parameter_groups
        # Step and attempt, and the rates of it by rank.
        self._key = (0, 0)
        self._brought: dict[int, tuple[float, ...]] = {}

    def forget(self) -> None:
        """The run goes back, or on by another plan: the next rates are of any step."""
        self._key, self._brought = (0, 0), {}

    def bring(self, rank: int, step: int, attempt: int, rates: Sequence[float]) -> None:
        """Take the rates of worker `rank`; only what is not refused changes anything.

        Raises:
            FrameError: they differ from those of another worker, or make no sense.
            GivenUpError: the attempt was given up.
        """
        key, brought = (step, attempt), tuple(rates)
        if brought and (len(brought) != self._count or not all(0.0 <= rate < math.inf for rate in brought)):
            raise FrameError(f"worker {rank} brings learning rates {brought} at step {step}: expected {self._count}")
        if key < self._key:
            raise GivenUpError(
                f"learning rates of worker {rank} at step {step}, attempt {attempt}, which was given up"
            )
        if key > self._key:
            self._key, self._brought = key, {}
        for other, rates_there in self._brought.items():
            if brought and rates_there and brought != rates_there:
                raise FrameError(_difference(rank, brought, other, rates_there, step))
        self._brought[rank] = brought

    def check(self, rank: int, step: int, attempt: int) -> None:
        """Raise FrameError unless worker `rank` has brought the rates of this attempt."""
        if self._key != (step, attempt) or rank not in self._brought:
            raise FrameError(f"worker {rank} pushed gradients of step {step} before their learning rates")

    def of(self, step: int) -> tuple[float, ...]:
        """The rates of `step`, one for each parameter group; raises FrameError where nobody has brought any."""
        found = next((rates for rates in self._brought.values() if rates), ())
        if self._key[0] != step or not found:
            raise FrameError(f"step {step} has no learning rates: no worker brought any")
        return found


class _Turns:
    """The updates of each optimizer, of which a step makes one for those that it is about. Any thread may call.

    Args:
        optimizers: their number.
    """

    def __init__(self, optimizers: int) -> None:
        self._lock = Lock()
        self._last = [0] * optimizers
        self._made = [0] * optimizers

    def of(self, optimizer: int, step: int) -> int:
        """The number of an optimizer's update, from 1, of which a range is updated in `step`; steps come in turn."""
        with self._lock:
            if step > self._last[optimizer]:
                self._last[optimizer] = step
                self._made[optimizer] += 1
            return self._made[optimizer]


class RuledShard:
    """Updates `parameters` by the optimizers of a script; see `OptimizerShard` for the rest.

    Args:
        rules: for each layer its parameter group.
        offsets: where each layer begins in the shard, and its end.
        parameters: shape (n,), fp32, contiguous and writable; kept.
        rates: of the present step.
    """

    def __init__(self, rules: UpdateRules, offsets: Sequence[int], parameters: Values, rates: StepRates) -> None:
        self._rules = rules
        self._parameters = parameters
        self._rates = rates
        names = sorted({name for each in rules.optimizers for name in each.state})
        # Pages of what an optimizer has no use for are never written to.
        self._arrays = {name: np.zeros(len(parameters), dtype=np.float32) for name in names}
        self._states = [OptimizerState(each, len(parameters), self._arrays) for each in rules.optimizers]
        self._turns = _Turns(len(rules.optimizers))
        # Where another parameter group begins, and which.
        self._starts, self._groups = [0], [0]
        self.state_bytes = 0
        """Bytes of optimizer state, without the parameters."""
        for start, stop, group in zip(offsets, offsets[1:], rules.parameter_groups, strict=False):
            if start == stop:
                continue
            own = rules.optimizers[rules.owners[group]].state
            self.state_bytes += (stop - start) * len(own) * parameters.itemsize
            if start == 0:
                self._groups[0] = group
            elif group != self._groups[-1]:
                self._starts.append(start)
                self._groups.append(group)

    def update(self, start: int, stop: int, gradient: Values, step: int, scale: float = 1.0) -> None:
        """Update elements [start, stop) by `gradient`, shape (stop - start,), fp32; see `OptimizerShard.update`.

        Raises:
            FrameError: the step has no learning rates. Nothing was changed.
        """
        rates = self._rates.of(step)
        for first, last, group in self._ranges(start, stop):
            owner = self._rules.owners[group]
            constants = Constants(rates[group], self._rules.weight_decays[group])
            own = gradient[first - start : last - start]
            made = self._turns.of(owner, step)
            self._states[owner].update(first, self._parameters[first:last], own, made, scale, constants)

    def update_sparse(self, indices: NDArray[np.int32], gradient: Values, step: int, scale: float = 1.0) -> None:
        """Raise ConfigError: the job exchanges dense gradients."""
        raise ConfigError("the optimizer of a script changes every parameter; set compression.downlink = 'dense'")

    def state(self) -> Mapping[str, Values]:
        """Live views of the state by name, as `OptimizerShard.state`."""
        return dict(self._arrays)

    def warm_up(self) -> None:
        """Compile the kernels that updates will use, or load them from the disk cache; changes nothing."""
        for settings in self._rules.optimizers:
            OptimizerShard(settings, np.zeros(1, dtype=np.float32)).warm_up()

    def _ranges(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Parts of [start, stop) with their parameter groups."""
        number = bisect_right(self._starts, start) - 1
        while start < stop:
            end = min(stop, self._starts[number + 1]) if number + 1 < len(self._starts) else stop
            yield start, end, self._groups[number]
            start, number = end, number + 1


def _difference(rank: int, own: Sequence[float], other: int, expected: Sequence[float], step: int) -> str:
    group = next(number for number, pair in enumerate(zip(own, expected, strict=True)) if pair[0] != pair[1])
    return (
        f"worker {rank} has learning rate {own[group]:g} for parameter group {group} at step {step}, worker {other} "
        f"has {expected[group]:g}: all workers need the same schedule"
    )
