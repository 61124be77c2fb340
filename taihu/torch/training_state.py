"""`taihu.torch.state`: what a script trains with, held and written behind its steps, and where it goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeVar

import structlog
import torch
import torch.distributed as dist

from taihu.core.base.errors import ConfigError, RecoveringError, TaihuError
from taihu.core.settings import CheckpointSettings
from taihu.core.wire.base.clock import SystemClock
from taihu.torch.kept.contents import Contents, Counts, Stateful
from taihu.torch.kept.drawn import DrawnBatches
from taihu.torch.kept.going_on import GoingOn, forget_former
from taihu.torch.kept.keeping import Arrays
from taihu.torch.kept.loops import Loops, sampler_of
from taihu.torch.kept.moments import Moments
from taihu.torch.kept.telling import Telling
from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.rates import change_rates
from taihu.torch.world import World

__all__ = ["Stateful", "TrainingState"]

T = TypeVar("T")


class Begun(NamedTuple):
    """The state with which a loop begins: the step behind which, and the arrays of `Contents`, until nobody asks."""

    step: int
    own: Arrays = MappingProxyType({})
    alike: Arrays = MappingProxyType({})


class TrainingState:
    """Holds what a script trains with behind its steps, writes it now and then, and goes on from there.

    Worker 0 writes what all workers have alike, and the first worker of each host holds it; each keeps what it alone
    has: the states of its generators, and what compression has held back.

    Args:
        world: the workers.
        settings: `[checkpoint]`.
        objects: by name.
    """

    def __init__(self, world: World, settings: CheckpointSettings, objects: Mapping[str, Stateful]) -> None:
        _check(world, objects)
        self._world = world
        self._settings = settings
        self._objects = dict(objects)
        self._clock = SystemClock()
        self._loops = Loops()
        self._contents = Contents(objects, self._loops)
        self._has_stepped = False
        self._weight = 1.0
        # The last step that was held, and the one behind which all have met.
        self._held_step = self._together_at = 0
        self._watched = [each for each in map(_inner, objects.values()) if each is not None]
        for optimizer in self._watched:
            optimizer.register_step_post_hook(self._stepped)
        if not world.is_alone:
            world.meet()
        world.keep_state()
        self._telling = Telling(world)
        going_on, counts = self._taken_over()
        self.step = 0 if counts is None else counts.step
        """The steps that have been made, in all lives of the run: passes in which an optimizer has stepped."""
        self.workers_before = world.size if counts is None else counts.workers
        """The number of workers in the life of the script from which this one goes on."""
        self._keeping, self._holds_alike = going_on.keeping, going_on.holds_alike
        self._begin_to_hold()
        if not going_on.out_of_memory:
            self._hold(*self._kept(alike=self._holds_alike))  # whoever is killed in the first step
        world.at_end(self._close)
        world.tell_whether_it_stays()

    def _taken_over(self, *, comes_back: bool = False) -> tuple[GoingOn, Counts | None]:
        """Find what lives before, or other workers, have left, and load it."""
        going_on = GoingOn(self._world, self._settings, comes_back=comes_back)
        return going_on, going_on.take_over(self._contents)

    def _begin_to_hold(self) -> None:
        """Hold and write from this step on, as all other workers do."""
        settings = self._settings
        self._moments = Moments(self.step, every_s=settings.every_seconds, every_steps=settings.every_steps)
        self._since_s, self._since_step = self._clock.now(), self.step
        self._holds_s: list[float] = []

    @property
    def is_given_up(self) -> bool:
        """Whether another worker was lost in this pass of the loop, which updates nothing and comes again."""
        return self._world.attempt.is_given_up

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of `count` epochs, from the one in which the script goes on."""
        return self._loops.epochs(count)

    def batches(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches, from the one at which the script goes on; what it needs is kept behind each that has stepped.

        Behind each such pass of the loop all workers come here: they have as many batches. Where these are of an
        `ElasticSampler`, gradients count by the share that each worker has of a batch.
        """
        sampler = sampler_of(batches)
        with self._weighing(1.0 if sampler is None else sampler.weight):
            try:
                yield from self._passes(self._loops.batches(batches), 0 if sampler is None else sampler.batch)
            finally:
                self._loops.ended()

    def _passes(self, batches: Iterator[T], samples: int) -> Iterator[T]:
        """The batches, each once more where other workers are lost in the pass over it.

        Args:
            batches: of a loop.
            samples: of all workers in each; 0 where they are not counted.
        """
        if self._world.stays and dist.is_available() and dist.is_initialized():
            self._world.stays = False  # its group is one of processes
            self._world.tell_whether_it_stays()
        begun = self._begun() if self._can_go_back else None
        first = self._loops.place.batches
        drawn = DrawnBatches(batches, first, keeps=begun is not None)
        drawn.held(self._held_step)
        try:
            while True:
                try:
                    batch = drawn.draw()
                except StopIteration:
                    # Who is behind the loop cannot go back into it.
                    if begun is None or self._ended_everywhere(begun, drawn):
                        return
                    continue
                self._world.attempt.can_go_back = begun is not None
                yield batch
                self._loops.passed(samples)
                self._pass_has_ended(drawn)
                self._go_on(begun, drawn)
                if begun is not None and drawn.first > first:
                    begun = Begun(begun.step)  # nobody goes back so far, and it takes memory
        finally:
            self._world.attempt.can_go_back = False

    def _pass_has_ended(self, drawn: DrawnBatches[T]) -> None:
        """Keep what is due, unless the pass is given up, or is in this."""
        attempt = self._world.attempt
        with attempt.losing():
            if not attempt.is_given_up:
                self._passed()
                drawn.held(self._held_step)

    @property
    def _can_go_back(self) -> bool:
        """Whether the loop that begins can go back: not where it has nothing to do on the way to the script's place.

        Steps outside of loops are not kept, and in a block of `join()` workers end their loops by themselves.
        """
        world = self._world
        return world.stays and self._loops.goes_on is None and not self._has_stepped and not world.is_joined

    def _begun(self) -> Begun:
        """The state with which a loop begins."""
        own, alike = self._kept(alike=True)
        copied = ({name: array.copy() for name, array in each.items()} for each in (own, alike))
        return Begun(self.step, *copied)

    def _ended_everywhere(self, begun: Begun, drawn: DrawnBatches[T]) -> bool:
        """Hold what there is, and wait until all have ended the loop; False where its last passes come again.

        All are together where no step was made since the loop began, or since they have met again.
        """
        if self.step <= max(begun.step, self._together_at):
            return True
        attempt = self._world.attempt
        attempt.can_go_back = True
        with attempt.losing():
            if self._held_step < self.step:
                self._hold(*self._kept(alike=self._holds_alike))
            self._world.bring(())
        return not self._go_on(begun, drawn)

    def _go_on(self, begun: Begun | None, drawn: DrawnBatches[T]) -> bool:
        """Go on behind a pass; where it was given up, meet who has come, and go back; whether it was.

        Raises:
            RecoveringError: this process cannot go back to the step from which all go on.
        """
        attempt = self._world.attempt
        lost, attempt.can_go_back = attempt.lost, False
        if lost is None or begun is None:
            return False
        attempt.begin_again()
        self._world.meet_again(lost)
        try:
            going_on, counts = self._taken_over(comes_back=True)
            self._keeping, self._holds_alike = going_on.keeping, going_on.holds_alike
            if counts is not None and counts.step == begun.step:
                # The script may have changed something since the step.
                counts = self._contents.load(begun.alike, begun.own, self._world.size)
        except TaihuError as error:
            raise RecoveringError(str(lost)) from error
        if counts is None or not drawn.go_back(self._loops.goes_back()):
            raise RecoveringError(str(lost))
        self.step = self._held_step = self._together_at = counts.step
        self._has_stepped = False
        for each in (*self._watched, *self._objects.values()):
            if isinstance(each, torch.optim.Optimizer | torch.nn.Module):
                each.zero_grad()
        self._begin_to_hold()
        self._world.weigh(self._weight)
        self._world.tell_whether_it_stays()
        structlog.get_logger().info("this process stays", step=self.step, lost=str(lost))
        return True

    def adapt_rates(self, rule: Literal["linear", "sqrt"]) -> None:
        """Have learning rates grow and shrink with the number of workers, where other ones go on than before.

        That is for batches that grow with it, as those of `ElasticSampler(batch_of_worker=...)` do. Rates are those
        of all optimizers and schedulers that the state has.

        Args:
            rule: whether by the ratio of the numbers, or by its square root.
        """
        change_rates(self._objects.values(), rule, self._world.size / self.workers_before)

    @contextmanager
    def _weighing(self, weight: float) -> Iterator[None]:
        """In the block this worker's gradients count so much in the means."""
        self._weight = weight
        self._world.weigh(weight)
        try:
            yield
        finally:
            self._weight = 1.0
            self._world.weigh(1.0)

    def _passed(self) -> None:
        """A pass over a batch has ended: keep what the script needs, as far as it is due."""
        if self._watched and not self._has_stepped:
            return
        self._has_stepped = False
        self.step += 1
        step, moments = self.step, self._moments
        begin_s = self._clock.now()
        holds, writes, is_first = moments.holds(step), moments.writes(step), self._world.rank == 0
        own: Arrays = {}
        alike: Arrays = {}
        if holds or writes:
            own, alike = self._kept(alike=(holds and self._holds_alike) or (writes and is_first))
        if holds:
            self._hold(own, alike)
            self._holds_s.append(self._clock.now() - begin_s)
        if writes:
            self._keeping.write(step, {**own, **alike} if is_first else own)
        if moments.agrees(step):
            self._agree_on_moments()

    def _kept(self, *, alike: bool) -> tuple[Arrays, Arrays]:
        """The arrays of this worker's own, and those that all have alike, which some keep."""
        counts = Counts(self.step, self._world.exchanged, self._world.size)
        return self._contents.kept(counts, alike=alike)

    def _hold(self, own: Arrays, alike: Arrays) -> None:
        self._keeping.hold(self.step, own, alike)
        self._held_step = self.step
        self._world.flush()

    def _agree_on_moments(self) -> None:
        """Have all workers hold and write behind the same steps, as worker 0 has measured."""
        now = self._clock.now()
        # The first ones make their files, and others share their time with whoever else computes here.
        hold_s = min(self._holds_s, default=0.0)
        step_s = (now - self._since_s - sum(self._holds_s)) / (self.step - self._since_step)
        hold_every, write_every = map(self._telling.number, self._moments.found(step_s, hold_s))
        self._moments.agreed(self.step, hold_every, write_every)
        self._since_s, self._since_step = self._clock.now(), self.step
        self._holds_s.clear()

    def _stepped(self, *_: object) -> None:
        self._has_stepped = True

    def _close(self, *, well: bool) -> None:
        """The script has ended: write its last state; what is held in memory is needed no more where all is well."""
        keeping, folder, is_first = self._keeping, self._settings.dir, self._world.rank == 0
        if not well:
            keeping.settle()
            return
        own, alike = self._kept(alike=is_first)
        keeping.write_last(self.step, {**own, **alike})
        if is_first and isinstance(folder, Path) and folder != Path("none"):
            forget_former(folder)


def _check(world: World, objects: Mapping[str, Stateful]) -> None:
    """Refuse what is not kept whole.

    Raises:
        ConfigError: says what.
    """
    if not objects:
        raise ConfigError("state(): expected what is to be kept, as state(model=model, optimizer=optimizer)")
    for name, each in objects.items():
        if not isinstance(each, Stateful):
            raise ConfigError(f"state(): {name} is of {type(each).__name__}, which has no state_dict(); leave it out")
        if isinstance(each, DistributedOptimizer) and each.updates_by_servers:
            raise ConfigError(
                f'state(): {name} has update="servers", and its state is theirs, which is not kept; give '
                'update="workers"'
            )
    if world.keeps_state:
        raise ConfigError("state(): there is one already; give it all objects")
    if world.spreads is not None:
        raise ConfigError("state(): layers that shard_linear has spread are not kept; leave shard_linear out")
    if world.job.compression.method.holds_back and not any(
        isinstance(each, DistributedOptimizer) for each in objects.values()
    ):
        raise ConfigError(
            "state(): compression holds gradients back, which the DistributedOptimizer has; give that as optimizer"
        )


def _inner(each: object) -> torch.optim.Optimizer | None:
    """The optimizer whose steps change parameters, whoever has wrapped it: we, or Accelerate's."""
    if not isinstance(each, torch.optim.Optimizer):
        return None
    return _inner(getattr(each, "optimizer", None)) or each
