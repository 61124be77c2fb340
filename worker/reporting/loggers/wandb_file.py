"""The steps in files that W&B writes offline: the log format of LevelDB, with records of protobuf in it.

W&B has no reader of them in Python, and says of no row when it is written.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

from wandb.proto.wandb_internal_pb2 import Record

from taihu.core.job.loggers import Kind

_BLOCK: Final = 32_768
_HEADER: Final = struct.Struct("<IHB")  # checksum, length, whether a record begins or ends here
_BEGINS_FILE: Final = 7
_TOLD_BY: Final[Mapping[Kind, str]] = {"step": "seconds/step", "test": "test/loss"}
_WHOLE, _FIRST, _LAST = 1, 2, 4


def steps_in(files: Iterable[Path]) -> dict[Kind, int]:
    """The last step and the last test in the files of a run, which may be gone, or cut off."""
    last: dict[Kind, int] = {}
    for history in chain.from_iterable(_histories(path.read_bytes()) for path in files if path.is_file()):
        names = {item.key or "/".join(item.nested_key) for item in history.item}
        for kind, name in _TOLD_BY.items():
            if name in names:
                last[kind] = max(last.get(kind, 0), int(history.step.num))
    return last


def _histories(data: bytes) -> Iterator[Any]:
    for content in _records(data):
        record = Record.FromString(content)
        if record.WhichOneof("record_type") == "history":
            yield record.history


def _records(data: bytes) -> Iterator[bytes]:
    """The records that are whole, until the first that is not."""
    at, parts = _BEGINS_FILE, b""
    while at + _HEADER.size <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER.size:
            at += left
            continue
        _, length, kind = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        if not kind or at + length > len(data):
            return
        parts = data[at : at + length] if kind in {_WHOLE, _FIRST} else parts + data[at : at + length]
        at += length
        if kind in {_WHOLE, _LAST}:
            yield parts
