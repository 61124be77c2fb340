"""The files that a process may open, of which strangers take some up."""

from __future__ import annotations

import resource

from taihu.core.process.programs.preparation import allow_open_files


def test_a_process_may_open_as_many_files_as_the_system_lets_it() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most, half = before[1], before[1] // 2
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (half, most))
        allow_open_files(half - 5)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (half, most)
        allow_open_files(half + 5)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (half + 5, most)
        allow_open_files(most + 5)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
