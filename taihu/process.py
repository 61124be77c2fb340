"""What must be decided before NumPy and gRPC are imported.

OpenBLAS chooses its kernels by the processor's name and takes AVX2 for names that it does not know, although the
processor has AVX-512; a convolution then takes 1.3 to 1.6 times as long. gRPC's core writes log lines of its own to
stderr, beside the one line that taihu says about the same thing.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

__all__ = ["prefer_widest_vectors", "prepare_process"]

_VARIABLE = "OPENBLAS_CORETYPE"
_AVX512_KERNELS = "SkylakeX"
_NEEDED = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


def prepare_process(environment: MutableMapping[str, str]) -> None:
    """Set what is not set; child processes inherit it."""
    environment.setdefault("GRPC_VERBOSITY", "NONE")
    prefer_widest_vectors(environment)


def prefer_widest_vectors(environment: MutableMapping[str, str], cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Ask for the AVX-512 kernels on a processor that has the instructions; a user's own choice stands."""
    if _VARIABLE in environment or not cpuinfo.exists():
        return
    flags = next((line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), "")
    if set(flags.split()) >= _NEEDED:
        environment[_VARIABLE] = _AVX512_KERNELS
