"""Asking a coordinator again and again, in a thread, as generations of it come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from taihu.core.base.errors import ConfigError, PeerUnreachableError, StaleError, TaihuError
from taihu.core.coordination.control.control import Ask, Control
from taihu.core.coordination.control.remote import RemoteControl
from taihu.core.system.threads import Event

A = TypeVar("A")

_PAUSE_S: Final = 0.05


def keep_asking(
    over: Event,
    connect: Callable[[], RemoteControl],
    ask: Callable[[Control], None],
    fail: Callable[[TaihuError], None],
) -> None:
    """Call `ask` until it is `over`, with a way to the coordinator that is another one after an error.

    Each error, of connecting or asking, is given to `fail`.
    """
    while not over.is_set():
        try:
            with connect() as control:
                while not over.wait(_PAUSE_S):
                    ask(control)
        except TaihuError as error:
            fail(error)


def answer_of(control: Control, ask: Ask[A], timeout_s: float) -> A:
    """The answer to `ask` within `timeout_s` seconds.

    Raises:
        StaleError, ConfigError: the run is another one, or does not take who asks.
        PeerUnreachableError: anything else: between two generations nobody answers for a moment, and calls that were
            held break off.
    """
    try:
        return control.call(ask, timeout_s)
    except TaihuError as error:
        if is_refusal(error):
            raise
        raise PeerUnreachableError(str(error)) from None


def is_refusal(error: TaihuError) -> bool:
    """Whether asking again is of no use."""
    return isinstance(error, StaleError | ConfigError) and not isinstance(error, PeerUnreachableError)
