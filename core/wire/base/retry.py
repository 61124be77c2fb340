"""Calling again what failed for a passing reason, until a deadline."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import TypeVar

import grpc

from taihu.core.base.errors import PeerUnreachableError, TaihuError
from taihu.core.wire.base.clock import Clock
from taihu.core.wire.base.status import error_from_rpc

T = TypeVar("T")

_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 2.0
# gRPC's words for a name or a certificate that is not believed, and for a side that speaks no TLS.
_CUT = ("Verification Check failed", "andshake", "Socket closed")
# gRPC's words where a name is not known.
_UNKNOWN = re.compile(r"(?:errors resolving|resolution failed for) (?:dns:/*)?(\[[^\]]*\]|[^\s:]+)")


def backoff_seconds() -> Iterator[float]:
    """Delays that double from 50 ms up to 2 s."""
    for attempt in count():
        yield min(_FIRST_DELAY_S * 2 ** min(attempt, 16), _LONGEST_DELAY_S)


def until_answered(
    call: Callable[[float], T],
    *,
    peer: str,
    timeout_s: float,
    clock: Clock,
    attempt_s: float = math.inf,
    gives_up: Callable[[], bool] = lambda: False,
) -> T:
    """Call `call(remaining_seconds)` until its peer answers, or `gives_up()` says that nobody waits any more.

    Tried again is a call that found nobody, or was cut, as a server that ends cuts the calls in progress, and one
    that has no answer after `attempt_s`.

    Raises:
        PeerUnreachableError: nobody answered within `timeout_s`, the message names `peer` and the time; or it was
            given up.
        TaihuError: the peer answered with an error.
    """
    start, told = clock.now(), ""
    for delay in backoff_seconds():
        remaining = timeout_s - (clock.now() - start)
        if remaining <= 0:
            break
        if gives_up():
            raise PeerUnreachableError(f"{peer}: nobody waits for its answer any more")
        try:
            return call(min(remaining, attempt_s))
        except TaihuError as error:
            if error.was_said:
                raise
            if isinstance(error, PeerUnreachableError) and remaining <= attempt_s:
                break
            told = str(error)
        clock.sleep(min(delay, max(0.0, timeout_s - (clock.now() - start))))
    raise PeerUnreachableError(
        f"{peer}: no answer within {timeout_s:g} s; check the address and that it has been started, "
        f"or raise cluster.connect_timeout_s{_of_name(told)}{_of_tls(told)}"
    )


def call_until_reachable(
    call: Callable[[float], T],
    *,
    peer: str,
    timeout_s: float,
    clock: Clock,
    attempt_s: float = math.inf,
    gives_up: Callable[[], bool] = lambda: False,
) -> T:
    """As `until_answered`, of a `call` that raises errors of gRPC."""

    def answered(remaining_s: float) -> T:
        try:
            return call(remaining_s)
        except grpc.RpcError as error:
            raise error_from_rpc(error, peer) from None

    return until_answered(
        answered, peer=peer, timeout_s=timeout_s, clock=clock, attempt_s=attempt_s, gives_up=gives_up
    )


def _of_name(told: str) -> str:
    """The cause, where gRPC `told` that nobody knows the name."""
    name = _UNKNOWN.search(told)
    return "" if name is None else f"; the name {name[1]} is not known here: check it, DNS and /etc/hosts"


def _of_tls(told: str) -> str:
    """The other cause that there may be, where gRPC `told` of a connection that was cut before it was there."""
    if not any(words in told for words in _CUT):
        return ""
    return "; somebody listens, but TLS may have failed: check [security] and the times of certificates on both sides"
