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
            tuple(
                f"ps_server/{name}.py" for name in ("aggregator", "contribution", "initialization", "pull", "store")
            ),
            ("tests/ps_server/test_aggregator.py",),
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
