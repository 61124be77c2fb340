"""The modules that simulated code gets in place of `taihu.core.system`, the source of what comes from outside."""

from __future__ import annotations

import ctypes
import errno
from inspect import isroutine
from types import ModuleType
from typing import Any, NoReturn, Self

from taihu.core.system import chance, clocks, memory, polls, pools, processes, queues, signals, threads
from taihu.explore.stand_ins import chance as drawn
from taihu.explore.stand_ins import clocks as virtual
from taihu.explore.stand_ins import locks
from taihu.explore.stand_ins import threads as tasks
from taihu.explore.stand_ins.futures import Future, ThreadPoolExecutor
from taihu.explore.stand_ins.queues import Queue, SimpleQueue

__all__ = ["like", "not_simulated", "source_modules"]


def like(real: ModuleType, **own: Any) -> ModuleType:
    """A module that has all of `real`, and `own` in the place of what has the same names."""
    module = ModuleType(real.__name__, real.__doc__)
    vars(module).update({name: value for name, value in vars(real).items() if not name.startswith("__")})
    vars(module).update(own)
    return module


def not_simulated(*_: object, **__: object) -> NoReturn:
    """A call that no simulated process makes."""
    raise OSError(errno.ENOSYS, "not simulated")


class NoProgram:
    """`subprocess.Popen`: no simulated process starts one; types name it."""

    def __init__(self, *_: object, **__: object) -> None:
        not_simulated()

    def __class_getitem__(cls, kind: object) -> type[Self]:
        """The same, whatever its streams have."""
        return cls


def _no_library() -> ctypes.CDLL:
    raise OSError("libc: a simulated process loads no library")


def _functions_of(module: ModuleType) -> list[str]:
    """The names of those of its functions that are more than classes and numbers."""
    return [name for name in module.__all__ if isroutine(vars(module)[name])]


def source_modules() -> dict[str, ModuleType]:
    """Stand-ins for threads, clocks, chance and memory, by the names of the modules whose places they take."""
    modules = [
        like(
            threads,
            Lock=locks.Lock,
            RLock=locks.RLock,
            Condition=locks.Condition,
            Event=locks.Event,
            Semaphore=locks.Semaphore,
            BoundedSemaphore=locks.BoundedSemaphore,
            **{name: vars(tasks)[name] for name in tasks.__all__},
        ),
        like(clocks, **{name: vars(virtual)[name] for name in virtual.__all__}),
        like(queues, Queue=Queue, SimpleQueue=SimpleQueue),
        like(pools, Future=Future, ThreadPoolExecutor=ThreadPoolExecutor),
        like(chance, **{name: vars(drawn)[name] for name in drawn.__all__}),
        like(
            memory,
            # What a daemon gives back to the system, the next run would ask for again.
            c_library=_no_library,
            # Collections in the middle of a run would come at other points in each run, and finalizers pass points.
            collect_garbage=lambda: 0,
            freeze_objects=lambda: None,
            go_on_collecting=lambda: None,
            stop_collecting=lambda: None,
        ),
        like(processes, Popen=NoProgram, fork=not_simulated, run=not_simulated),
        # Explored worlds send signals by `os.kill`, and poll no file.
        *(like(each, **dict.fromkeys(_functions_of(each), not_simulated)) for each in (polls, signals)),
    ]
    return {module.__name__: module for module in modules}
