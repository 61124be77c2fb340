"""The modules that simulated code gets in place of Python's."""

from __future__ import annotations

import concurrent.futures
import ctypes
import datetime
import gc
import queue
import secrets
import threading
import time
from types import ModuleType
from typing import Any

from taihu.explore.stand_ins import chance, clocks, locks, threads
from taihu.explore.stand_ins.futures import Future, ThreadPoolExecutor
from taihu.explore.stand_ins.queues import Queue, SimpleQueue

__all__ = ["like", "python_modules"]


def like(real: ModuleType, **own: Any) -> ModuleType:
    """A module that has all of `real`, and `own` in the place of what has the same names."""
    module = ModuleType(real.__name__, real.__doc__)
    vars(module).update({name: value for name, value in vars(real).items() if not name.startswith("__")})
    vars(module).update(own)
    return module


def _no_library(name: str | None, *_: object, **__: object) -> ctypes.CDLL:
    raise OSError(f"{name or 'libc'}: a simulated process loads no library")


def python_modules() -> dict[str, ModuleType]:
    """Stand-ins for threads, clocks and randomness, by the names of the modules whose places they take."""
    modules = [
        like(
            threading,
            Lock=locks.Lock,
            RLock=locks.RLock,
            Condition=locks.Condition,
            Event=locks.Event,
            Semaphore=locks.Semaphore,
            BoundedSemaphore=locks.BoundedSemaphore,
            Thread=threads.Thread,
            Timer=threads.Timer,
            local=threads.Local,
            current_thread=threads.current_thread,
            main_thread=threads.main_thread,
            get_ident=threads.get_ident,
            get_native_id=threads.get_ident,
            active_count=threads.active_count,
        ),
        like(
            time,
            monotonic=clocks.monotonic,
            monotonic_ns=clocks.monotonic_ns,
            perf_counter=clocks.monotonic,
            perf_counter_ns=clocks.monotonic_ns,
            time=clocks.wall,
            time_ns=clocks.wall_ns,
            sleep=clocks.sleep,
            strftime=clocks.strftime,
        ),
        like(datetime, datetime=clocks.DateTime),
        like(queue, Queue=Queue, SimpleQueue=SimpleQueue),
        like(concurrent.futures, Future=Future, ThreadPoolExecutor=ThreadPoolExecutor),
        like(
            secrets,
            randbits=chance.randbits,
            randbelow=chance.randbelow,
            token_bytes=chance.token_bytes,
            token_hex=chance.token_hex,
            token_urlsafe=chance.token_urlsafe,
        ),
        # No library of C: what a daemon gives back to the system, the next run would ask for again.
        like(ctypes, CDLL=_no_library),
        # Collections in the middle of a run would come at other points in each run, and finalizers pass points.
        like(gc, collect=lambda *_: 0, freeze=lambda: None, enable=lambda: None, disable=lambda: None),
    ]
    return {module.__name__: module for module in modules}
