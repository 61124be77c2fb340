"""The process is prepared by what the processor can do, and a user's own choice stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from taihu.process import keep_freed_memory, prefer_widest_vectors, prepare_process

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


def test_preparing_twice_changes_nothing_more_and_keeps_a_users_verbosity() -> None:
    environment = {"GRPC_VERBOSITY": "DEBUG"}
    prepare_process(environment)
    first = dict(environment)
    prepare_process(environment)
    assert environment == first
    assert environment["GRPC_VERBOSITY"] == "DEBUG"
    keep_freed_memory()
