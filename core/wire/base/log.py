"""Structured logs on stderr or in a file: for people on a terminal, JSON lines elsewhere or on demand."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Literal, TextIO

import structlog

from taihu.core.base.words import one_line
from taihu.core.wire.base.clock import WallClock

LogFormat = Literal["auto", "text", "json"]


def configure_logs(
    form: LogFormat = "auto",
    *,
    verbose: bool = False,
    quiet: bool = False,
    wall: WallClock | None = None,
    stream: TextIO | None = None,
    **context: object,
) -> None:
    """Set up logging for this process; `context` (role, rank) is part of every line.

    With `verbose` every step is logged, with `quiet` warnings and errors alone. Lines have the time of `wall`, and go
    to `stream`, by default stderr.
    """
    wall = wall or WallClock()
    stream = stream or sys.stderr

    def stamped(_: object, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
        line["timestamp"] = wall.utc().isoformat(timespec="microseconds").replace("+00:00", "Z")
        return line

    least = logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO
    as_json = form == "json" or (form == "auto" and not stream.isatty())
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=stream.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            stamped,
            structlog.processors.format_exc_info,
            _printable,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(stream),
    )
    structlog.contextvars.bind_contextvars(**context)


def configure_script_logs(log: Path | None, *, role: str, rank: int) -> None:
    """Set up logging for a script of the user's, unless somebody has: in `log`, as whoever starts it may want.

    Without one they go where the script's own lines do: warnings alone, for people, whoever has started it.
    """
    if structlog.is_configured():
        return
    if log is None:
        configure_logs("text", quiet=True, role=role, rank=rank)
        return
    stream = log.open("a", buffering=1)  # it lives as this process does
    configure_logs("auto", stream=stream, role=role, rank=rank)


def _printable(_: object, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Texts of others stand in logs too; tracebacks have lines of their own."""
    for key, value in line.items():
        if isinstance(value, str) and key != "exception" and not value.isprintable():
            line[key] = one_line(value)
    return line
