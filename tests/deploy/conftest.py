"""Fixtures that several tests of manifests share."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from support.tests_deploy import Write
from typer.testing import CliRunner

from taihu.cli.manifest import manifest_command


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """`taihu manifest` in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)

    app = typer.Typer()
    app.command()(manifest_command)

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, arguments)
        if done.exception is not None:
            raise done.exception
        return done.stdout

    return run
