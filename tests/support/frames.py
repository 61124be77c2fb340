"""Headers of frames for tests, by flat names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taihu.core.wire.frames.format import read_message
from taihu.core.wire.frames.headers import Address, At, Frame, FrameHeader, ValueType
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Encoding, Gradients, Kind, Parameters, Question

__all__ = ["changed", "header_of", "initial_header", "question", "read"]


def header_of(  # noqa: PLR0917 - in the order of sender and address
    incarnation: int,
    plan: int,
    step: int,
    group: int,
    offset: int,
    elements: int,
    rank: int | None = None,
    *,
    attempt: int = 0,
    kind: Kind | None = None,
    encoding: Encoding = Encoding.DENSE,
    value_type: ValueType = ValueType.FP32,
    selected: int = 0,
) -> FrameHeader:
    """A header, of gradients unless `kind` says otherwise."""
    address = Address(At(plan, step, attempt), group, offset, elements)
    return FrameHeader(Sender(incarnation, rank), address, kind or Gradients(), encoding, value_type, selected)


def initial_header(*place: Any, **options: Any) -> FrameHeader:
    """The header of parameters; arguments are those of `header_of`."""
    return header_of(*place, **options, kind=Parameters())


def question(*place: Any, **options: Any) -> FrameHeader:
    """The header of a question; arguments are those of `header_of`."""
    return header_of(*place, **options, kind=Question(), encoding=Encoding.NONE)


def read(message: bytes, sender: Sender | None = None) -> Frame:
    """The frame of a message, of a server unless `sender` is told."""
    sender = sender or Sender(0)
    return read_message(message, sender, sender.label)[0]


def changed(header: FrameHeader, **changes: Any) -> FrameHeader:
    """`header` with other values of fields of sender, address, kind or itself, by their names alone."""
    parts: dict[str, Any] = {"at": header.address.at._asdict()}
    parts["address"] = header.address._asdict()
    parts["sender"] = header.sender._asdict()
    own: dict[str, Any] = {}
    of_kind: dict[str, Any] = {}
    for name, value in changes.items():
        for part in parts.values():
            if name in part:
                part[name] = value
                break
        else:
            (of_kind if name in type(header.kind).__slots__ else own)[name] = value
    parts["address"]["at"] = At(**parts["at"])
    kind = replace(own.pop("kind", header.kind), **of_kind)
    return replace(header, sender=Sender(**parts["sender"]), address=Address(**parts["address"]), kind=kind, **own)
