"""The parameters of a step's groups where they do not all stay: what is asked for, widened, read and dropped. Pure.

Stage 3 of ZeRO fetches them, and mixed precision makes them of what is exchanged. `StepProtocol` owns these, and says
what becomes of the gradients meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile

from taihu.core.base.errors import FrameError, StaleError
from taihu.core.planner.groups import parameter_room
from taihu.core.wire.frames.headers import At
from taihu.worker.exchange.step_actions import Action, Ask, Drop, DropAll, Widen
from taihu.worker.exchange.step_rules import PUSHED, Phase, Rules


class Whereabouts(Enum):
    """The state of a group's parameters."""

    AWAY = "away"
    WANTED = "wanted once they have been updated"
    ASKED = "on their way"
    CAME = "being widened"
    HERE = "here"


_NO_ATTEMPT = -1
_UNDER_WAY = (Whereabouts.WANTED, Whereabouts.ASKED, Whereabouts.CAME)


@dataclass(frozen=True)
class Reading:
    """`group` is going to be read; those `following` are most likely next, those `staying` need not be dropped."""

    group: int
    following: tuple[int, ...] = ()
    staying: tuple[int, ...] = ()

    @property
    def wanted(self) -> tuple[int, ...]:
        """Groups that are to be here, first what is needed first."""
        return tuple(dict.fromkeys((self.group, *self.following)))


class _Group:
    """The state of one group's parameters.

    Attributes:
        unfetched: parts that were asked for and have not arrived.
        updated_step: the last step that is in them.
        asked_attempt: the attempt in which they were asked for.
        is_kept: whether those of 16 bits are on this worker.
    """

    def __init__(self, parts: int, updated_step: int, *, is_kept: bool) -> None:
        self.parts = parts
        self.place = Whereabouts.AWAY
        self.unfetched = 0
        self.updated_step = updated_step
        self.asked_attempt = 0
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


class StepParameters:
    """The parameters of one worker's groups; `adopt` comes first.

    `turn`, `hold` and `free` are inputs of the training loop, `arrived` is that of the network; `widened` is what
    comes of an action. The protocol tells of the rest, and keeps the phases of all groups, which are looked at here.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._groups: list[_Group] = []
        self._phases: Sequence[Phase] = ()
        self._sizes: list[int] = []
        self._live = 0
        # What stays whatever is turned to; it takes of the room of what is fetched ahead.
        self._held: set[int] = set()
        self._turned_to: int | None = None
        self._at = At(0, 0)
        self._given_up = False

    def may_read(self, group: int) -> bool:
        """Whether the group's parameters are here."""
        return not self._rules.fetches or self._groups[group].place is Whereabouts.HERE

    def is_quiet(self, group: int) -> bool:
        """Whether nothing of the group's parameters is on its way."""
        return self._groups[group].place not in _UNDER_WAY

    def may_turn(self, reading: Reading) -> bool:
        """Whether `turn` may come: nothing is on its way but what is wanted.

        Whether a group is asked for again must not depend on when it comes: workers that gather it do so together.
        """
        if self._rules.keeps and self._phases[reading.group] in PUSHED:
            return False
        return all(
            self.is_quiet(group) or group == reading.group or group in reading.following
            for group in range(len(self._groups))
        )

    def awaited(self, group: int) -> str:
        """The cause of a wait for the group, in words."""
        strays = [str(each) for each in range(len(self._groups)) if not self.is_quiet(each)]
        return f"the parameters of group {group if str(group) in strays else ', '.join(strays) or group}"

    def forward_reading(self, group: int) -> Reading:
        """The reading of forward at `group`."""
        # Whether a backward comes behind the last group, or another forward of a test, is not known here: what was
        # used may stay for the one, where there is room for all that comes before, but is not asked for.
        order = (*reversed(range(group)), *range(group + 1, len(self._groups)))
        chosen = self._beside(group, order)
        return Reading(
            group, tuple(each for each in chosen if each < group), tuple(each for each in chosen if each > group)
        )

    def backward_reading(self, group: int, *, ahead: bool = True) -> Reading:
        """The reading of backward at `group`; unless `ahead`, it is not known what comes next."""
        return Reading(group, self._beside(group, self._needed_after(group)) if ahead else ())

    def lone_reading(self, group: int) -> Reading:
        """The reading of a backward that belongs to no step: nothing comes ahead, what there is room for stays."""
        order = (*range(group + 1, len(self._groups)), *reversed(range(group)))
        return Reading(group, staying=self._beside(group, order))

    def hold(self, group: int) -> Sequence[Action]:
        """The group, which is here, stays until it is freed or pushed, or there are other groups."""
        self._held.add(group)
        return ()

    def free(self, group: int) -> Sequence[Action]:
        """The group stays no longer than others; it goes now where there is no room for it beside what is used."""
        self._held.discard(group)
        known = self._groups[group]
        # What is on its way counts as what is here: workers that gather must decide alike.
        counted = {each for each, other in enumerate(self._groups) if other.place is not Whereabouts.AWAY}
        in_use = sum(self._sizes[each] for each in counted - (self._held - {self._turned_to}))
        if known.place is not Whereabouts.HERE or group == self._turned_to or in_use <= self._live:
            return ()
        known.place = Whereabouts.AWAY
        return (Drop(group),)

    def turn(self, reading: Reading) -> Sequence[Action]:
        """Use what `reading` says until the next call; `may_turn` said so."""
        self._turned_to = reading.group
        actions: list[Action] = []
        wanted = reading.wanted
        staying = self._held.union(wanted, reading.staying)
        for group, known in enumerate(self._groups):
            if known.place is Whereabouts.HERE and group not in staying:
                known.place = Whereabouts.AWAY
                actions.append(Drop(group))
        for group in wanted:
            if self._groups[group].place is Whereabouts.AWAY:
                actions += self._want(group)
        return actions

    def arrived(self, group: int, attempt: int = 0) -> Sequence[Action]:
        """One part of the parameters that were asked for in `attempt` is here.

        Raises:
            StaleError: that attempt was given up.
            FrameError: nobody asked for it.
        """
        known = self._groups[group]
        if self._given_up or attempt != known.asked_attempt:
            raise StaleError(f"parameters of group {group} that were asked for in attempt {attempt}, given up since")
        if known.place is not Whereabouts.ASKED:
            raise FrameError(f"parameters of group {group} arrived; they are {known.place.value}")
        known.unfetched -= 1
        if known.unfetched:
            return ()
        if self._rules.widens:
            known.place = Whereabouts.CAME
            return (Widen(group),)
        known.place = Whereabouts.HERE
        return ()

    def widened(self, group: int) -> Sequence[Action]:
        """The group's parameters are what is computed with."""
        known = self._groups[group]
        known.place = Whereabouts.HERE
        known.is_kept = self._rules.keeps
        return ()

    def adopt(self, sizes: Sequence[int], parts: Sequence[int], phases: Sequence[Phase]) -> Sequence[Action]:
        """Go on by other groups, of which `phases` are kept up to date; nothing is under way."""
        # What has come by one plan is there by the next one too.
        is_kept = bool(self._groups) and all(known.is_kept for known in self._groups)
        actions = (DropAll(),) if self._groups and self._rules.fetches else ()
        self._held.clear()
        self._turned_to = None
        self._groups = [_Group(count, self._at.step, is_kept=is_kept) for count in parts]
        self._phases = phases
        self._sizes = list(sizes)
        self._live = parameter_room(self._sizes, self._rules.live_elements)
        return actions

    def resume(self, step: int) -> None:
        """All parameters are those of `step`, where they are owned; before the first `begin`."""
        self._at = self._at._replace(step=step)
        for known in self._groups:
            known.updated_step = step

    def begin(self, at: At, *, again: bool) -> Sequence[Action]:
        """A step begins, or begins `again` after `abort`."""
        self._at = at
        self._given_up = False
        for known in self._groups:
            # Some workers may have ended a group before it was given up: all name the step before.
            known.updated_step = min(known.updated_step, at.step - 1)
        # What is here may differ between workers that gave up: those who gather parameters must all ask alike.
        return self._drop_all_here() if again else ()

    def pushed(self, group: int) -> Sequence[Action]:
        """The group's gradients go: its parameters are not needed any more in this step."""
        known = self._groups[group]
        self._held.discard(group)
        if known.place is not Whereabouts.HERE:
            return ()
        known.place = Whereabouts.AWAY
        return (Drop(group),)

    def updated(self, group: int) -> Sequence[Action]:
        """The group's parameters are those of the present step, where they are owned."""
        known = self._groups[group]
        known.updated_step = self._at.step
        known.is_kept |= self._rules.keeps
        return self._ask(group) if known.place is Whereabouts.WANTED else ()

    def abort(self, group: int) -> Sequence[Action]:
        """The attempt is given up: what was asked for of the group does not come, what has come is widened."""
        self._given_up = True
        known = self._groups[group]
        if known.place not in {Whereabouts.WANTED, Whereabouts.ASKED}:
            return ()
        known.place = Whereabouts.AWAY
        known.asked_attempt = _NO_ATTEMPT
        return (Drop(group),)

    def _drop_all_here(self) -> list[Action]:
        self._held.clear()
        dropped = [group for group, known in enumerate(self._groups) if known.place is Whereabouts.HERE]
        for group in dropped:
            self._groups[group].place = Whereabouts.AWAY
        return [Drop(group) for group in dropped]

    def _want(self, group: int) -> Sequence[Action]:
        known = self._groups[group]
        if known.is_kept:
            known.place = Whereabouts.CAME
            return (Widen(group),)
        if self._phases[group] in PUSHED and not self._rules.asks_early:
            known.place = Whereabouts.WANTED
            return ()
        return self._ask(group)

    def _ask(self, group: int) -> Sequence[Action]:
        known = self._groups[group]
        known.place = Whereabouts.ASKED
        known.unfetched = known.parts
        known.asked_attempt = self._at.attempt
        return (Ask(group, self._at.step if self._phases[group] in PUSHED else known.updated_step),)

    def _beside(self, group: int, order: Iterable[int]) -> tuple[int, ...]:
        """The groups behind `group` in `order` that there is room for beside it."""
        fetched = takewhile(lambda each: not self._groups[each].is_kept, order)
        in_use = sum(self._sizes[each] for each in self._held | {group})
        return leading_groups((each for each in fetched if each not in self._held), self._sizes, self._live - in_use)

    def _needed_after(self, group: int) -> Iterator[int]:
        """The groups in the order in which backward and the next forward need them, while `group` is used.

        Gradients may come in any order: what has been pushed, or is held back, is not needed before it is updated.
        """
        for later in range(group + 1, len(self._groups)):
            if self._phases[later] is Phase.AWAITED:
                yield later
        if self._rules.ahead_of_forward:
            for earlier in reversed(range(group)):
                if self._phases[earlier] not in {Phase.AWAITED, Phase.HELD}:
                    yield earlier
