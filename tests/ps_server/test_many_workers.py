"""A server of many workers: its threads wait longer for their turns."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from taihu.core.coordination.generations import in_generations
from taihu.core.job import Job
from taihu.ps_server import daemon

daemon.in_generations = lambda *_: None
job = Job.model_validate({"cluster": {"workers": %d, "coordinator": "127.0.0.1:0"}})
with daemon.ServerDaemon(job, daemon.ServerOptions(0, bind="127.0.0.1:0")) as server:
    server.run()
print(sys.getswitchinterval())
"""


@pytest.mark.parametrize(("workers", "seconds"), [(2, 0.005), (64, 0.0256), (1000, 0.1)])
def test_threads_of_many_workers_wait_longer_for_their_turns(workers: int, seconds: float) -> None:
    """With 256, waking in vain took a third of the server's time."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM % workers], stdout=subprocess.PIPE, text=True, check=True
    )
    assert float(done.stdout.splitlines()[-1]) == pytest.approx(seconds)
