"""Runs a core's tests once, then those that reach a mutant again in a forked process that has the mutant's code.

The fork has everything imported and collected already. It stops at the first test that fails.
"""

from __future__ import annotations

import gc
import mmap
import os
import resource
import signal
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from mutants.cores import ROOT, Core
from mutants.operators import Mutant
from mutants.patching import Patcher, PatchError
from mutants.reaching import Recording, Seen
from mutants.results import Fate, Verdict

__all__ = ["judge"]

_FAILED, _NOT_PATCHED = 1, 3
_MOST_MEMORY = 2 << 30
_INDEX = struct.Struct("<q")


class _Judge:
    """A plugin of pytest whose test loop is the one that judges."""

    def __init__(
        self, recording: Recording, mutants: Sequence[Mutant], tell: Callable[[Mutant, Verdict], None]
    ) -> None:
        self._recording = recording
        self._mutants = mutants
        self._tell = tell
        self._seen: dict[pytest.Item, Seen] = {}
        self._failed: list[str] = []
        self._is_fork = False
        # By place and test: how often a test ran with a mutant, and how often it noticed.
        self._tries: Counter[tuple[str, pytest.Item]] = Counter()
        self._hits: Counter[tuple[str, pytest.Item]] = Counter()
        self._running = mmap.mmap(-1, mmap.PAGESIZE)

    @pytest.hookimpl(trylast=True)
    def pytest_collectstart(self) -> None:
        settings.load_profile("mutants")  # instead of the one that the suite has begun with

    # After pytest has told it what failed in a `TestCase`, as in Hypothesis' machines; before it writes the report.
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        if self._is_fork and call.excinfo and not call.excinfo.errisinstance(pytest.skip.Exception):
            os._exit(_FAILED)  # nobody reads how it failed, which is dear to write

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(f"{report.nodeid}: {report.longreprtext.splitlines()[-1] if report.longrepr else ''}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self) -> tuple[str, str, str]:
        return "", "", ""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise pytest.UsageError("some tests cannot be collected")
        self._record(session.items)
        patcher = Patcher()
        gc.collect()
        gc.freeze()  # forks do not copy what the collector would have looked at
        for mutant in self._mutants:
            self._tell(mutant, self._judge(mutant, patcher))
        return True

    def _record(self, items: Sequence[pytest.Item]) -> None:
        fresh = [item for item in items if item.nodeid not in self._recording.seen]
        with self._recording.recording() as record:
            for item, following in _with_following(fresh):
                record(item.nodeid, partial(_run, item, following))
        if self._failed:
            raise pytest.UsageError(f"tests fail without a mutant: {'; '.join(self._failed)}")
        self._recording.save()
        self._seen = {item: self._recording.seen[item.nodeid] for item in items}

    def _judge(self, mutant: Mutant, patcher: Patcher) -> Verdict:
        # A constant is read by whoever runs any of its file.
        lines = None if mutant.is_constant else range(mutant.first_line, mutant.last_line + 1)
        items = [item for item, seen in self._seen.items() if seen.reaches(mutant.path, lines)]
        if not items:
            return Verdict(Fate.UNREACHED, "")
        items.sort(key=lambda item: self._expected_seconds(mutant.place, item))
        self._running[: _INDEX.size] = _INDEX.pack(0)
        child = os.fork()
        if not child:
            self._try(mutant, patcher, items)
        fate = _fate(os.waitpid(child, 0)[1])
        (last,) = _INDEX.unpack(self._running[: _INDEX.size])
        self._tries.update((mutant.place, item) for item in items[: last + 1])
        self._hits[mutant.place, items[last]] += fate.is_noticed
        return Verdict(fate, items[last].nodeid)

    def _expected_seconds(self, place: str, item: pytest.Item) -> float:
        """CPU time by the chance that the test notices, from what it noticed of the same function."""
        chance = (self._hits[place, item] + 1) / (self._tries[place, item] + 2)
        return self._seen[item].seconds / chance

    def _try(self, mutant: Mutant, patcher: Patcher, items: Sequence[pytest.Item]) -> None:
        """In the forked process: the tests with the mutant; never returns."""
        self._is_fork = True
        end = _FAILED
        try:
            _confine()
            _patch(mutant, patcher)
            for index, (item, following) in enumerate(_with_following(items)):
                self._running[: _INDEX.size] = _INDEX.pack(index)
                # The processor's time ends a loop, the clock a wait for what never comes.
                signal.setitimer(signal.ITIMER_PROF, 1 + 4 * self._seen[item].seconds)
                signal.alarm(60 + int(60 * self._seen[item].seconds))
                _run(item, following)
            end = 0
        except PatchError:
            end = _NOT_PATCHED
        except BaseException:
            end = _FAILED
        finally:
            os._exit(end)


def judge(
    core: Core, mutants: Sequence[Mutant], recording: Recording, tell: Callable[[Mutant, Verdict], None]
) -> None:
    """Call `tell` with what becomes of each mutant, in order.

    Raises:
        RuntimeError: the tests fail without any mutant.
    """
    # The same examples for every mutant; what fails is not made smaller.
    settings.register_profile(
        "mutants",
        phases=(Phase.explicit, Phase.generate),
        database=None,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    options = ["-qq", "-s", "--no-summary", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    options += ["-o", "timeout=0"]
    options += [f"--deselect={test}" for test in core.without]
    end = pytest.main(
        [*options, "--rootdir", str(ROOT), *core.test_files], plugins=[_Judge(recording, mutants, tell)]
    )
    if end is not pytest.ExitCode.OK:
        raise RuntimeError(
            f"pytest ended with {end!r}: the tests {' '.join(core.test_files)} must pass before mutants count"
        )


def _fate(status: int) -> Fate:
    if os.WIFSIGNALED(status):
        return Fate.WAITING if os.WTERMSIG(status) == signal.SIGALRM else Fate.ENDLESS
    return {0: Fate.SURVIVED, _NOT_PATCHED: Fate.NO_MUTANT}.get(os.WEXITSTATUS(status), Fate.NOTICED)


def _confine() -> None:
    """Let a mutant neither fill the memory nor write to the terminal, and die of the signals that end it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    most = pages * mmap.PAGESIZE + _MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for each in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(each, signal.SIG_DFL)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)


def _patch(mutant: Mutant, patcher: Patcher) -> None:
    path = str(ROOT / mutant.path)
    if mutant.is_constant:
        patcher.patch_constant(path, mutant.place, mutant.write())
    else:
        patcher.patch_function(path, mutant.place, mutant.original, mutant.write())


def _run(item: pytest.Item, following: pytest.Item | None) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def _with_following(items: Sequence[pytest.Item]) -> list[tuple[pytest.Item, pytest.Item | None]]:
    return list(zip_longest(items, items[1:]))
