"""Fixtures of several test folders.

The process that hands tests to others imports this too, and they begin once it has: heavy imports stand in functions.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

if TYPE_CHECKING:
    from support.daemons import Start
    from support.tests_deploy import Write

    from taihu.core.checkpoint.places import Place

# Collecting thousands of tests leaves no garbage, and looking for it takes a quarter of that time.
gc.disable()

Taihu = Callable[..., subprocess.CompletedProcess[str]]

_HERE = Path(__file__).parent


_CORES = pytest.StashKey[set[int]]()


def pytest_configure(config: pytest.Config) -> None:
    """As many processes as there are cores stay on one each, with all that they start; one more goes where it can.

    A test has dozens of threads that take turns. Between two cores each turn wakes the other core up, and takes three
    times as many switches.
    """
    cores = set(os.sched_getaffinity(0))
    config.stash[_CORES] = cores
    # What a shell starts in the background ignores Ctrl-C, and so would all that is started from here and is sent it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw-1").removeprefix("gw"))
    if 0 <= worker < len(cores):
        os.sched_setaffinity(0, {sorted(cores)[worker]})


def pytest_sessionstart(session: pytest.Session) -> None:
    """Of files that were never imported, each process rewrites the asserts of its share first, not all those of all.

    To rewrite all of them takes one process eight seconds, and the others read what it has written.
    """
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    hook = session.config.pluginmanager.rewrite_hook
    is_whole = session.config.args == session.config.getini("testpaths")
    if count == 1 or not is_whole or not isinstance(hook, AssertionRewritingHook):
        return
    number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    files = sorted(path for pattern in session.config.getini("python_files") for path in _HERE.rglob(pattern))
    for path in files[number::count]:
        is_elsewhere = path.parent.name in session.config.getini("norecursedirs")
        if not is_elsewhere and not any(path.parent.glob(f"__pycache__/{path.stem}.*-pytest-*.pyc")):
            spec = importlib.util.spec_from_file_location("ahead", path, loader=hook)
            assert spec is not None
            # What is wrong with a file is told when it is collected.
            with suppress(Exception, pytest.skip.Exception):
                hook.exec_module(importlib.util.module_from_spec(spec))


def pytest_collectstart() -> None:
    """Before tests are imported, have Hypothesis not mind how long an example takes.

    That depends on what else this machine does. The hook of this file is called for folders and files, not for the
    session, which lies above.
    """
    from hypothesis import settings

    settings.register_profile("taihu", deadline=None)
    settings.load_profile("taihu")


# Kernels, which a fresh clone compiles: files that need different ones do so side by side. Then the longest files:
# of explored seeds, of real processes, which wait for each other, and of whole runs.
_FIRST = ("kernels", "explore", "security", "end_to_end", "worker")


def _turn(item: pytest.Item) -> int:
    folder = item.path.relative_to(_HERE).parts[0]
    return _FIRST.index(folder) if folder in _FIRST else len(_FIRST)


@pytest.hookimpl(tryfirst=True)  # before xdist writes the groups into the tests' names
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a file run in one process: what they import, load and make for all of them is there once.

    Those that take longest are begun first, so that all processes have something to do to the end.
    """
    items.sort(key=_turn)
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_collection_finish() -> None:
    """From here on there is garbage, little of it in cycles; what is alive now is never looked at again."""
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


def pytest_sessionfinish() -> None:
    """pytest looks for garbage five times over before it ends: once is enough."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """A command that ran in the test's process has set up logs that write to what pytest closes after the test."""
    if "structlog" in sys.modules:
        import structlog

        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()


@pytest.fixture(scope="session", autouse=True)
def _no_fork_server_stays() -> Iterator[None]:
    yield
    if "support.commands" in sys.modules:
        from support.commands import end_fork_server

        end_fork_server()


@pytest.fixture
def all_cores(pytestconfig: pytest.Config) -> Iterator[None]:
    """Let a test of what happens at the same time have all cores."""
    own = os.sched_getaffinity(0)
    cores = pytestconfig.stash[_CORES]
    os.sched_setaffinity(0, cores)
    yield
    os.sched_setaffinity(0, own)


@pytest.fixture
def taihu(tmp_path: Path) -> Taihu:
    """Run the command line in an empty folder: `taihu("train", "--steps", "5")`."""
    from support.commands import run_command

    def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return run_command("taihu", *arguments, folder=tmp_path, environment=environment)

    return run


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout; tests that use it are of the group "wheel"."""
    from support.wheel import build_wheel

    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start daemons in the test's folder."""
    from support.daemons import daemons

    with daemons(tmp_path) as launch:
        yield launch


@pytest.fixture
def start_by_hand(tmp_path: Path) -> Iterator[Start]:
    """Start daemons in the test's folder as a person or a launcher does."""
    from support.daemons import daemons

    with daemons(tmp_path, by_hand=True) as launch:
        yield launch


Command = Callable[..., tuple[int, str, str]]


def _command(function: Callable[..., object], capsys: pytest.CaptureFixture[str]) -> Command:
    """A command in this process; returns exit code, stdout, stderr."""
    import typer

    from taihu.core.process.entry import run_app

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(function)

    def command(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            run_app(app, [str(argument) for argument in arguments])
        return int(str(ended.value.code)), *capsys.readouterr()

    return command


@pytest.fixture
def run_plan(capsys: pytest.CaptureFixture[str]) -> Command:
    """`taihu plan step` in this process."""
    from taihu.cli.planning.command import step

    return _command(step, capsys)


@pytest.fixture
def run_memory(capsys: pytest.CaptureFixture[str]) -> Command:
    """`taihu plan memory` in this process."""
    from taihu.cli.planning.command import memory

    return _command(memory, capsys)


@pytest.fixture
def run_search(capsys: pytest.CaptureFixture[str]) -> Command:
    """`taihu plan search` in this process."""
    from taihu.cli.planning.command import search

    return _command(search, capsys)


@pytest.fixture
def run_certs(capsys: pytest.CaptureFixture[str]) -> Command:
    """`taihu certs`, in this process."""
    from taihu.cli.certs import certs

    return _command(certs, capsys)


@pytest.fixture
def run_simulate(capsys: pytest.CaptureFixture[str]) -> Command:
    """`taihu simulate run` in this process."""
    from taihu.cli.simulation.command import run

    return _command(run, capsys)


@pytest.fixture
def run_figure(capsys: pytest.CaptureFixture[str]) -> Command:
    """`taihu simulate figure` in this process."""
    from taihu.cli.simulation.command import figure

    return _command(figure, capsys)


@pytest.fixture
def write_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """`taihu manifest` in an empty folder, in this process; returns what it prints."""
    import typer
    from typer.testing import CliRunner

    from taihu.cli.manifest import manifest_command

    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(manifest_command)

    def write(*arguments: str) -> str:
        done = CliRunner().invoke(app, arguments)
        if done.exception is not None:
            raise done.exception
        return done.stdout

    return write


@pytest.fixture(params=["folder", "file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place of checkpoints: a folder of this machine, or in a store that fsspec knows."""
    from uuid import uuid4

    from taihu.core.checkpoint.places import place_of

    urls = {"file": f"file://{tmp_path}/of/a/store", "memory": f"memory://{uuid4().hex}/checkpoints"}
    made = place_of(urls[request.param]) if request.param in urls else tmp_path
    made.mkdir(parents=True, exist_ok=True)
    return made
