"""The process that a run's end is due to, of all that have ended, and its end in words: pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from taihu.core.base.errors import ConfigError
from taihu.core.base.words import blamed, said_by
from taihu.core.system.signals import Signals

_PREFIX = re.compile(r"^taihu\.errors\.\w+: ")
_CONTEXT = re.compile(r"\bwhile (?:server|worker|workers) [0-9].*")


@dataclass(frozen=True)
class Ended:
    """A process that has ended, not well, or is about to.

    Attributes:
        name: its own, `worker 1`.
        exit_code: -N where signal N has ended it; 0 where it has not ended, or well.
        words: its last ones, "" where it left none.
        log: where they stand; None where the process wrote to the output of whoever started it.
        given_up: the reason for which it was killed from here, in words that follow its name.
        is_stopped: whether it lives, and a signal or a debugger has stopped it: others have given it up.
    """

    name: str
    exit_code: int
    words: str
    log: Path | None
    given_up: str = ""
    is_stopped: bool = False

    @property
    def blames(self) -> str | None:
        """Another member by which it ended, as it says."""
        name = blamed(self.words)
        return None if name == self.name else name


def cause_of(ended: Sequence[Ended]) -> Ended:
    """The first of those that did not end because another one had: whoever was killed before all others."""
    return min(ended, key=_rank)


def _rank(ended: Ended) -> int:
    """A kill comes first, then one that is stopped, a wrong setting, own words, a mere exit code, consequences."""
    if ended.exit_code < 0:
        return 0
    if ended.is_stopped:
        return 1
    if ended.exit_code == ConfigError.exit_code and ended.blames is None:
        return 2
    return 5 if ended.blames is not None else 3 if ended.words else 4


def end_in_words(cause: Ended, everybody: Sequence[Ended]) -> str:
    """The end of `cause` in one line, the member that it is due to first, with that one's log.

    Args:
        cause: see `cause_of`.
        everybody: all processes of the run. Where one was killed, what others were about then is known by them alone.
    """
    own = next((each.log for each in everybody if each.name == cause.blames), cause.log)
    log = "" if own is None else f"; log: {own}"
    if cause.exit_code >= 0 and cause.words and not cause.is_stopped:
        return f"{said_by(cause.name, _PREFIX.sub('', cause.words))}{log}"
    others = (_CONTEXT.search(each.words) for each in everybody if each.blames == cause.name)
    context = next((f", {found[0]}" for found in others if found is not None), "")
    if cause.is_stopped:
        return f"{cause.name} is stopped, by a signal or a debugger{context}{log}"
    if cause.exit_code >= 0:
        return f"{cause.name}: ended with exit code {cause.exit_code}{context}{log}"
    end = cause.given_up or f"was killed by {Signals(-cause.exit_code).name}"
    return f"{cause.name} {end}{context}{log}"
