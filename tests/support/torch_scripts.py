"""Scripts of PyTorch as workers of `taihu run`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["SCRIPTS", "taihu_run"]

SCRIPTS = Path(__file__).parents[1] / "with_torch" / "scripts"


def taihu_run(
    folder: Path, *flags: str, script: str, arguments: tuple[str, ...] = (), workers: int = 3
) -> subprocess.CompletedProcess[str]:
    """`taihu run` with so many workers."""
    command = [sys.executable, "-P", "-m", "taihu", "run", "--workers", str(workers), "--logs", "logs", *flags]
    return subprocess.run(
        [*command, str(SCRIPTS / script), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
