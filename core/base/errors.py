"""The exception tree. A message names the thing, what was expected and seen, and the remedy, in one line."""

from typing import Final

_PUBLIC: Final = "taihu.errors"  # the name that programs know, and tracebacks show

__all__ = [
    "AWAY",
    "CheckpointError",
    "ConfigError",
    "DamagedFrameError",
    "DataError",
    "ExchangeError",
    "FinishedError",
    "FrameError",
    "GivenUpError",
    "MemberLostError",
    "ModelError",
    "PeerUnreachableError",
    "RecoveringError",
    "RefusedError",
    "RunError",
    "SharedMemoryError",
    "StaleError",
    "TaihuError",
    "WriteError",
]


class TaihuError(Exception):
    """Base of all errors that taihu raises on purpose; `exit_code` is what a command ends with.

    `was_said` is False of a call that was cut or not answered in time: whoever was called has said nothing.
    """

    exit_code = 1
    was_said = True


class ConfigError(TaihuError):
    """A setting, flag, address or environment variable is wrong."""

    exit_code = 2


class DataError(ConfigError):
    """A data set is missing, truncated or does not have the promised shape."""


class ModelError(ConfigError):
    """A model does not fit its data, the other workers' model, or a saved one."""


class CheckpointError(ConfigError):
    """A checkpoint is missing, incomplete, damaged, or of another job."""


class PeerUnreachableError(ConfigError):
    """An address did not answer within its deadline."""


class RefusedError(ConfigError):
    """A call is not let in: its caller has not shown who it is (not `is_known`), or may not make it.

    `reason` is one of few words, for a metric.
    """

    def __init__(self, message: str, reason: str = "", *, is_known: bool = True) -> None:
        super().__init__(message)
        self.reason = reason
        self.is_known = is_known


class WriteError(TaihuError):
    """A file, or standard output, cannot be written: no room, no right, a limit, a disk that fails."""


class RunError(TaihuError):
    """The run was under way and cannot go on."""


class FinishedError(TaihuError):
    """The run has finished without this process, which has nothing left to do: no failure."""

    exit_code = 0


class ExchangeError(RunError):
    """The exchange of a step failed."""


class MemberLostError(RunError):
    """A server or worker process of this run died or went silent."""


class RecoveringError(RunError):
    """A member was lost, and all members of the run begin again from a checkpoint."""


class FrameError(TaihuError):
    """A frame is malformed: wrong size, range, dtype or layout. Nothing was changed by it."""


class DamagedFrameError(FrameError):
    """A frame is not as it was sent: its checksum is another one. Nothing was changed by it."""


class SharedMemoryError(TaihuError):
    """Memory cannot be shared with a process; the same bytes can go over TCP."""


class StaleError(TaihuError):
    """A frame or call belongs to another job, incarnation, plan or step. Nothing was changed by it."""


class GivenUpError(StaleError):
    """A frame belongs to an attempt that was given up: whoever sent it had not heard of that."""


AWAY: Final = (MemberLostError, PeerUnreachableError)
"""Errors of a call that was not answered."""

for _name in __all__:
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = _PUBLIC
