"""Journey a of docs/journeys.md, from an empty folder with the wheel."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.readme import README, commands, files
from support.wheel import install_wheel

from taihu.core.job.environment import without_settings

JOURNEYS = (README.parent / "docs" / "journeys.md").read_text()
SECTION = re.search(r"^## a\. .*?(?=^## b\. )", JOURNEYS, re.M | re.S)


@pytest.mark.xdist_group("wheel")
def test_own_arrays_and_an_own_model_up_to_onnx(
    tmp_path: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert SECTION is not None
    environment = without_settings(install_wheel(wheel, tmp_path_factory.mktemp("site")))
    here: dict[str, Any] = {"cwd": tmp_path, "env": environment, "timeout": 200}
    for name, text in files(SECTION[0]).items():
        (tmp_path / name).write_text(text)
    place = [sys.executable, "-P", "-c", "import taihu; print(taihu.__file__)"]
    assert str(tmp_path.parent) in subprocess.run(place, **here, capture_output=True, text=True, check=True).stdout
    told: dict[str, str] = {}
    for command in commands(SECTION[0]):
        program, *arguments = shlex.split(command.text)
        if program == "pip":
            continue
        own = {"python": [sys.executable], "taihu": [sys.executable, "-P", "-m", "taihu"]}[program]
        done = subprocess.run([*own, *arguments], **here, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command.text}\n{done.stdout}{done.stderr}"
        told[arguments[0]] = done.stdout
        if program == "taihu" and arguments[0] == "train":
            # What follows needs neither of them.
            (tmp_path / "model.py").write_text("raise RuntimeError('executed')")
            (tmp_path / "sizes.py").unlink()
    accuracy = re.search(r"test accuracy (\d+\.\d+)%", told["evaluate"])
    assert accuracy is not None
    assert float(accuracy[1]) > 90
    assert len(told["predict"].splitlines()) == 10
    assert told["check.py"].startswith("largest difference ")
