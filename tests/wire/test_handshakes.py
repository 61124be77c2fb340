"""Handshakes that lead to a call, and those that lead to none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from structlog.testing import capture_logs
from support.daemons import wait_for
from support.set_clock import SetClock

from taihu.core.security.security import Refusals
from taihu.core.wire.base.room import SILENT_PLACES
from taihu.core.wire.serving.handshakes import Handshakes

WITHIN_S = 5.0


class Watched:
    """Handshakes by a clock that a test sets."""

    def __init__(self) -> None:
        self.clock, self.refusals = SetClock(), Refusals()
        self.handshakes = Handshakes(self.refusals, WITHIN_S, self.clock)

    def go_on(self, seconds: float) -> None:
        """Set the clock, and have who watches look at it."""
        self.clock.sleep(seconds)
        with self.handshakes._room._changed:
            self.handshakes._room._changed.notify()

    def counted(self) -> int:
        """Handshakes that came to nothing so far."""
        return self.refusals.refused_handshakes

    def close(self) -> None:
        self.handshakes.close()


@pytest.fixture
def watched() -> Iterator[Watched]:
    with closing(Watched()) as made:
        yield made


def test_who_makes_no_call_in_a_while_is_counted_and_told_of(watched: Watched) -> None:
    with capture_logs() as logs:
        watched.handshakes.begun()
        watched.go_on(WITHIN_S)
        wait_for(lambda: watched.counted() == 1, "it is not counted")
        wait_for(lambda: logs, "it is not told of")
    assert [(each["event"], each["log_level"]) for each in logs] == [("a handshake came to nothing", "warning")]
    assert watched.refusals.handshakes == 1


def test_who_makes_a_call_is_not_counted_and_calls_once_for_each_address(watched: Watched) -> None:
    for peer in ("ipv4:192.0.2.1:1000", "ipv4:192.0.2.1:1001"):
        watched.handshakes.begun()
        watched.handshakes.called(peer)
    # Its time was over as the call came.
    watched.handshakes._came_to_nothing(1)
    assert watched.counted() == 0
    watched.handshakes.begun()
    # A second call on the same connection is not that of another one.
    watched.handshakes.called("ipv4:192.0.2.1:1000")
    watched.go_on(WITHIN_S)
    wait_for(watched.counted, "nobody is counted")
    assert watched.counted() == 1
    assert watched.refusals.handshakes == 3


def test_a_flood_holds_room_for_few_and_all_are_counted(watched: Watched) -> None:
    with capture_logs():
        for _ in range(SILENT_PLACES + 10):
            watched.handshakes.begun()
        assert watched.counted() == 10
        watched.go_on(WITHIN_S)
        wait_for(lambda: watched.counted() == SILENT_PLACES + 10, "some are not counted")
    assert not watched.handshakes._waiting


def test_a_call_behind_the_time_is_no_other_ones(watched: Watched) -> None:
    watched.handshakes.begun()
    watched.go_on(WITHIN_S)
    wait_for(lambda: watched.counted() == 1, "it is not counted")
    watched.handshakes.called("ipv4:192.0.2.1:1000")
    watched.handshakes.begun()
    watched.go_on(WITHIN_S)
    wait_for(lambda: watched.counted() == 2, "the second is not counted")
