"""A worker that ends before the others, or does something else: nobody waits for it, and it is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.torch_scripts import taihu_run

SERVER = ("--servers", "1")
REMEDY = "; give all workers as many batches, or iterate in `with optimizer.join()`"
CASES = {
    "sys.exit(3) 1": "worker 1 has ended after 3 backwards (exit code 3) while worker 0 waits in its 4th backward",
    "sys.exit(3) 0": "worker 0 has ended after 3 backwards (exit code 3) while worker 1 waits in its 4th backward",
    "returns 0": "worker 0 has ended after 3 backwards (exit code 0) while worker 1 waits in its 4th backward"
    f"{REMEDY}",
    "no_sync 1": "worker 1 has ended after 7 backwards (exit code 0) while worker 0 waits in its 8th backward"
    f"{REMEDY}",
    "os._exit(3) 1": "worker 1: ended with exit code 3, while worker 0 was in its 4th backward",
    "SIGKILL 0": "worker 0 was killed by SIGKILL, while worker 1 was in its 4th backward",
    "never begins 1": "worker 1 has ended (exit code 0) before its first DistributedOptimizer while worker 0 waits "
    "in it; have all workers of the script make it",
}


@pytest.mark.parametrize("case", CASES)
def test_nobody_waits_for_who_has_ended(case: str, tmp_path: Path) -> None:
    way, who = case.rsplit(maxsplit=1)
    servers = SERVER if case == "sys.exit(3) 0" else ()
    told = ("--quiet", "--run-dir", "none", *servers)
    done = taihu_run(tmp_path, *told, script="ends.py", arguments=(way, who), workers=2)
    assert done.stdout == ""
    # Of those that are not to blame the terminal has nothing.
    said, _, log = done.stderr.rstrip().partition("; log: ")
    # Of who was killed in the middle others may not have come to say what they were about.
    cut = len("error: worker 1: ended with exit code 3") if way in ("os._exit(3)", "SIGKILL") else None
    assert said[:cut] == f"error: {CASES[case]}"[:cut]
    assert done.returncode == (3 if "3" in way else 1)
    named = re.match(r"worker [0-9]", CASES[case])
    assert named is not None
    assert log == f"logs/{named[0].replace(' ', '-')}.log"


@pytest.mark.parametrize(
    ("way", "words"),
    [("calls", "worker 1 takes over worker 0's values behind 3 backwards"), ("closures", "parameters differ")],
)
def test_who_does_something_else_than_others_is_told_so_and_nobody_waits(
    way: str, words: str, tmp_path: Path
) -> None:
    done = taihu_run(tmp_path, "--quiet", "--run-dir", "none", script="ends.py", arguments=(way, "1"), workers=2)
    assert done.returncode == 1
    assert words in done.stderr.splitlines()[-1]
