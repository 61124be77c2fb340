"""Senders of frames. That of a stream is told in its metadata, so that it is known before the first frame."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from taihu.core.base.errors import FrameError

_JOB = "taihu-job"
_RANK = "taihu-rank"
_INCARNATION = "taihu-incarnation"


class Sender(NamedTuple):
    """One life of one process of a run: a worker, or a server, which has no rank here."""

    incarnation: int
    rank: int | None = None

    @property
    def label(self) -> str:
        """Its name in messages."""
        return "a server" if self.rank is None else f"worker {self.rank}"


@dataclass(frozen=True)
class WorkerIdentity:
    """One life of one worker of one job."""

    job: str
    rank: int
    incarnation: int

    @cached_property
    def sender(self) -> Sender:
        """The worker, as its frames name it."""
        return Sender(self.incarnation, self.rank)


def identity_to_metadata(identity: WorkerIdentity) -> tuple[tuple[str, str], ...]:
    """The metadata to open a stream with."""
    return ((_JOB, identity.job), (_RANK, str(identity.rank)), (_INCARNATION, str(identity.incarnation)))


def identity_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> WorkerIdentity:
    """Read what `identity_to_metadata` wrote; raises FrameError when it is missing or not a number."""
    values = {item[0]: str(item[1]) for item in metadata}
    try:
        return WorkerIdentity(values[_JOB], int(values[_RANK]), int(values[_INCARNATION]))
    except (KeyError, ValueError):
        raise FrameError(f"exchange without the metadata {_JOB}, {_RANK} and {_INCARNATION}") from None
