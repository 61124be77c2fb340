"""The process is prepared by what the processor can do, and a user's own choice stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from taihu.core.process.programs.preparation import (
    give_back_freed_memory,
    keep_freed_memory,
    prefer_widest_vectors,
    prepare_process,
)

AVX2 = "flags\t\t: fpu sse2 avx avx2 fma\n"
AVX512 = "processor: 0\nflags\t\t: fpu avx2 avx512f avx512dq avx512bw avx512vl\n"


@pytest.mark.parametrize(
    ("cpuinfo", "before", "after"),
    [
        (AVX512, {}, {"OPENBLAS_CORETYPE": "SkylakeX"}),
        (AVX2, {}, {}),
        ("", {}, {}),
        (AVX512, {"OPENBLAS_CORETYPE": "Haswell"}, {"OPENBLAS_CORETYPE": "Haswell"}),
    ],
)
def test_blas_uses_avx512_where_there_is_all_of_it(
    tmp_path: Path, cpuinfo: str, before: dict[str, str], after: dict[str, str]
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    environment = dict(before)
    prefer_widest_vectors(environment, tmp_path / "cpuinfo")
    assert environment == after


def test_a_system_without_cpuinfo_keeps_its_blas(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    prefer_widest_vectors(environment, tmp_path / "none")
    assert environment == {}


LETTERS = """
import os, sys
from taihu.core.process.programs.preparation import prepare_process
prepare_process(os.environ)
print(sys.argv[1:], os.path.exists(sys.argv[1]), ascii(sys.argv[1]))
"""


@pytest.mark.parametrize("coding", ["", "ascii"])
def test_names_beyond_ascii_are_read_and_told_in_any_locale(coding: str, tmp_path: Path) -> None:
    (tmp_path / "öl").touch()
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": coding}
    done = subprocess.run(
        [sys.executable, "-P", "-c", LETTERS, "öl", "-m"],
        cwd=tmp_path,
        env={**os.environ, **locale},
        capture_output=True,
        timeout=600,
        check=True,
    )
    # One letter of two bytes, and in another coding of the output as it is in source code.
    shown = "\\xf6l" if coding else "öl"
    assert done.stdout.decode() == f"['{shown}', '-m'] True '\\xf6l'\n"


def test_preparing_twice_changes_nothing_more_and_keeps_a_users_verbosity() -> None:
    environment = {"GRPC_VERBOSITY": "DEBUG"}
    prepare_process(environment)
    first = dict(environment)
    prepare_process(environment)
    assert environment == first
    assert environment["GRPC_VERBOSITY"] == "DEBUG"
    keep_freed_memory()


_KEEP_AND_GIVE_BACK = """
import sys
from pathlib import Path
from threading import Barrier, Thread
from taihu.core.process.programs.preparation import give_back_freed_memory, keep_freed_memory
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
def fill(count, filled, freed):
    buffers = [bytearray(b"x" * (1 << 20)) for _ in range(count)]
    filled.wait()
    filled.wait()
    del buffers
    freed.wait()
    freed.wait()
keep_freed_memory()
count = int(sys.argv[1])
filled, freed = Barrier(count + 1), Barrier(count + 1)
for _ in range(count):
    Thread(target=fill, args=(200 // count, filled, freed)).start()
filled.wait()
full = resident()
filled.wait()
freed.wait()
kept = resident()
give_back_freed_memory()
given_back = resident()
freed.wait()
print(full, kept, given_back)
"""


@pytest.mark.parametrize("threads", [1, 5])
def test_freed_memory_is_kept_until_it_is_given_back(threads: int) -> None:
    """Whichever threads it was allocated and freed in, such as those of gRPC that received initial parameters."""
    command = [sys.executable, "-c", _KEEP_AND_GIVE_BACK, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    full, kept, given_back = map(float, done.stdout.split())
    assert kept > full - 20
    assert given_back < full - 180
    give_back_freed_memory()
