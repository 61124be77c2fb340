"""The process that is to blame for the end of a run, among all that have ended."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from taihu.local.processes.causes import Ended, cause_of, end_in_words


def ended(name: str, code: int, words: str = "", given_up: str = "", *, stopped: bool = False) -> Ended:
    return Ended(name, code, words, Path(f"{name}.log"), given_up, stopped)


LEFT = "worker 2 has ended after 4 backwards (exit code 3) while worker 0 waits in its 5th backward"
CONTEXT = ", while worker 0 was in its 5th backward"
LOST = f"worker 1 was lost: its connection broke{CONTEXT}"
GROUP = "torch.distributed.DistBackendError: taihu group '0', allreduce: rank 1 has left"


@pytest.mark.parametrize(
    ("processes", "name", "line"),
    [
        (
            [ended("worker 0", 1, f"taihu.errors.RunError: {LEFT}"), ended("worker 2", 3, LEFT)],
            "worker 2",
            f"{LEFT}; log: worker 2.log",
        ),
        # Who is to blame has ended well: the others alone say who that is.
        (
            [ended("worker 0", 1, f"taihu.errors.MemberLostError: {LEFT}"), ended("worker 2", 0)],
            "worker 0",
            f"{LEFT}; log: worker 2.log",
        ),
        (
            [ended("worker 0", 1, LOST), ended("worker 1", 3)],
            "worker 1",
            "worker 1: ended with exit code 3, while worker 0 was in its 5th backward; log: worker 1.log",
        ),
        (
            [ended("worker 0", 1, LOST), ended("worker 1", -9)],
            "worker 1",
            "worker 1 was killed by SIGKILL, while worker 0 was in its 5th backward; log: worker 1.log",
        ),
        (
            [ended("worker 0", 1, LOST), ended("worker 1", 0, stopped=True)],
            "worker 1",
            f"worker 1 is stopped, by a signal or a debugger{CONTEXT}; log: worker 1.log",
        ),
        (
            [ended("server 0", 1, "worker 1: no paper left"), ended("worker 1", 1, "no paper left")],
            "worker 1",
            "worker 1: no paper left; log: worker 1.log",
        ),
        (
            [ended("server 0", 1, "worker 1: no paper left"), ended("worker 0", 1, "worker 1: no paper left")],
            "server 0",
            "worker 1: no paper left; log: server 0.log",
        ),
        (
            [ended("worker 0", 1, "rubbish"), ended("worker 1", 2, "train.batch -1: expected more")],
            "worker 1",
            "worker 1: train.batch -1: expected more; log: worker 1.log",
        ),
        (
            [ended("worker 0", 1, "ValueError: worker 3 is late"), ended("worker 1", 1, "worker 0: late")],
            "worker 0",
            "worker 0: ValueError: worker 3 is late; log: worker 0.log",
        ),
        (
            [
                ended("worker 0", 1, GROUP),
                ended("worker 1", 5),
            ],
            "worker 1",
            "worker 1: ended with exit code 5; log: worker 1.log",
        ),
        (
            [ended("worker 0", -9, given_up="was stopped for 15 s, and ended")],
            "worker 0",
            "worker 0 was stopped for 15 s, and ended; log: worker 0.log",
        ),
    ],
)
def test_the_cause_is_told_and_not_its_consequences(processes: list[Ended], name: str, line: str) -> None:
    failed = [each for each in processes if each.exit_code or each.is_stopped]
    for seed in range(4):
        order = random.Random(seed).sample(failed, len(failed))
        if {each.blames for each in failed} != {"worker 1"}:  # else whoever comes first tells it
            assert cause_of(order).name == name
    cause = cause_of(failed)
    assert end_in_words(cause, processes) == line
    assert end_in_words(replace(cause), processes[::-1]) == line
