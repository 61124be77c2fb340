"""The steps of a server's shard, held in memory that outlives its process, frame by frame."""

from __future__ import annotations

from collections.abc import Callable

from taihu.core.checkpoint.held_steps import HeldSteps
from taihu.core.checkpoint.manifest import Manifest
from taihu.core.checkpoint.part import State
from taihu.core.planner.partition import FrameSpec

__all__ = ["Holding"]


class Holding:
    """Copies what a step has led to before anybody is answered; several threads call, each for a frame of its own.

    Args:
        held: takes the copies.
        make_state: the live state of the shard, whose arrays stay the same until `adopt`.
    """

    def __init__(self, held: HeldSteps, make_state: Callable[[], State]) -> None:
        self._held = held
        self._make_state = make_state
        self._state: State | None = None

    def adopt(self, run: Manifest) -> None:
        """Go on by another plan, between two steps."""
        self._state = None
        self._held.adopt(run)

    def updated(self, frame: FrameSpec, step: int) -> None:
        """A frame has been updated, or has stayed as it was."""
        state = self._live()
        self._held.begin(step, lambda: state)
        start, stop = frame.offset, frame.offset + frame.count
        self._held.put_range(step, {name: each[start:stop] for name, each in state.shared.arrays.items()}, start)

    def ended(self, step: int) -> None:
        """All frames of a step have been, and nobody has been answered for the last one: no other step begins."""
        self._held.put_own(step, self._live().own)
        self._held.end(step)

    def close(self) -> None:
        """The server takes no part any more: steps that end now are in no history."""
        self._held.close()

    def _live(self) -> State:
        state = self._state
        if state is None:
            state = self._state = self._make_state()
        return state
