"""Fixtures of several test folders."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
import typer
from hypothesis import settings
from support.commands import end_fork_server, run_command
from support.daemons import Start, daemons
from support.wheel import build_wheel

from taihu.cli.plan import plan
from taihu.process.entry import run_app

# Collecting thousands of tests leaves no garbage, and looking for it takes a quarter of that time.
gc.disable()

# How long an example takes depends on what else this machine does.
settings.register_profile("taihu", deadline=None)
settings.load_profile("taihu")

Taihu = Callable[..., subprocess.CompletedProcess[str]]


def pytest_collection_finish() -> None:
    """From here on there is garbage; what is alive now is never looked at again."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _own_logs() -> Iterator[None]:
    """A command that runs in the test's process sets up logs that write to what pytest closes after the test."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture(scope="session", autouse=True)
def _no_fork_server_stays() -> Iterator[None]:
    yield
    end_fork_server()


@pytest.fixture
def taihu(tmp_path: Path) -> Taihu:
    """Run the command line in an empty folder: `taihu("train", "--steps", "5")`."""

    def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return run_command("taihu", *arguments, folder=tmp_path, environment=environment)

    return run


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout; tests that use it are of the group "wheel"."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start daemons in the test's folder."""
    with daemons(tmp_path) as launch:
        yield launch


@pytest.fixture
def start_by_hand(tmp_path: Path) -> Iterator[Start]:
    """Start daemons in the test's folder as a person or a launcher does."""
    with daemons(tmp_path, by_hand=True) as launch:
        yield launch


@pytest.fixture
def run_plan(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`taihu plan` in this process; returns exit code, stdout, stderr."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(plan)

    def command(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            run_app(app, [str(argument) for argument in arguments])
        return int(str(ended.value.code)), *capsys.readouterr()

    return command
