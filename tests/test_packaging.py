"""The contents of the wheel."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest


@pytest.mark.xdist_group("wheel")
def test_the_wheel_holds_taihu_and_nothing_else_at_its_top(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        told = {name.rpartition("/")[2]: opened.read(name).decode() for name in names if ".dist-info/" in name}
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"taihu"}
    for needed in (
        "taihu/protos/tensor.proto",
        "taihu/protos/tensor_pb2.pyi",
        "taihu/kernels/py.typed",
        "taihu/cli/main.py",
    ):
        assert needed in names
    assert "Apache License" in told["LICENSE"]
    for line in ("License-Expression: Apache-2.0", "Author: The taihu authors", "Requires-Python: >=3.11"):
        assert line in told["METADATA"].splitlines()
