"""Structured logs on stderr or in a file: for people on a terminal, JSON lines elsewhere or on demand."""

from __future__ import annotations

import logging
import sys
from typing import Literal, TextIO

import structlog

from taihu.wire.clock import WallClock
from taihu.words import one_line

__all__ = ["LogFormat", "configure_logs"]

LogFormat = Literal["auto", "text", "json"]


def configure_logs(
    form: LogFormat = "auto",
    *,
    verbose: bool = False,
    wall: WallClock | None = None,
    stream: TextIO | None = None,
    **context: object,
) -> None:
    """Set up logging for this process; `context` (role, rank) is part of every line, `verbose` shows every step.

    Lines have the time of `wall`, and go to `stream`, by default stderr.
    """
    wall = wall or WallClock()
    stream = stream or sys.stderr

    def stamped(_: object, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
        line["timestamp"] = wall.utc().isoformat(timespec="microseconds").replace("+00:00", "Z")
        return line

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
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if verbose else logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(stream),
    )
    structlog.contextvars.bind_contextvars(**context)


def _printable(_: object, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Texts of others stand in logs too; tracebacks have lines of their own."""
    for key, value in line.items():
        if isinstance(value, str) and key != "exception" and not value.isprintable():
            line[key] = one_line(value)
    return line
