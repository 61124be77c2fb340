"""Processes that say again and again that they are there: who is gone. Pure, time comes in as an argument."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class _Seen:
    """The words of one process: their number, the time of the last, and the time at which the last broke off.

    That is a guess, unless it is `certain`: nobody could be heard.
    """

    calls: int
    seen_s: float
    hung_up_s: float | None = None
    certain: bool = False


class Presence:
    """Knows the processes that are there, by their lives.

    Args:
        silent_after_s: a process that says nothing for so long is gone.
        gone_after_s: a process whose call has broken off is, if it makes no other one for so long: who lives calls at
            once.
        unheard_after_s: a process whose call may have broken off is, if it makes no other one for so long; None for
            `gone_after_s`.
    """

    def __init__(self, *, silent_after_s: float, gone_after_s: float, unheard_after_s: float | None = None) -> None:
        self._silent_after_s = silent_after_s
        self._gone_after_s = gone_after_s
        self._unheard_after_s = gone_after_s if unheard_after_s is None else unheard_after_s
        self._there: dict[int, _Seen] = {}
        self._is_open = True

    def calls(self, life: int, now: float) -> int:
        """A process says that it is there; the number of this call."""
        seen = self._there.setdefault(life, _Seen(0, now))
        seen.calls += 1
        seen.seen_s, seen.hung_up_s, seen.certain = now, None, False
        return seen.calls

    def hung_up(self, life: int, call: int, now: float) -> None:
        """A call has broken off; if its process makes no other one, it is gone."""
        seen = self._there.get(life)
        if seen is not None and seen.calls == call and self._is_open:
            seen.hung_up_s, seen.certain = now, True

    def closes(self) -> None:
        """Nobody can be heard until it `opens`: calls that break off tell nothing."""
        self._is_open = False

    def opens(self, now: float) -> None:
        """Whoever was there when it closed calls soon, or is gone: nobody may have heard of that."""
        self._is_open = True
        for seen in self._there.values():
            seen.seen_s = now
            seen.hung_up_s = now if seen.hung_up_s is None else seen.hung_up_s

    def gone(self, now: float) -> set[int]:
        """The lives of those that are gone, of which nothing is known from now on."""
        gone = {life for life, seen in self._there.items() if self._is_gone(seen, now)}
        for life in gone:
            del self._there[life]
        return gone

    def has_hung_up(self, life: int) -> bool:
        """Whether the last call of a process has broken off, with nobody else being the reason."""
        seen = self._there.get(life)
        return seen is None or seen.certain

    def seconds_since(self, life: int, now: float) -> float:
        """The seconds since the last call of a process that is there."""
        return now - self._there[life].seen_s

    def _is_gone(self, seen: _Seen, now: float) -> bool:
        longest_s = self._gone_after_s if seen.certain else self._unheard_after_s
        hung_up = seen.hung_up_s is not None and now - seen.hung_up_s > longest_s
        return hung_up or now - seen.seen_s > self._silent_after_s
