"""The state of every group of a step, and what follows from what happens: a pure object (docs/adr/0026).

No threads, clocks, sockets or memory: every input returns actions, which whoever gave the input carries out in their
order. Stages 2 and 3 of ZeRO, mixed precision and the replay of a step are decided here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import takewhile

from taihu.errors import ExchangeError, FrameError, StaleError
from taihu.optimization import LossScale
from taihu.planner.groups import gradient_room, parameter_room
from taihu.wire.headers import At
from worker.exchange.step_actions import (
    Action,
    Agree,
    Apply,
    Ask,
    Cancel,
    Done,
    Drop,
    DropAll,
    Push,
    Reading,
    Release,
    Rules,
    Widen,
)

__all__ = ["StepProtocol", "leading_groups"]


class Phase(Enum):
    """The state of a group's gradients in the present step."""

    AWAITED = "not there"
    HELD = "held back"
    SUMMING = "being summed"
    SUMMED = "summed"
    UPDATED = "updated"


class Place(Enum):
    """The state of a group's parameters, in a worker that fetches them."""

    AWAY = "away"
    WANTED = "wanted once they have been updated"
    ASKED = "on their way"
    CAME = "being widened"
    HERE = "here"


_NO_ATTEMPT = -1
_PUSHED = (Phase.SUMMING, Phase.SUMMED)
_UNDER_WAY = (Place.WANTED, Place.ASKED, Place.CAME)


class _Group:
    """The state of one group.

    Attributes:
        missing: parts of the present step that have not been updated.
        unfetched: parts that were asked for and have not arrived.
        updated_step: the last step that is in its parameters.
        asked_attempt: the attempt in which it was asked for.
        has_room: whether memory is set aside for its gradients.
        is_kept: whether its 16-bit parameters are on this worker.
    """

    def __init__(self, elements: int, parts: int, updated_step: int, *, is_kept: bool) -> None:
        self.elements = elements
        self.parts = parts
        self.phase = Phase.UPDATED
        self.place = Place.AWAY
        self.missing = 0
        self.unfetched = 0
        self.updated_step = updated_step
        self.asked_attempt = 0
        self.has_room = False
        self.is_kept = is_kept


def leading_groups(order: Iterable[int], sizes: Sequence[int], room: int) -> tuple[int, ...]:
    """The first groups in `order` that fit into `room` together; their sizes are `sizes[group]`."""
    chosen = []
    for group in order:
        room -= sizes[group]
        if room < 0:
            break
        chosen.append(group)
    return tuple(chosen)


class StepProtocol:
    """One worker's part in the exchange, step by step; `adopt` comes first.

    Inputs of the training loop are `begin`, `write`, `ready`, `agreed`, `turn`, `abort` and `adopt`; those of the
    network are `updated`, `applied`, `arrived` and `lost`. `widened` is what comes of an action. Parts of groups are
    counted here: a route says how many each group has. Only an input that is not refused changes anything.

    Attributes:
        at: the present attempt.
        overflowed: whether a gradient of this step does not fit.
        skipped: whether this step is skipped.
    """

    def __init__(self, rules: Rules, scale: LossScale | None = None) -> None:
        self._rules = rules
        self._scale = scale
        self._groups: list[_Group] = []
        self._sizes: list[int] = []
        self._room = self._live = self._held_elements = 0
        self._has_begun = self._given_up = False
        self._lost = ""
        self.at = At(0, 0)
        self.overflowed = self.skipped = False

    @property
    def loss_scale(self) -> float:
        """The factor of the present step's loss; 1 unless gradients are held back."""
        return self._scale.value if self._scale is not None else 1.0

    @property
    def skipped_steps(self) -> int:
        """The number of steps that have been skipped."""
        return (self._scale.skipped_steps if self._scale is not None else 0) + self.skipped

    def may_write(self, group: int) -> bool:
        """Whether there is room for the group's gradients, or they have been given some already."""
        if self._rules.holds or self._rules.clips or self._groups[group].has_room:
            return True
        return self._held_elements + self._sizes[group] <= self._room

    def may_read(self, group: int) -> bool:
        """Whether the group's parameters are here."""
        return not self._rules.fetches or self._groups[group].place is Place.HERE

    def is_complete(self, group: int) -> bool:
        """Whether the group has been summed and updated, and nothing of it is on its way."""
        known = self._groups[group]
        return known.phase is Phase.UPDATED and known.place not in _UNDER_WAY

    def may_turn(self, reading: Reading) -> bool:
        """Whether `turn` may come: nothing is on its way but what is wanted.

        Whether a group is asked for again must not depend on when it comes: workers that gather it do so together.
        """
        if self._rules.keeps and self._groups[reading.group].phase in _PUSHED:
            return False
        return not any(
            known.place in _UNDER_WAY and group != reading.group and group not in reading.following
            for group, known in enumerate(self._groups)
        )

    def awaited(self, group: int) -> str:
        """The cause of a wait for the group, in words."""
        known = self._groups[group]
        if self._lost:
            return f"an exchange without {self._lost}"
        if known.phase is Phase.AWAITED and not self.may_write(group):
            return f"a sum that makes room for the gradients of group {group}"
        if known.phase is Phase.SUMMING and known.parts > 1:
            return f"{known.missing} answers for group {group} in step {self.at.step}"
        if known.phase is not Phase.UPDATED:
            what = "norm of the whole gradient" if known.phase is Phase.SUMMED else f"sum of group {group}"
            return f"the {what} in step {self.at.step}"
        if known.place in _UNDER_WAY:
            return f"the parameters of group {group}"
        strays = [str(each) for each, other in enumerate(self._groups) if other.place in _UNDER_WAY]
        return f"the parameters of group {', '.join(strays) or group}"

    def adopt(self, version: int, sizes: Sequence[int], parts: Sequence[int]) -> Sequence[Action]:
        """Go on by plan `version`, whose groups have `sizes` values and come in so many `parts`.

        Raises:
            ExchangeError: something is under way.
        """
        self._check_quiet(f"plan {version}")
        # What has come by one plan is there by the next one too.
        is_kept = bool(self._groups) and all(known.is_kept for known in self._groups)
        adopted = [
            _Group(elements, count, self.at.step, is_kept=is_kept)
            for elements, count in zip(sizes, parts, strict=True)
        ]
        actions = (DropAll(),) if self._groups and self._rules.fetches else ()
        self._groups = adopted
        self._sizes = list(sizes)
        self._room = gradient_room(self._sizes, self._rules.bucket_elements)
        self._live = parameter_room(self._sizes, self._rules.live_elements)
        self.at = self.at._replace(plan=version)
        return actions

    def begin(self, step: int, attempt: int = 0) -> Sequence[Action]:
        """Step `step` begins, or begins again: `abort` comes before a higher attempt.

        Attempts never fall: a lower one than the present is the present one.

        Raises:
            ExchangeError: the step before has not ended, or this attempt began already.
            RunError: see `LossScale.update`.
        """
        again = self._given_up and attempt > self.at.attempt
        attempt = max(attempt, self.at.attempt)
        if not again and step <= self.at.step:
            raise ExchangeError(
                f"step {step}, attempt {attempt} was to begin behind step {self.at.step}, attempt {self.at.attempt}; "
                "a step is replayed by abort and a higher attempt"
            )
        if not again:
            self._check_quiet(f"step {step}")
            if self._scale is not None and self._has_begun:
                self._scale.update(skipped=self.skipped)
        self.at = At(self.at.plan, step, attempt)
        self.overflowed = self.skipped = self._given_up = False
        self._has_begun = True
        self._lost = ""
        for known in self._groups:
            known.phase, known.missing = Phase.AWAITED, known.parts
            # Some workers may have ended a group before it was given up: all name the step before.
            known.updated_step = min(known.updated_step, step - 1)
        # What is here may differ between workers that gave up: those who gather parameters must all ask alike.
        return self._drop_all_here() if again else ()

    def write(self, group: int) -> Sequence[Action]:
        """The group's gradients are going to be written; `may_write` said so."""
        known = self._groups[group]
        if self._rules.drops_gradients and not known.has_room:
            known.has_room = True
            self._held_elements += known.elements
        return ()

    def ready(self, group: int, *, fits: bool = True) -> Sequence[Action]:
        """The group's gradients are complete, and its parameters not needed any more in this step.

        Raises:
            ExchangeError: they were complete before, or no step has begun.
        """
        known = self._groups[group]
        if known.phase is not Phase.AWAITED or self._given_up:
            state = "its attempt was given up" if self._given_up else f"it is {known.phase.value}"
            raise ExchangeError(f"group {group} was to be pushed in step {self.at.step}: {state}; begin comes first")
        if not self._rules.holds:
            return self._push(group)
        self.overflowed |= not fits
        known.phase = Phase.HELD
        if any(other.phase is not Phase.HELD for other in self._groups):
            return ()
        if self._rules.agrees:
            return (Agree(self.overflowed),)
        return self._push_all(skipped=self.overflowed)

    def agreed(self, *, skipped: bool) -> Sequence[Action]:
        """All workers know whether the step, whose groups are all held back, is skipped."""
        self.skipped = skipped
        if not skipped:
            return self._push_all(skipped=False)
        return [action for group in reversed(range(len(self._groups))) for action in self._end(group)]

    def forward_reading(self, group: int) -> Reading:
        """The reading of forward at `group`."""
        # Whether a backward comes behind the last group, or another forward of a test, is not known here: what was
        # used may stay for the one, where there is room for all that comes before, but is not asked for.
        order = (*reversed(range(group)), *range(group + 1, len(self._groups)))
        chosen = self._beside(group, order)
        return Reading(group, chosen[:group], chosen[group:])

    def backward_reading(self, group: int, *, ahead: bool = True) -> Reading:
        """The reading of backward at `group`; unless `ahead`, it is not known what comes next."""
        return Reading(group, self._beside(group, self._needed_after(group)) if ahead else ())

    def turn(self, reading: Reading) -> Sequence[Action]:
        """Use what `reading` says until the next call; `may_turn` said so."""
        actions: list[Action] = []
        wanted = reading.wanted
        for group, known in enumerate(self._groups):
            if known.place is Place.HERE and group not in wanted and group not in reading.staying:
                known.place = Place.AWAY
                actions.append(Drop(group))
        for group in wanted:
            if self._groups[group].place is Place.AWAY:
                actions += self._want(group)
        return actions

    def abort(self, step: int) -> Sequence[Action]:
        """Give the present attempt at `step` up; what it brought into the parameters stays there.

        Raises:
            ExchangeError: another step is under way.
        """
        if step != self.at.step or not self._has_begun:
            raise ExchangeError(f"step {step} was to be given up during step {self.at.step}; name the present one")
        if self._given_up:
            return ()
        self._given_up = True
        actions: list[Action] = [Cancel(self.at)]
        for group, known in enumerate(self._groups):
            # What has come is widened to the end.
            if known.place in {Place.WANTED, Place.ASKED}:
                known.place = Place.AWAY
                known.asked_attempt = _NO_ATTEMPT
                actions.append(Drop(group))
            if known.has_room:
                actions += self._give_back(group)
        return actions

    def updated(self, group: int, at: At, *, skipped: bool = False) -> Sequence[Action]:
        """One part of a pushed group has been summed, and updated by whoever owns it.

        Raises:
            StaleError: it is of an attempt that was given up.
            FrameError: it was not awaited.
        """
        if self._given_up or at.attempt < self.at.attempt:
            raise StaleError(
                f"group {group}: an answer to step {at.step}, attempt {at.attempt}, which was given up; "
                f"this is step {self.at.step}, attempt {self.at.attempt}"
            )
        known = self._groups[group]
        if at != self.at or known.phase is not Phase.SUMMING:
            raise FrameError(f"group {group} of step {at.step} was updated; it is {known.phase.value}")
        known.missing -= 1
        self.skipped |= skipped
        return () if known.missing else self._summed(group)

    def is_current(self, at: At) -> bool:
        """Whether `at` is under way, and has not been given up."""
        return at == self.at and not self._given_up

    def applied(self, at: At) -> Sequence[Action]:
        """All groups have been updated by whoever owns them.

        Raises:
            StaleError: `at` was given up.
            FrameError: some were not summed.
        """
        if not self.is_current(at):
            raise StaleError(f"updates of step {at.step}, attempt {at.attempt}, which was given up")
        if any(known.phase is not Phase.SUMMED for known in self._groups):
            raise FrameError(f"step {at.step} was updated before all of it had been summed")
        return [action for group in reversed(range(len(self._groups))) for action in self._end(group)]

    def arrived(self, group: int, attempt: int = 0) -> Sequence[Action]:
        """One part of the parameters that were asked for in `attempt` is here.

        Raises:
            StaleError: that attempt was given up.
            FrameError: nobody asked for it.
        """
        known = self._groups[group]
        if self._given_up or attempt != known.asked_attempt:
            raise StaleError(f"parameters of group {group} that were asked for in attempt {attempt}, given up since")
        if known.place is not Place.ASKED:
            raise FrameError(f"parameters of group {group} arrived; they are {known.place.value}")
        known.unfetched -= 1
        if known.unfetched:
            return ()
        if self._rules.widens:
            known.place = Place.CAME
            return (Widen(group),)
        known.place = Place.HERE
        return ()

    def widened(self, group: int) -> Sequence[Action]:
        """The group's parameters are what is computed with."""
        known = self._groups[group]
        known.place = Place.HERE
        known.is_kept = self._rules.keeps
        return ()

    def lost(self, member: str) -> Sequence[Action]:
        """Give up the present attempt, of which nothing can be completed any more, because `member` is gone."""
        self._lost = self._lost or member
        return ()

    def _drop_all_here(self) -> list[Action]:
        dropped = [group for group, known in enumerate(self._groups) if known.place is Place.HERE]
        for group in dropped:
            self._groups[group].place = Place.AWAY
        return [Drop(group) for group in dropped]

    def _push(self, group: int, *, skipped: bool = False) -> list[Action]:
        known = self._groups[group]
        known.phase = Phase.SUMMING
        actions: list[Action] = []
        if known.place is Place.HERE:
            known.place = Place.AWAY
            actions.append(Drop(group))
        actions.append(Push(group, skipped))
        return actions if known.missing else [*actions, *self._summed(group)]

    def _push_all(self, *, skipped: bool) -> list[Action]:
        # What the next forward reads first goes first.
        groups = reversed(range(len(self._groups)))
        return [action for group in groups for action in self._push(group, skipped=skipped)]

    def _summed(self, group: int) -> list[Action]:
        if not self._rules.clips:
            return self._end(group)
        self._groups[group].phase = Phase.SUMMED
        return [Apply(self.at)] if all(known.phase is Phase.SUMMED for known in self._groups) else []

    def _end(self, group: int) -> list[Action]:
        known = self._groups[group]
        was_pushed = known.phase in _PUSHED
        known.phase = Phase.UPDATED
        known.updated_step = self.at.step
        known.is_kept |= self._rules.keeps
        actions = [*self._give_back(group), Done(group, skipped=not was_pushed)]
        if known.place is Place.WANTED:
            actions += self._ask(group)
        return actions

    def _give_back(self, group: int) -> list[Action]:
        known = self._groups[group]
        if known.has_room:
            known.has_room = False
            self._held_elements -= known.elements
        return [Release(group)] if self._rules.drops_gradients else []

    def _want(self, group: int) -> list[Action]:
        known = self._groups[group]
        if known.is_kept:
            known.place = Place.CAME
            return [Widen(group)]
        if known.phase in _PUSHED and not self._rules.asks_early:
            known.place = Place.WANTED
            return []
        return self._ask(group)

    def _ask(self, group: int) -> list[Action]:
        known = self._groups[group]
        known.place = Place.ASKED
        known.unfetched = known.parts
        known.asked_attempt = self.at.attempt
        return [Ask(group, self.at.step if known.phase in _PUSHED else known.updated_step)]

    def _beside(self, group: int, order: Iterable[int]) -> tuple[int, ...]:
        """The groups behind `group` in `order` that there is room for beside it."""
        fetched = takewhile(lambda each: not self._groups[each].is_kept, order)
        return leading_groups(fetched, self._sizes, self._live - self._sizes[group])

    def _needed_after(self, group: int) -> Iterator[int]:
        """The groups in the order in which backward and the next forward need them, while `group` is used.

        Gradients may come in any order: what has been pushed, or is held back, is not needed before it is updated.
        """
        for later in range(group + 1, len(self._groups)):
            if self._groups[later].phase is Phase.AWAITED:
                yield later
        if self._rules.ahead_of_forward:
            for earlier in reversed(range(group)):
                if self._groups[earlier].phase not in {Phase.AWAITED, Phase.HELD}:
                    yield earlier

    def _check_quiet(self, what: str) -> None:
        busy = [group for group, known in enumerate(self._groups) if known.phase is not Phase.UPDATED]
        if busy and not self._given_up:
            raise ExchangeError(
                f"{what} was to begin while group {busy[0]} of step {self.at.step} is "
                f"{self._groups[busy[0]].phase.value}; wait for every group first"
            )
