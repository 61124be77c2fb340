"""A member hears of the end of its run, over new connections where one breaks: the decision alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from taihu.core.base.errors import AWAY, PeerUnreachableError
from taihu.core.coordination.control.asks import End
from taihu.core.wire.base.clock import Clock
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.base.retry import backoff_seconds

_LEAST_S: Final = 1.0


def hear_end(
    ask: Callable[[float], End],
    *,
    heard: Callable[[], End | None],
    connect: Callable[[], None],
    patience: Patience,
    clock: Clock,
) -> End:
    """Ask until the run has ended, whatever connections do in the meantime.

    Args:
        ask: asks within so many seconds, and returns the state of the run, which may go on; it may be called again.
        heard: the end, where it was told in another way.
        connect: has the next call go over a new connection: the present one is silent.
        patience: with a coordinator that does not answer.
        clock: of this process.

    Raises:
        MemberLostError, PeerUnreachableError: nobody has answered for `lost_after_s`.
    """
    answered_s, pauses = clock.now(), backoff_seconds()
    while True:
        try:
            end = ask(max(_LEAST_S, patience.answer_s))
        except AWAY as error:
            if (told := heard()) is not None:
                return told
            if clock.now() - answered_s > patience.lost_after_s:
                raise
            if isinstance(error, PeerUnreachableError):
                connect()
            clock.sleep(next(pauses))
        else:
            if end.state.is_final:
                return end
            answered_s, pauses = clock.now(), backoff_seconds()
