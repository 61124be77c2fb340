"""What is in the wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from taihu.guard import PACKAGES

ROOT = Path(__file__).parents[1]


def test_the_wheel_holds_taihus_packages_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S607
    for name in filter(None, listed.splitlines()):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
    ]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = wheel.namelist()
        told = {name.rpartition("/")[2]: wheel.read(name).decode() for name in names if ".dist-info/" in name}
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == set(PACKAGES)
    for needed in ("protos/tensor.proto", "protos/tensor_pb2.pyi", "kernels/py.typed", "taihu/cli/main.py"):
        assert needed in names
    assert "Apache License" in told["LICENSE"]
    for line in ("License-Expression: Apache-2.0", "Author: The taihu authors", "Requires-Python: >=3.11"):
        assert line in told["METADATA"].splitlines()
