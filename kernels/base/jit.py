"""The one way kernels are compiled: without the GIL, cached on disk, in IEEE order unless asked otherwise."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import config, environment
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime.nrt import rtsys

from taihu.kernels.base.cache import enable_cache

_NUMBA: Any = config
if _NUMBA.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT is set, and kernels are compiled or nothing; unset it", name=__name__)

F = TypeVar("F", bound=Callable[..., Any])

_PACKAGE = Path(__file__).parents[1]
# Nobody takes a kernel's address as a C function: its wrapper would hold the code once more, and take a third of the
# time in which kernels are compiled.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_OPTIONS_OF_PARTS: dict[str, Any] = {**_OPTIONS, "no_cpython_wrapper": True}


def kernel(function: F) -> F:
    """Compile `function`; fused multiply-adds are allowed, reordering of sums is not."""
    return cast(F, _compiled_once(numba.njit(fastmath={"contract"}, **_OPTIONS)(function)))


def kernel_part(function: F) -> F:
    """Compile `function` as `kernel` does, for kernels alone: without what takes Python's arguments apart.

    That is a good part of the machine code of a small kernel, and of the time in which it is compiled.

    Raises:
        TypeError: when Python calls it.
    """
    dispatcher = _compiled_once(numba.njit(fastmath={"contract"}, **_OPTIONS_OF_PARTS)(function))

    def refuse(*_: object) -> None:
        raise TypeError(f"{function.__qualname__}: called by Python, expected a kernel; declare it with @kernel")

    def add_overload(compiled: Any) -> None:
        # Not where calls from Python find it: it cannot take them.
        dispatcher.overloads[tuple(compiled.signature.args)] = compiled

    dispatcher._compile_for_args, dispatcher.add_overload = refuse, add_overload
    return cast(F, dispatcher)


def kernel_reassociating(function: F) -> F:
    """Compile `function` with vectorised reductions: same bits on one kind of machine, not source order."""
    return cast(F, _compiled_once(numba.njit(fastmath={"contract", "reassoc", "nsz"}, **_OPTIONS)(function)))


def _compiled_once(dispatcher: Any) -> Any:
    """Let several processes that lack a kernel wait for the one that compiles it: it is in the cache then.

    Otherwise a run's first start compiles everything in each of its processes, and of two that write the cache's
    index at once one is forgotten.
    """
    if not enable_cache(dispatcher, sources_stamp(_PACKAGE)):
        return dispatcher
    cache = dispatcher._cache
    compile_or_load = dispatcher.compile
    calls: list[ExitStack] = []

    def compile_alone(signature: Any) -> Any:
        with global_compiler_lock, ExitStack() as held:
            calls.append(held)
            try:
                return compile_or_load(signature)
            finally:
                calls.pop()

    def load_or_lock(signature: Any, context: Any) -> Any:
        found = _loaded(cache, signature, context)
        # A kernel that calls itself is locked already.
        if found is None and len(calls) == 1:
            name = f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__qualname__}.lock"
            calls[0].enter_context(_locked(Path(cache.cache_path) / name))
            found = _loaded(cache, signature, context)
        return found

    dispatcher.compile, cache.load_overload = compile_alone, load_or_lock
    return dispatcher


@lru_cache(maxsize=1)
def sources_stamp(package: Path) -> tuple[int, int]:
    """The latest change, in ns, and the size in bytes of all sources of `package`.

    The machine code of a kernel holds that of others that it calls, and constants of other files: numba's own stamp,
    of the kernel's file alone, would let it outlive them.
    """
    files = [path.stat() for path in package.rglob("*.py")]
    return max(file.st_mtime_ns for file in files), sum(file.st_size for file in files)


def _loaded(cache: Any, signature: Any, context: Any) -> Any:
    """The machine code of the cache's file; None where there is none.

    The cache's own `load_overload` makes ready to compile first, which imports 200 modules and registers what they
    implement: 0.4 s, of which machine code needs only numba's runtime. Who compiles makes ready then.
    """
    rtsys.initialize(context)
    with cache._guard_against_spurious_io_errors(), _importing_nothing():
        return cache._load_overload(signature, context)


@contextmanager
def _importing_nothing() -> Iterator[None]:
    """During the block, loaded machine code does not import the modules of numba that parts of it were made of.

    Its environments are of these modules' variables, which Python code would look up in them, and machine code does
    not: for a kernel that takes an `argmin` numba would import the linear algebra of SciPy, 0.2 s.
    """
    untyped: Any = environment
    rebuild = untyped._rebuild_env

    def rebuild_here(module: str, constants: list[object], name: str) -> object:
        found = untyped.lookup_environment(name)
        if found is not None or module in sys.modules or not module.startswith("numba."):
            return rebuild(module, constants, name)
        made = untyped.Environment({"__name__": module})
        made.consts[:] = constants
        made.env_name = name
        untyped.Environment._memo[name] = made
        return made

    untyped._rebuild_env = rebuild_here
    try:
        yield
    finally:
        untyped._rebuild_env = rebuild


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file during the block; where it cannot be written, everybody goes on at once."""
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(path.open("w")), fcntl.LOCK_EX)
        except OSError:
            pass
        yield
