"""The state of every group of a step, and what follows from what happens: a pure object (docs/adr/0026).

No threads, clocks, sockets or memory: every input returns actions, which whoever gave the input carries out in their
order. ZeRO, mixed precision and the replay of a step are decided here, of gradients, and of parameters in
`step_parameters`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taihu.core.base.errors import ExchangeError, FrameError, StaleError
from taihu.core.optimization import LossScale
from taihu.core.planner.groups import gradient_room
from taihu.core.wire.frames.headers import At
from taihu.worker.exchange.step_actions import Action, Agree, Apply, Cancel, Done, Push, Release
from taihu.worker.exchange.step_parameters import StepParameters
from taihu.worker.exchange.step_rules import PUSHED, Phase, Rules


class _Group:
    """The state of one group's gradients, beside its phase.

    Attributes:
        missing: parts of the present step that have not been updated.
        has_room: whether memory is set aside for them.
    """

    def __init__(self, elements: int, parts: int) -> None:
        self.elements = elements
        self.parts = parts
        self.missing = 0
        self.has_room = False


class StepProtocol:
    """One worker's part in the exchange, step by step; `adopt` comes first.

    Inputs of the training loop are `begin`, `write`, `ready`, `leave_out`, `agreed`, `abort` and `adopt`; those of
    the network are `updated`, `applied` and `lost`. `parameters` has inputs of its own. Parts of groups are counted
    here: a route says how many each group has. Only an input that is not refused changes anything.

    Attributes:
        parameters: those of the groups, where they do not all stay.
        at: the present attempt.
        overflowed: whether a gradient of this step does not fit.
        skipped: whether this step is skipped.
    """

    def __init__(self, rules: Rules, scale: LossScale | None = None) -> None:
        self._rules = rules
        self._scale = scale
        self.parameters = StepParameters(rules)
        self._groups: list[_Group] = []
        self._phases: list[Phase] = []
        self._room = self._held_elements = 0
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
        known = self._groups[group]
        if self._rules.holds or self._rules.clips or known.has_room:
            return True
        return self._held_elements + known.elements <= self._room

    def is_complete(self, group: int) -> bool:
        """Whether the group has been summed and updated, and nothing of it is on its way."""
        if self._phases[group] is not Phase.UPDATED:
            return False
        return not self._rules.fetches or self.parameters.is_quiet(group)

    def awaited(self, group: int) -> str:
        """The cause of a wait for the group, in words."""
        known, phase = self._groups[group], self._phases[group]
        if self._lost:
            return f"an exchange without {self._lost}"
        if phase is Phase.AWAITED and not self.may_write(group):
            return f"a sum that makes room for the gradients of group {group}"
        if phase is Phase.SUMMING and known.parts > 1:
            return f"{known.missing} answers for group {group} in step {self.at.step}"
        if phase is not Phase.UPDATED:
            what = "norm of the whole gradient" if phase is Phase.SUMMED else f"sum of group {group}"
            return f"the {what} in step {self.at.step}"
        return self.parameters.awaited(group)

    def adopt(self, version: int, sizes: Sequence[int], parts: Sequence[int]) -> Sequence[Action]:
        """Go on by plan `version`, whose groups have `sizes` values and come in so many `parts`.

        Raises:
            ExchangeError: something is under way.
        """
        self._check_quiet(f"plan {version}")
        self._groups = [_Group(elements, count) for elements, count in zip(sizes, parts, strict=True)]
        self._phases = [Phase.UPDATED] * len(self._groups)
        self._room = gradient_room(sizes, self._rules.bucket_elements)
        self.at = self.at._replace(plan=version)
        return self.parameters.adopt(sizes, parts, self._phases)

    def facts(self) -> dict[str, Any]:
        """All that outlasts a step beside values, as JSON holds it; every group has ended."""
        scale = None if self._scale is None else self._scale.facts()
        return {"skipped": self.skipped, "loss_scale": scale}

    def resume(self, step: int, facts: Mapping[str, Any]) -> None:
        """The parameters are those of `step`, and `facts` what was so behind it; before the first `begin`."""
        self.at = self.at._replace(step=step)
        self.parameters.resume(step)
        if self._scale is not None and facts["loss_scale"] is not None:
            self._scale.resume(facts["loss_scale"])
            self.skipped, self._has_begun = bool(facts["skipped"]), True

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
        for group, known in enumerate(self._groups):
            self._phases[group], known.missing = Phase.AWAITED, known.parts
        return self.parameters.begin(self.at, again=again) if again or self._rules.fetches else ()

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
        self._check_awaited(group)
        if not self._rules.holds:
            return self._push(group)
        self.overflowed |= not fits
        self._phases[group] = Phase.HELD
        if any(phase is not Phase.HELD for phase in self._phases):
            return ()
        if self._rules.agrees:
            return (Agree(self.overflowed),)
        return self._push_all(skipped=self.overflowed)

    def leave_out(self, group: int) -> Sequence[Action]:
        """Nothing of the group is exchanged in this step, on no worker.

        Raises:
            ExchangeError: its gradients were complete before, no step has begun, or groups of a step go together.
        """
        self._check_awaited(group)
        if self._rules.holds or self._rules.clips or self._rules.fetches:
            raise ExchangeError(f"group {group} was to be left out of step {self.at.step}, which ends as a whole")
        return self._end(group)

    def agreed(self, *, skipped: bool) -> Sequence[Action]:
        """All workers know whether the step, whose groups are all held back, is skipped."""
        self.skipped = skipped
        if not skipped:
            return self._push_all(skipped=False)
        return self._end_all()

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
            actions += self.parameters.abort(group)
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
        known, phase = self._groups[group], self._phases[group]
        if at != self.at or phase is not Phase.SUMMING:
            raise FrameError(f"group {group} of step {at.step} was updated; it is {phase.value}")
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
        if any(phase is not Phase.SUMMED for phase in self._phases):
            raise FrameError(f"step {at.step} was updated before all of it had been summed")
        return self._end_all()

    def lost(self, member: str) -> Sequence[Action]:
        """Give up the present attempt, of which nothing can be completed any more, because `member` is gone."""
        self._lost = self._lost or member
        return ()

    def _check_awaited(self, group: int) -> None:
        phase = self._phases[group]
        if phase is not Phase.AWAITED or self._given_up:
            state = "its attempt was given up" if self._given_up else f"it is {phase.value}"
            raise ExchangeError(f"group {group} was to be pushed in step {self.at.step}: {state}; begin comes first")

    def _push(self, group: int, *, skipped: bool = False) -> list[Action]:
        self._phases[group] = Phase.SUMMING
        actions = [*self.parameters.pushed(group)] if self._rules.fetches else []
        actions.append(Push(group, skipped))
        return actions if self._groups[group].missing else [*actions, *self._summed(group)]

    def _push_all(self, *, skipped: bool) -> list[Action]:
        # What the next forward reads first goes first.
        groups = reversed(range(len(self._groups)))
        return [action for group in groups for action in self._push(group, skipped=skipped)]

    def _summed(self, group: int) -> list[Action]:
        if not self._rules.clips:
            return self._end(group)
        self._phases[group] = Phase.SUMMED
        return [Apply(self.at)] if all(phase is Phase.SUMMED for phase in self._phases) else []

    def _end(self, group: int) -> list[Action]:
        was_pushed = self._phases[group] in PUSHED
        self._phases[group] = Phase.UPDATED
        actions = [*self._give_back(group), Done(group, skipped=not was_pushed)]
        return [*actions, *self.parameters.updated(group)] if self._rules.fetches else actions

    def _end_all(self) -> list[Action]:
        return [action for group in reversed(range(len(self._groups))) for action in self._end(group)]

    def _give_back(self, group: int) -> list[Action]:
        known = self._groups[group]
        if known.has_room:
            known.has_room = False
            self._held_elements -= known.elements
        return [Release(group)] if self._rules.drops_gradients else []

    def _check_quiet(self, what: str) -> None:
        busy = [group for group, phase in enumerate(self._phases) if phase is not Phase.UPDATED]
        if busy and not self._given_up:
            raise ExchangeError(
                f"{what} was to begin while group {busy[0]} of step {self.at.step} is "
                f"{self._phases[busy[0]].value}; wait for every group first"
            )
