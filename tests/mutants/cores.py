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
    """Glob patterns below `ROOT` of the files to change; tests, or folders of them, without real processes."""

    patterns: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """The files, relative to `ROOT`, in order."""
        found = {path.relative_to(ROOT).as_posix() for pattern in self.patterns for path in ROOT.glob(pattern)}
        return tuple(sorted(found))


CORES: Mapping[str, Core] = MappingProxyType(
    {
        "planner": Core(("taihu/planner/*.py",), ("tests/planner",)),
        "coordination": Core(
            tuple(f"taihu/coordination/{name}.py" for name in ("membership", "planning", "stopping", "awaited")),
            tuple(
                f"tests/coordination/test_{name}.py"
                for name in ("membership", "membership_promises", "planning", "stopping", "awaited")
            ),
        ),
        "compression": Core(("taihu/compression/*.py",), ("tests/compression",)),
        "server": Core(
            (
                "ps_server/aggregator.py",
                "ps_server/answering.py",
                "ps_server/contribution.py",
                "ps_server/frame_buffers.py",
                "ps_server/initialization.py",
                "ps_server/server_shard.py",
                "ps_server/shard_holder.py",
                "ps_server/snapshot.py",
                "ps_server/summing.py",
                "taihu/optimization/shard.py",
                "taihu/optimization/sums.py",
            ),
            (
                "tests/ps_server/test_aggregator.py",
                "tests/ps_server/test_another_plan.py",
                "tests/ps_server/test_frame_buffers.py",
                "tests/ps_server/test_server_shard.py",
                "tests/ps_server/test_shard_holder.py",
                "tests/ps_server/test_snapshot.py",
                "tests/ps_server/test_summing.py",
                "tests/optimization/test_shard.py",
            ),
        ),
        "step": Core(("worker/exchange/step_protocol.py",), ("tests/worker/test_step_protocol.py",)),
        "ring": Core(
            ("allreduce/ring/*.py", "allreduce/sparse/[!em]*.py"),
            tuple(
                f"tests/allreduce/test_{name}.py"
                for name in ("ring", "ring_scenarios", "operation", "sparse", "sparse_scenarios")
            ),
        ),
    }
)
