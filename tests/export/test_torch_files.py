"""Files of an export to PyTorch, without PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.saved import loaded

from taihu.core.base.errors import ModelError
from taihu.export.to_torch import write_torch
from taihu.worker.engine import Linear


def test_code_of_the_users_own_is_not_overwritten(tmp_path: Path) -> None:
    model = loaded(Linear(2), (4,), 2)
    own = tmp_path / "mine.py"
    own.write_text("def build(): ...\n")
    with pytest.raises(ModelError, match=r"mine\.py: is there already, .* give another --out than mine\.safetensors"):
        write_torch(model, tmp_path / "mine.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]
    assert own.read_text() == "def build(): ...\n"


def test_an_export_may_be_written_again(tmp_path: Path) -> None:
    model = loaded(Linear(2), (4,), 2)
    written = write_torch(model, tmp_path / "out.safetensors")
    before = [path.read_bytes() for path in written]
    assert [path.read_bytes() for path in write_torch(model, tmp_path / "out.safetensors")] == before
