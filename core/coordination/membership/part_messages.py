"""Messages of steps that members hold, and of parts that they have stored, and back.

They are apart from `messages`, which commands that only look on import: parts are made of arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from taihu.core.base.errors import FrameError
from taihu.core.base.words import told
from taihu.core.checkpoint.files import PartFile, file_name
from taihu.core.checkpoint.gathering import WrittenPart
from taihu.core.checkpoint.held_steps import MOST_HELD, Label
from taihu.protos import coordinator_pb2 as pb

__all__ = [
    "file_from_message",
    "held_from_message",
    "held_to_message",
    "written_from_message",
    "written_to_message",
]

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def held_to_message(labels: Iterable[Label]) -> list[pb.HeldStep]:
    """Convert steps that a member holds."""
    return [pb.HeldStep(generation=label.generation, step=label.step) for label in sorted(labels)]


def held_from_message(message: Iterable[pb.HeldStep]) -> frozenset[Label]:
    """Convert steps that a member holds; raises FrameError for more than it can hold."""
    labels = frozenset(Label(held.generation, held.step) for held in message)
    if len(labels) > MOST_HELD:
        raise FrameError(f"{len(labels)} held steps: expected at most {MOST_HELD}")
    return labels


def written_to_message(part: WrittenPart) -> pb.HeldPart:
    """Convert a part of a held step."""
    (of,) = held_to_message((part.label,))
    return pb.HeldPart(of=of, **part.file._asdict(), run=part.run)


def written_from_message(member: str, message: pb.HeldPart) -> WrittenPart:
    """Convert a part of a held step; raises FrameError for one that is not the member's."""
    (label,) = held_from_message((message.of,))
    return WrittenPart(label, file_from_message(member, message), message.run)


def file_from_message(member: str, message: pb.StoredRequest | pb.HeldPart) -> PartFile:
    """Convert the file of a member's part; raises FrameError for one of another name, or without its hash."""
    expected = file_name(member)
    if message.name != expected or not _SHA256.fullmatch(message.sha256):
        raise FrameError(f"{member} has stored {told(message.name)!r}: expected {expected} and its SHA-256")
    return PartFile(message.name, message.size_bytes, message.sha256)
