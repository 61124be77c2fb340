"""The wheel, built once and installed beside the packages of this environment."""

from __future__ import annotations

import os
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
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            (source / name).symlink_to((ROOT / name).readlink())
        elif (ROOT / name).is_file():
            (source / name).write_bytes((ROOT / name).read_bytes())
    # What `pip wheel --no-build-isolation` calls, in half of the time.
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(folder)], cwd=source, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def install_wheel(wheel: Path, site: Path) -> dict[str, str]:
    """Unpack `wheel` into `site`; returns the environment that finds it there, before this checkout.

    What Python and numba compile of the same sources serves both places: their times are made equal, and
    `__pycache__` is one.
    """
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(site)
    for installed in site.rglob("*.py"):
        source = ROOT / installed.relative_to(site)
        if source.is_file():
            times = source.stat()
            os.utime(installed, ns=(times.st_atime_ns, times.st_mtime_ns))
            compiled = source.parent / "__pycache__"
            compiled.mkdir(exist_ok=True)
            if not (installed.parent / compiled.name).exists():
                (installed.parent / compiled.name).symlink_to(compiled)
    return {**os.environ, "PYTHONPATH": str(site)}
