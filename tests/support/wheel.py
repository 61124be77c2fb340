"""The wheel, built once and installed beside the packages of this environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

__all__ = ["build_wheel", "install_wheel"]

ROOT = Path(__file__).parents[2]


def build_wheel(folder: Path) -> Path:
    """Build the wheel of what git knows in `folder`."""
    source = folder / "source"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S607
    for name in filter(None, listed.splitlines()):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*pip, str(source)], check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def install_wheel(wheel: Path, site: Path) -> dict[str, str]:
    """Unpack `wheel` into `site`; returns the environment that finds it there, before this checkout.

    What Python and numba have compiled in this checkout serves the same sources there: their times are made equal.
    """
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(site)
    for installed in site.rglob("*.py"):
        source = ROOT / installed.relative_to(site)
        if source.is_file():
            times = source.stat()
            os.utime(installed, ns=(times.st_atime_ns, times.st_mtime_ns))
            for compiled in (source.parent / "__pycache__").glob(f"{source.stem}.*"):
                place = installed.parent / "__pycache__" / compiled.name
                place.parent.mkdir(exist_ok=True)
                shutil.copy2(compiled, place)
    return {**os.environ, "PYTHONPATH": str(site)}
