"""Decisions that come before NumPy and gRPC are imported.

OpenBLAS chooses its kernels by the processor's name and takes AVX2 for names that it does not know, although the
processor has AVX-512; a product then takes 1.3 to 1.6 times as long. gRPC's core writes log lines of its own to
stderr, beside the one line that taihu says about the same thing. glibc gives buffers of a frame's size back to the
system as soon as they are freed, so that each new frame is paid for in page faults; and it has heaps for single
threads, which never shrink then. Shells let a process open few files. Some locales have no letters but English ones.
"""

from __future__ import annotations

import io
import os
import resource
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path

from taihu.core.system.memory import c_library, go_on_collecting, is_collecting, stop_collecting

# The numbers of glibc's <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGEST_KEPT_BYTES = 32 << 20
_KEPT_BYTES = 256 << 20
_VARIABLE = "OPENBLAS_CORETYPE"
_AVX512_KERNELS = "SkylakeX"
_NEEDED = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


def prepare_process(environment: MutableMapping[str, str]) -> None:
    """Set what is not set; child processes inherit the environment.

    Where Python reads names of files as ASCII, this process begins again and reads them as UTF-8.
    """
    if sys.getfilesystemencoding() == "ascii" and environment.get("PYTHONUTF8") != "1":
        _begin_again({**environment, "PYTHONUTF8": "1"})
    _write_any_letter()
    environment.setdefault("GRPC_VERBOSITY", "NONE")
    if environment.get("COLUMNS", "").strip() == "0":
        del environment["COLUMNS"]  # of a terminal that does not know its width; nothing would be shown in none
    prefer_widest_vectors(environment)
    keep_freed_memory()
    allow_open_files()


def _begin_again(environment: Mapping[str, str]) -> None:
    """Start this process's command line anew, in its place; where Python is embedded and has none, do nothing.

    A letter beyond ASCII would be halves of one in Python, which no file, log or message takes.
    """
    if sys.executable and sys.orig_argv:
        os.execve(sys.executable, sys.orig_argv, environment)  # noqa: S606 - the program that runs already


def _write_any_letter() -> None:
    """Have standard output and error write letters that they cannot encode as Python does in source code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def allow_open_files(most: int = 1 << 16) -> None:
    """Raise the limit of open files as far as the system lets a process, or to `most`.

    Shells set 1024, which as many strangers can take up who connect and say nothing.
    """
    now, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if highest == resource.RLIM_INFINITY else min(most, highest)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, highest))


@contextmanager
def importing_much() -> Iterator[None]:
    """Collect no garbage during the block: imports leave none, and a fifth of their time is looking for it."""
    collects = is_collecting()
    stop_collecting()
    try:
        yield
    finally:
        if collects:
            go_on_collecting()


def prefer_widest_vectors(environment: MutableMapping[str, str], cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Ask for the AVX-512 kernels on a processor that has the instructions; a user's own choice stands."""
    if _VARIABLE in environment or not cpuinfo.exists():
        return
    flags = next((line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), "")
    if set(flags.split()) >= _NEEDED:
        environment[_VARIABLE] = _AVX512_KERNELS


def keep_freed_memory() -> None:
    """Let glibc reuse freed buffers of up to 32 MiB; without glibc, do nothing.

    Comes before there are threads, or some have heaps of their own already.
    """
    try:
        mallopt = c_library().mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    # `malloc_trim` leaves the end of a thread's own heap alone, and of a heap from which all was freed that is all.
    # On a busy machine gRPC's threads leave 140 MB of initial parameters there. The one heap of a process has no such
    # end, and no lock that is waited for: values lie in buffers that are used again and again.
    mallopt(_M_ARENA_MAX, 1)


def give_back_freed_memory() -> None:
    """Return freed buffers to the system; without glibc, do nothing.

    For the end of a start, whose buffers are larger than any that come later.
    """
    try:
        trim = c_library().malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    trim(0)
