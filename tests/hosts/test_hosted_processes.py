"""Processes that a program on another host starts, watches and ends; ssh is a shell of this machine here."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.daemons import wait_for

from taihu.core.base.errors import ConfigError
from taihu.hosts.connection import Connection
from taihu.hosts.placement import Host, Placement
from taihu.hosts.processes import HostedProcesses
from taihu.local.processes.processes import DaemonFailedError

SSH = """#!/bin/sh
# The last word is the command; those before are options and the host.
for word; do :; done
echo words of a login shell
exec sh -c "$word"
"""

# Run as the script of a worker: its supervisor, with which it ends, the way in which it ends, its results' place.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
supervisor, way, results = sys.argv[1:]
assert int(supervisor) == os.getppid()
print("begins", way, os.environ["GIVEN"], os.environ["CARRIED"], flush=True)
Path(results).write_text('{"steps": 1}')
Path(way + ".place").write_text(results)
Path(way + ".pid").write_text(str(os.getpid()))
if way == "fails":
    print("error: no paper left", file=sys.stderr)
    sys.exit(3)
if way == "stays":
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit())
    Path(way + "." + os.environ["CARRIED"]).touch()
    while os.getppid() == int(supervisor):
        time.sleep(0.02)
"""


@contextmanager
def hosted(folder: Path) -> Iterator[HostedProcesses]:
    """Processes on two hosts, one worker each."""
    (folder / "program.py").write_text(PROGRAM)
    ssh = folder / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    passed, logs = folder / "passed", folder / "logs"
    for each in (passed, logs):
        each.mkdir()
    (passed / "job.toml").write_text("")
    placement = Placement([Host("a", 1), Host("b", 1)])

    def reach(index: int) -> Connection:
        host = placement.hosts[index].name
        connection = Connection(host, [str(ssh)], sys.executable, {"folder": str(folder), "script": "program.py"})
        facts = connection.facts(time.monotonic() + 60)
        assert (facts.has_folder, facts.python) == (True, f"{sys.version_info[0]}.{sys.version_info[1]}")
        variables = {"CARRIED": host, "PYTHONPATH": str(folder)}
        connection.order("open", fork=[], variables=variables, token=None, lost_after_s=60.0)
        return connection

    with HostedProcesses(reach, placement, logs, passed, run_folder=folder / "run", carried={}) as processes:
        yield processes


def run(processes: HostedProcesses, folder: Path, *ways: str) -> None:
    for rank, way in enumerate(ways):
        command = ["program", str(os.getpid()), way, str(folder / "passed" / f"worker-{rank}.json")]
        processes.run(f"worker {rank}", command, {"GIVEN": "given"}, is_shown=rank == 0)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_words_logs_files_and_ends_come_here(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with hosted(tmp_path) as processes:
        run(processes, tmp_path, "ends", "also ends")
        wait_for(processes.check, "they do not end")
        assert (processes.living, processes.any_has_ended) == ([], True)
    assert capfd.readouterr().out == "begins ends given a\n"
    assert processes.log_of("worker 0").read_text() == ""
    assert processes.log_of("worker 1").read_text() == "begins also ends given b\n"
    assert [(tmp_path / "passed" / f"worker-{rank}.json").read_text() for rank in (0, 1)] == ['{"steps": 1}'] * 2
    assert (tmp_path / "run").is_dir()
    # They were written on the host, and carried.
    assert (tmp_path / "ends.place").read_text() != str(tmp_path / "passed" / "worker-0.json")


def test_a_failure_has_the_last_words_of_its_log(tmp_path: Path) -> None:
    with hosted(tmp_path) as processes:
        run(processes, tmp_path, "stays", "fails")
        with pytest.raises(DaemonFailedError, match=r"worker 1: no paper left; log: .*worker-1\.log") as error:
            wait_for(processes.check, "it does not fail")
        assert (error.value.exit_code, error.value.was_killed) == (3, False)
        pid = int((tmp_path / "stays.pid").read_text())
    assert not is_alive(pid)


def test_signals_go_to_the_process_and_a_kill_is_told(tmp_path: Path) -> None:
    with hosted(tmp_path) as processes:
        run(processes, tmp_path, "stays", "stays")
        wait_for(lambda: all((tmp_path / f"stays.{host}").exists() for host in "ab"), "they do not begin")
        wait_for(lambda: processes.log_of("worker 1").read_text(), "its words do not come")
        processes.signal("worker 0", signal.SIGUSR1)
        processes.signal("worker 1", signal.SIGKILL)
        with pytest.raises(DaemonFailedError, match="worker 1 was killed by SIGKILL") as error:
            wait_for(processes.check, "the kill is not told")
        assert error.value.was_killed
        processes.wait(60)
        assert processes.any_has_ended
        # Another life of the same name, with the log of both.
        processes.dismiss("worker 1")
        processes.run("worker 1", ["program", str(os.getpid()), "ends", "x"], {"GIVEN": "again"}, is_shown=False)
        processes.dismiss("worker 0")
        wait_for(processes.check, "it does not end")
    assert processes.log_of("worker 1").read_text() == "begins stays given b\nbegins ends again b\n"


def test_a_host_is_lost_with_its_connection_and_reached_anew(tmp_path: Path) -> None:
    with hosted(tmp_path) as processes:
        run(processes, tmp_path, "stays")
        wait_for((tmp_path / "stays.pid").exists, "it does not begin")
        wait_for((tmp_path / "stays.pid").read_text, "it does not begin")
        pid = int((tmp_path / "stays.pid").read_text())
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        with pytest.raises(DaemonFailedError, match="worker 0 is lost with its host a: ssh ended with exit code -9"):
            wait_for(processes.check, "the loss is not told")
        wait_for(lambda: not is_alive(pid), "a process outlives the program that has started it")
        processes.dismiss("worker 0")
        run(processes, tmp_path, "ends")
        wait_for(processes.check, "it does not end")


def test_a_program_that_is_no_ssh(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--ssh: .*nowhere cannot be started \(No such file or directory\)"):
        Connection("a", [str(tmp_path / "nowhere")], sys.executable, {"folder": "/", "script": "x"})
