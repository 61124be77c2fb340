"""Words on how far a command is, for who waits for it."""

from __future__ import annotations

from typing import Final

import typer

from taihu.core.system.clocks import monotonic

_QUIET_S: Final = 2.0


class Progress:
    """Tells standard error how far something is, every two seconds."""

    def __init__(self) -> None:
        self._next_s = monotonic() + _QUIET_S

    def __call__(self, text: str) -> None:
        """Tell `text`, unless something was told just now."""
        now = monotonic()
        if now >= self._next_s:
            self._next_s = now + _QUIET_S
            typer.echo(text, err=True)
