"""Stand-in for `os`, put together of the calls that reach disks."""

from __future__ import annotations

import os
from types import FunctionType, ModuleType
from typing import Final

from taihu.explore.disk import numbers, paths, process
from taihu.explore.stand_ins.modules import like, not_simulated

__all__ = ["os_module"]

# They are written in Python, upon the calls here.
_MADE_OF_OTHERS: Final = ("makedirs", "removedirs", "renames", "walk", "_walk", "getenv")
_NOT_SIMULATED: Final = ("sync", "fork", "forkpty", "execv", "execve", "setsid", "pidfd_open", "chdir")


def _truncate(path: paths.AnyPath, length: int) -> None:
    number = path if isinstance(path, int) else paths.open_(path, os.O_WRONLY)
    try:
        numbers.ftruncate(number, length)
    finally:
        if number != path:
            numbers.close(number)


def os_module() -> ModuleType:
    """A stand-in for `os`; its `path` is still that of the real one."""
    same = {name: vars(each)[name] for each in (numbers, paths, process) for name in each.__all__ if name in vars(os)}
    module = like(
        os,
        **same,
        open=paths.open_,
        stat=paths.stat_,
        remove=paths.unlink,
        replace=paths.rename,
        truncate=_truncate,
        fdatasync=numbers.fsync,
        _exit=process.exit_process,
        environ=process.environment(),
        cpu_count=lambda: len(process.processors()),
        sched_getaffinity=process.processors,
        # They take no folder's number in a path's place, so that `shutil` and others use paths.
        supports_dir_fd=set(),
        supports_fd=set(),
        supports_follow_symlinks=set(),
        **dict.fromkeys(_NOT_SIMULATED, not_simulated),
    )
    for name in _MADE_OF_OTHERS:
        real = vars(os).get(name)
        if isinstance(real, FunctionType):
            made = FunctionType(real.__code__, vars(module), name, real.__defaults__, real.__closure__)
            made.__kwdefaults__ = real.__kwdefaults__
            setattr(module, name, made)
    return module
