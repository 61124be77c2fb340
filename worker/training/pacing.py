"""Steps that take as long as another processor's: a worker waits where its own is ahead."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from taihu.core.wire.base.clock import Clock
from taihu.worker.engine import StepHooks


def forward_shares(forward_s: float, backward_s: Sequence[float]) -> tuple[float, ...]:
    """Seconds of each layer's forward: each has the share of the whole that it has of backward."""
    whole = math.fsum(backward_s)
    return tuple(forward_s * each / whole if whole else forward_s / len(backward_s) for each in backward_s)


class Pacing:
    """The layers of steps on a processor of which each layer's time is known; one thread calls.

    A layer's forward begins when that of the one before has ended there and its parameters are here, and its gradient
    is complete when its backward has ended there. Where this machine takes longer, the step does, too.

    Args:
        forward_s: seconds of each layer of the layout, forward.
        backward_s: and backward, since the layer before was complete.
        end_s: of each part of an end that is spread over the workers, by layer, part and examples.
    """

    def __init__(
        self,
        forward_s: Sequence[float],
        backward_s: Sequence[float],
        clock: Clock,
        end_s: Mapping[tuple[str, str, int], float] | None = None,
    ) -> None:
        self._forward_s, self._backward_s, self._clock = forward_s, backward_s, clock
        self._end_s = end_s or {}
        self._due_s = 0.0
        self.late_s = 0.0
        """Seconds by which this machine was behind, in all steps."""

    def paced(self, hooks: StepHooks) -> StepHooks:
        """Hooks of a batch that begins now, each called when it would be there."""
        self._due_s = self._clock.now()
        last = len(self._backward_s) - 1

        def before_layer(layer: int) -> None:
            self._computes_forward(layer, hooks.before_layer)

        def before_recompute(layer: int) -> None:
            self._computes_forward(layer, hooks.before_recompute)

        def forwarded(loss: float | None) -> None:
            self._wait()
            self._note_late()
            self._take(lambda: hooks.forwarded(loss))

        def before_backward(layer: int) -> None:
            self._take(lambda: hooks.before_backward(layer))

        def gradient_ready(layer: int) -> None:
            self._due_s += self._backward_s[layer]
            self._wait()
            if layer == last:
                self._note_late()
            self._take(lambda: hooks.gradient_ready(layer))

        def part_computed(layer: str, part: str, rows: int) -> None:
            self._due_s += self._end_s[layer, part, rows]
            self._wait()
            hooks.part_computed(layer, part, rows)

        def wait_for_others(wait: Callable[[], None]) -> None:
            self._take(lambda: hooks.wait_for_others(wait))

        return replace(
            hooks,
            before_layer=before_layer,
            before_recompute=before_recompute,
            part_computed=part_computed,
            wait_for_others=wait_for_others,
            forwarded=forwarded,
            before_backward=before_backward,
            gradient_ready=gradient_ready,
        )

    def _computes_forward(self, layer: int, hook: Callable[[int], None]) -> None:
        self._wait()
        self._take(lambda: hook(layer))
        self._due_s += self._forward_s[layer]

    def _wait(self) -> None:
        """Return when what is under way has ended there. Who wakes up late catches up with the layers that follow."""
        left_s = self._due_s - self._clock.now()
        if left_s > 0:
            self._clock.sleep(left_s)

    def _take(self, hook: Callable[[], None]) -> None:
        """Call a hook, which may wait for others: all that follows is as much later."""
        start_s = self._clock.now()
        hook()
        self._due_s += self._clock.now() - start_s

    def _note_late(self) -> None:
        behind_s = max(0.0, self._clock.now() - self._due_s)
        self.late_s += behind_s
        self._due_s += behind_s
