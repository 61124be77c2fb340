"""The cores: the files whose decisions count, and the fast tests that judge them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

__all__ = ["CORES", "ROOT", "Core"]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Core:
    """Glob patterns below `ROOT` of the files to change, of the tests that judge them, and of scenarios for these.

    `without` are tests among those which use gRPC: no process that has done so may be forked.
    """

    patterns: tuple[str, ...]
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """The files, relative to `ROOT`, in order."""
        return _found(self.patterns)

    @property
    def test_files(self) -> tuple[str, ...]:
        """The files of tests, relative to `ROOT`, in order."""
        return _found(self.tests)

    @property
    def scenario_files(self) -> tuple[str, ...]:
        """The files of scenarios, relative to `ROOT`, in order."""
        return _found(self.scenarios)


def _found(patterns: tuple[str, ...]) -> tuple[str, ...]:
    found = [{path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)} for pattern in patterns]
    if not all(found):
        raise FileNotFoundError(f"{patterns[found.index(set())]}: no such files; mend tests/mutants/cores.py")
    return tuple(sorted(set().union(*found)))


def _named(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}{name}.py" for name in names)


CORES: Mapping[str, Core] = MappingProxyType(
    {
        # model_shapes.py is a table of published sizes, made when it is imported.
        "planner": Core(
            ("taihu/core/planner/[!m]*.py", "taihu/core/planner/me[!a]*.py"), ("tests/planner/test_*.py",)
        ),
        "coordination": Core(
            _named("taihu/core/coordination/", "membership", "planning", "stopping", "awaited"),
            _named("tests/coordination/test_", "membership*", "planning", "stopping", "awaited"),
            (
                "tests/coordination/test_planning.py::test_workers_and_servers_change_the_plan_at_the_same_step",
                "tests/coordination/test_awaited.py::test_a_run_tells_who_is_missing_and_since_when",
                "tests/coordination/test_awaited.py::test_a_coordinator_that_does_not_answer_is_who_is_awaited",
            ),
            scenarios=("tests/testdata/membership/*.txt",),
        ),
        "compression": Core(("taihu/core/compression/*.py",), ("tests/compression/test_*.py",)),
        "step": Core(
            ("taihu/worker/exchange/step_*.py",),
            ("tests/worker/**/test_step_protocol.py",),
            (),
            ("tests/testdata/step/*.txt",),
        ),
        "server": Core(
            (
                "taihu/ps_server/aggregator.py",
                "taihu/ps_server/server_shard.py",
                "taihu/ps_server/shard_holder.py",
                "taihu/ps_server/squeezing.py",
                "taihu/ps_server/summing.py",
                "taihu/ps_server/updating.py",
                "taihu/core/optimization/rules.py",
                "taihu/core/optimization/sums.py",
            ),
            (
                "tests/ps_server/test_aggregator.py",
                "tests/ps_server/test_another_plan.py",
                "tests/ps_server/test_frame_buffers.py",
                "tests/ps_server/test_server_shard.py",
                "tests/ps_server/test_shard_holder.py",
                "tests/ps_server/test_shard_state.py",
                "tests/ps_server/test_summing.py",
                "tests/optimization/test_clipped_updates.py",
                "tests/optimization/test_shard.py",
                "tests/optimization/test_whole_norm.py",
            ),
            scenarios=("tests/testdata/aggregator/*.txt",),
        ),
        "ring": Core(
            ("taihu/allreduce/ring/*.py", "taihu/allreduce/sparse/[!em]*.py"),
            _named("tests/allreduce/test_", "ring", "ring_scenarios", "operation", "sparse", "sparse_scenarios"),
            scenarios=("tests/testdata/ring/*.txt", "tests/testdata/sparse_allreduce/*.txt"),
        ),
    }
)
