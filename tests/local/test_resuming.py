"""`--resume auto` goes on with a run of its own kind: scripts and models may have one folder of runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from taihu.core.base.errors import CheckpointError
from taihu.core.checkpoint.manifest import MANIFEST, SCRIPT, Manifest
from taihu.local.resuming import AUTO, find_checkpoint, find_state


def checkpoint(runs: Path, name: str, at_s: int, settings: dict[str, str]) -> Path:
    folder = runs / name / "checkpoints" / "step-000003"
    folder.mkdir(parents=True)
    manifest = Manifest(
        job="demo",
        settings=settings,
        step=3,
        total_steps=9,
        servers=0,
        workers=2,
        layers=[("fc", [("weight", [3, 2])])],
        groups=[(0, 0)],
        files={},
    )
    (folder / MANIFEST).write_text(manifest.to_json())
    os.utime(folder / MANIFEST, (at_s, at_s))
    return folder


def test_scripts_go_on_with_scripts_and_models_with_models(tmp_path: Path) -> None:
    """A script took the settings of a model's run, its servers too, and ended: no worker brought parameters."""
    checkpoint(tmp_path, "script-1", 1, SCRIPT)
    of_script = checkpoint(tmp_path, "script-2", 2, SCRIPT)
    of_model = checkpoint(tmp_path, "first", 3, {"train.batch": "4"})
    found, _ = find_state(AUTO, tmp_path, None)
    assert found == {"dir": of_script.parent, "resume": AUTO}
    checkpoint(tmp_path, "script-3", 4, SCRIPT)
    assert find_checkpoint(AUTO, tmp_path).checkpoint.folder == of_model


def test_a_script_without_state_is_told_what_it_lacks(tmp_path: Path) -> None:
    checkpoint(tmp_path, "first", 1, {"train.batch": "4"})
    with pytest.raises(CheckpointError, match=r"no script in .* has a checkpoint; has it a taihu\.torch\.state\?"):
        find_state(AUTO, tmp_path, None)


def test_a_damaged_manifest_is_not_passed_by(tmp_path: Path) -> None:
    checkpoint(tmp_path, "first", 1, SCRIPT)
    damaged = checkpoint(tmp_path, "second", 2, SCRIPT)
    (damaged / MANIFEST).write_text("{")
    with pytest.raises(CheckpointError, match="second"):
        find_state(AUTO, tmp_path, None)
