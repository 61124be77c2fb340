"""A few words to all ranks through Open MPI, whose `mpirun` tells nobody where the other ranks are.

The library is used in a process of its own, which ends before the run begins: a run has no MPI in it, and what goes
wrong in the library ends that process only.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from taihu.core.base.errors import ConfigError
from taihu.core.system.processes import TimeoutExpired, run

_LARGEST_BYTES: Final = 4096
_LIBRARIES: Final = ("libmpi.so.40", "libmpi.so")
# Of a few hundred bytes: without the network libraries that are slow to start.
_PLAIN: Final = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^openib,uct,ofi,usnic"}


def gather(record: Mapping[str, Any], timeout_s: float) -> list[dict[str, Any]]:
    """Records of all ranks of this `mpirun`, in the order of ranks; all ranks call this.

    Raises:
        ConfigError: Open MPI's library is not there, or does not answer within `timeout_s`.
    """
    try:
        done = run(
            [sys.executable, "-P", "-m", "taihu.launch.mpi"],
            input=json.dumps(record).encode(),
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env={**_PLAIN, **os.environ},
        )
    except TimeoutExpired:
        raise _unknown(f"the other ranks are silent for {timeout_s:g} s") from None
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise _unknown(words[-1] if words else f"exit code {done.returncode}")
    records: list[dict[str, Any]] = json.loads(done.stdout)
    return records


def _unknown(cause: str) -> ConfigError:
    return ConfigError(
        f"cannot ask Open MPI where rank 0 is ({cause}); give --coordinator HOST, the host of rank 0, or "
        "mpirun -x MASTER_ADDR=HOST"
    )


def _library() -> ctypes.CDLL:
    """Open MPI's library: where the dynamic linker looks, or beside the `mpirun` that started this process."""
    folders = [Path(folder) for folder in (os.environ.get("OMPI_LIBDIR_LOC"),) if folder]
    for name in (*(str(folder / name) for folder in folders for name in _LIBRARIES), *_LIBRARIES):
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    sys.exit(f"{_LIBRARIES[0]} not found")


def _all_gather(words: bytes) -> list[bytes]:
    """`MPI_Allgather` of records of equal size between `MPI_Init` and `MPI_Finalize`."""
    mpi = _library()
    world, byte = (ctypes.byref(ctypes.c_char.in_dll(mpi, f"ompi_mpi_{name}")) for name in ("comm_world", "byte"))
    size = ctypes.c_int()
    own = ctypes.create_string_buffer(words, _LARGEST_BYTES)
    _check(mpi.MPI_Init(None, None))
    _check(mpi.MPI_Comm_size(world, ctypes.byref(size)))
    every = ctypes.create_string_buffer(_LARGEST_BYTES * size.value)
    _check(mpi.MPI_Allgather(own, _LARGEST_BYTES, byte, every, _LARGEST_BYTES, byte, world))
    _check(mpi.MPI_Finalize())
    return [every.raw[start : start + _LARGEST_BYTES].rstrip(b"\0") for start in range(0, len(every), _LARGEST_BYTES)]


def _check(code: int) -> None:
    if code:
        sys.exit(f"MPI error {code}")


def main() -> None:
    """One record from standard input to all ranks; those of all to standard output."""
    words = sys.stdin.buffer.read()
    if len(words) > _LARGEST_BYTES:
        sys.exit(f"a record of {len(words)} bytes, at most {_LARGEST_BYTES}")
    print(json.dumps([json.loads(record) for record in _all_gather(words)]))  # noqa: T201


if __name__ == "__main__":
    main()
