"""taihu installed from its wheel as a user has it who is not root: in a virtual environment that only root writes."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.wheel import build_wheel

__all__ = ["OtherUser", "installed_for_another_user"]

_NOBODY: Final = 65534


@dataclass(frozen=True)
class OtherUser:
    """Commands of a user with a home of his own, in which all that he keeps lies."""

    home: Path
    programs: Path
    libraries: Path

    def run(
        self, command: str, folder: Path, variables: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a line of a shell; nothing of this process's environment is in its."""
        path = f"{self.programs}:/usr/local/bin:/usr/bin:/bin"
        return subprocess.run(
            ["bash", "-euc", command],  # noqa: S607
            cwd=folder,
            env={
                "PATH": path,
                "HOME": str(self.home),
                "LANG": "C.UTF-8",
                "LD_LIBRARY_PATH": str(self.libraries),
                **variables,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            user=_NOBODY,
            group=_NOBODY,
            extra_groups=(),
        )

    def write(self, file: Path, text: str) -> None:
        """Make a file that is his."""
        file.write_text(text, encoding="utf-8")
        os.chown(file, _NOBODY, _NOBODY)

    def folder(self, name: str) -> Path:
        """An empty folder in his home."""
        made = self.home / name
        made.mkdir()
        os.chown(made, _NOBODY, _NOBODY)
        return made


@contextmanager
def installed_for_another_user() -> Iterator[OtherUser]:
    """Build the wheel and install it, beside the packages of this environment; root alone can."""
    place = Path(tempfile.mkdtemp(prefix="taihu-installed-"))
    try:
        place.chmod(0o755)
        venv = place / "venv"
        python = _python(place)
        subprocess.run([str(python), "-m", "venv", "--without-pip", str(venv)], check=True)
        site = next(venv.glob("lib/python*/site-packages"))
        _provide(Path(sysconfig.get_path("purelib")), site)
        (place / "built").mkdir()
        wheel = build_wheel(place / "built")
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(venv)]
        subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True)
        user = OtherUser(place / "home", venv / "bin", python.parents[1] / "lib")
        user.folder("")
        yield user
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _python(place: Path) -> Path:
    """The Python of this environment, from a place where everybody reaches it."""
    python = Path(sys.executable).resolve()
    if _is_reached(python):
        return python
    shutil.copytree(sys.base_prefix, place / "python", symlinks=True, copy_function=_link)
    return place / "python" / python.relative_to(sys.base_prefix)


def _provide(packages: Path, site: Path) -> None:
    """Have all packages of another environment in `site`, but taihu."""
    for each in packages.iterdir():
        if "taihu" in each.name or each.name == "__pycache__":
            continue
        if _is_reached(each):
            (site / each.name).symlink_to(each)
        elif each.is_dir():
            shutil.copytree(each, site / each.name, symlinks=True, copy_function=_link, dirs_exist_ok=True)
        else:
            _link(str(each), str(site / each.name))


def _is_reached(path: Path) -> bool:
    """Whether every user gets to it."""
    return all(each.stat().st_mode & stat.S_IXOTH for each in path.parents) and bool(
        path.stat().st_mode & stat.S_IROTH
    )


def _link(source: str, to: str) -> str:
    """Links take no room; between file systems there are none."""
    try:
        os.link(source, to)
    except OSError:
        shutil.copy2(source, to)
    return to
