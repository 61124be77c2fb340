"""A member hears of the end of its run, whatever the connection to the coordinator does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from taihu.core.base.errors import MemberLostError, PeerUnreachableError, StaleError, TaihuError
from taihu.core.coordination.client.hearing import hear_end
from taihu.core.coordination.control.asks import End
from taihu.core.coordination.membership.members import RunState
from taihu.core.wire.base.patience import Patience

RUNNING, FINISHED = End(RunState.RUNNING, ""), End(RunState.FINISHED, "")
BROKEN, SILENT = MemberLostError("UNAVAILABLE"), PeerUnreachableError("DEADLINE_EXCEEDED")


class Coordinated:
    """A coordinator that answers as it is told, the last answer for ever; silence lasts as long as a call."""

    def __init__(self, *answers: End | TaihuError, heard_at_s: float = 1e9) -> None:
        self._answers: Sequence[End | TaihuError] = answers
        self._heard_at_s = heard_at_s
        self._now = 100.0
        self.calls = 0
        self.connected = 0

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds

    def ask(self, timeout_s: float) -> End:
        answer = self._answers[min(self.calls, len(self._answers) - 1)]
        self.calls += 1
        if answer in (RUNNING, SILENT):
            self._now += timeout_s
        if isinstance(answer, TaihuError):
            raise answer
        return answer

    def connect(self) -> None:
        self.connected += 1

    def end(self, lost_after_s: float = 6.0) -> End:
        return hear_end(
            self.ask,
            heard=lambda: FINISHED if self._now >= self._heard_at_s else None,
            connect=self.connect,
            patience=Patience(lost_after_s),
            clock=self,
        )


def test_it_asks_for_as_long_as_the_run_goes_on() -> None:
    coordinator = Coordinated(*[RUNNING] * 500, End(RunState.FAILED, "out of paper"))
    assert coordinator.end() == (RunState.FAILED, "out of paper")
    assert coordinator.calls == 501
    assert coordinator.now() - 100 > 500 * Patience(6).answer_s - 1


@pytest.mark.parametrize(("away", "connections"), [(BROKEN, 0), (SILENT, 1)])
def test_an_answer_that_was_lost_is_asked_for_again(away: TaihuError, connections: int) -> None:
    """A broken connection gRPC replaces itself; of a silent one it knows nothing."""
    coordinator = Coordinated(RUNNING, away, FINISHED)
    assert coordinator.end() == FINISHED
    assert coordinator.calls == 3
    assert coordinator.connected == connections


@pytest.mark.parametrize("away", [BROKEN, SILENT])
def test_one_that_does_not_answer_is_given_up_within_the_patience_and_one_call(away: TaihuError) -> None:
    coordinator = Coordinated(RUNNING, away)
    with pytest.raises(type(away), match=str(away)):
        coordinator.end()
    waited_s = coordinator.now() - 100 - Patience(6).answer_s  # for the first answer
    assert 6 < waited_s <= 6 + 2 * Patience(6).answer_s
    # Signs of life may have told it over the same connection.
    assert Coordinated(away, heard_at_s=104).end() == FINISHED


def test_each_answer_renews_the_patience_and_what_is_refused_is_not_asked_again() -> None:
    answers: list[End | TaihuError] = [SILENT, RUNNING]
    coordinator = Coordinated(*answers * 20, StaleError("has not joined"))
    with pytest.raises(StaleError):
        coordinator.end()
    assert coordinator.calls == 41
