"""Signals, and the end that they lead to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from taihu.core.process.entry import InterruptedRunError, Interrupts


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    """Installed; the handlers from before come back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    installed = Interrupts()
    installed.install()
    yield installed
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_first_signal_is_offered_and_the_second_raises(interrupts: Interrupts) -> None:
    taken: list[str] = []

    def take(reason: str) -> bool:
        taken.append(reason)
        return True

    with interrupts.offered_to(take):
        os.kill(os.getpid(), signal.SIGINT)
        assert taken == [interrupts.reason] == ["interrupted by SIGINT"]
        with pytest.raises(InterruptedRunError, match=r"^interrupted by SIGTERM$"):
            os.kill(os.getpid(), signal.SIGTERM)
    assert len(taken) == 1


def test_a_signal_that_nobody_takes_raises(interrupts: Interrupts) -> None:
    with (
        interrupts.offered_to(lambda reason: False),
        pytest.raises(InterruptedRunError, match=r"^interrupted by SIGTERM$"),
    ):
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(InterruptedRunError):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_whose_error_was_swallowed_is_not_forgotten(interrupts: Interrupts) -> None:
    """A run was seen to go on for good: what compiles or imports may swallow an error."""
    with suppress(InterruptedRunError):
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(InterruptedRunError, match=r"^interrupted by SIGTERM$"), interrupts.offered_to(bool):
        pytest.fail("offered to who does not know of it")


def test_the_echo_of_a_signal_is_no_second_one(interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("taihu.core.process.entry.monotonic", lambda: now)
    with interrupts.offered_to(lambda reason: True):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        now += 1.0
        with pytest.raises(InterruptedRunError):
            os.kill(os.getpid(), signal.SIGTERM)


def test_who_wants_the_process_to_end_at_once_is_not_put_off(interrupts: Interrupts) -> None:
    with interrupts.offered_to(lambda reason: True), pytest.raises(InterruptedRunError):
        interrupts.end_at_once()


def test_what_is_done_in_a_moment_is_not_broken_off(interrupts: Interrupts) -> None:
    interrupts.ignore()
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_that_comes_before_it_is_awaited_is_no_error_either(interrupts: Interrupts) -> None:
    interrupts.are_no_error()
    os.kill(os.getpid(), signal.SIGTERM)
    interrupts.await_end()


def test_a_signal_that_is_an_error_is_not_awaited(interrupts: Interrupts) -> None:
    with pytest.raises(RuntimeError, match="are_no_error comes before await_end"):
        interrupts.await_end()


CHILD = """
import multiprocessing, os, time
from taihu.core.process.entry import raise_on_terminate

def work(begun):
    begun.set()
    while True:
        try:
            time.sleep(60)
        except Exception:  # as a pool takes what a task raises
            pass

raise_on_terminate()
context = multiprocessing.get_context("fork")
begun = context.Event()
child = context.Process(target=work, args=(begun,))
child.start()
begun.wait(600)
child.terminate()
child.join(600)
print(child.exitcode)
child.kill()
"""


def test_a_child_of_the_users_code_ends_by_sigterm() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHILD], capture_output=True, text=True, timeout=600, check=True
    )
    assert (done.stdout, done.stderr) == ("-15\n", "")
