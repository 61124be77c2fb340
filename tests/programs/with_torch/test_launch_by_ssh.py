"""`taihu launch` over OpenSSH's server on three hosts: one command, one log, one end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_hosts import SshHosts
from support.daemons import wait_for
from support.torch_scripts import SCRIPTS, taihu_run

import taihu

EXACT = ("--set", "exchange.plan=bucket:1MB", "--set", "cluster.threads=1")
"""Equal bits need equal arithmetic."""

ENDLESS = """
import os, signal, sys, time
import taihu.torch
told = []
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, _: told.append(number))
rank = taihu.torch.rank()
open(f"ready.{rank}", "w").write(str(os.getpid()))
while len([name for name in os.listdir() if name.startswith("ready.")]) < taihu.torch.world_size():
    time.sleep(0.02)
print("going", os.environ.get("CARRIED"), flush=True)
while not told:
    time.sleep(0.02)
open(f"saved.{rank}", "w").write(str(int(told[0])))
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with SshHosts(3, tmp_path_factory.mktemp("ssh")) as made:
        yield made


def no_process_is_left(hosts: SshHosts) -> bool:
    """Whether only the servers are on the hosts."""
    return all(len(hosts.pids(number)) == 1 for number in (1, 2, 3))


def test_losses_are_those_of_one_machine(hosts: SshHosts, tmp_path: Path) -> None:
    """Around a ring and through a server; worker 0's words come here, those of others into logs."""
    for server in ((), ("--servers", "1")):
        done = taihu_run(
            tmp_path, *EXACT, *server, "--run-dir", "none", script="loop.py", arguments=("taihu", "here")
        )
        assert done.returncode == 0, done.stderr
        script = (str(SCRIPTS / "loop.py"), "taihu", "there")
        code, output, errors = hosts.run(
            tmp_path, "-H", "host1,host2:2", *server, *EXACT, "--run-dir", "run", "--quiet", *script
        )
        assert (code, output, errors) == (0, "", "")
        for rank in range(3):
            here, there = (json.loads((tmp_path / f"{name}.{rank}").read_text()) for name in ("here", "there"))
            assert here == there
        results = json.loads((tmp_path / "run" / "results.json").read_text())
        assert (results["workers"], results["servers"], results["steps"]) == (3, len(server) // 2, 50)
        logs = {path.stem for path in (tmp_path / "run" / "logs").iterdir()}
        assert logs == {"worker-0", "worker-1", "worker-2", *(["server-0"] if server else [])}
        assert len((tmp_path / "run" / "steps.csv").read_text().splitlines()) == 51
        shutil.rmtree(tmp_path / "run")
    assert no_process_is_left(hosts)


def test_one_port_for_each_process_is_open(hosts: SshHosts, tmp_path: Path) -> None:
    """Between hosts; ssh's is open, too."""
    for number, ports in {1: (7070,), 2: (7070, 7071)}.items():
        hosts.shut(number, but=(22, *ports))
    script = (str(SCRIPTS / "mean.py"),)
    code, output, errors = hosts.run(tmp_path, "-H", "host1,host2:2", "--port", "7070", "--quiet", *script)
    hosts.open()
    assert code == 0, errors
    assert "rank 0 of 3" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_all_processes_on_all_hosts(number: signal.Signals, hosts: SshHosts, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ENDLESS)
    arguments = ("-H", "host1,host2,host3", "--quiet", "--run-dir", "none", "-x", "CARRIED", "script.py")
    with hosts.start(tmp_path, *arguments, variables={"CARRIED": "over"}) as launch:
        assert launch.stdout is not None
        assert launch.stderr is not None
        assert launch.stdout.readline() == "going over\n"
        launch.send_signal(number)
        assert launch.wait(60) == 128 + number
        said = launch.stderr.read()
    assert said == f"error: interrupted by {number.name}: all processes of the script have ended\n"
    assert [(tmp_path / f"saved.{rank}").read_text() for rank in range(3)] == [str(int(number))] * 3
    wait_for(lambda: no_process_is_left(hosts), "processes are left on a host")


def test_processes_end_with_their_launcher(hosts: SshHosts, tmp_path: Path) -> None:
    """Although nobody tells them, and they handle signals."""
    (tmp_path / "script.py").write_text(ENDLESS.replace("while not told", "while True"))
    with hosts.start(tmp_path, "-H", "host1,host2,host3", "--run-dir", "none", "script.py") as launch:
        assert launch.stdout is not None
        assert launch.stdout.readline() == "going None\n"
        launch.kill()
    wait_for(lambda: no_process_is_left(hosts), "processes are left on a host")


def test_a_connection_that_breaks_ends_all(hosts: SshHosts, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ENDLESS)
    with hosts.start(tmp_path, "-H", "host1,host2", "--quiet", "--run-dir", "none", "script.py") as launch:
        assert launch.stdout is not None
        assert launch.stdout.readline() == "going None\n"
        for pid in hosts.connections(2):
            os.kill(pid, signal.SIGKILL)
        assert launch.wait(60) == 1
        assert launch.stderr is not None
        said = launch.stderr.read()
    assert said.startswith("error: worker 1 is lost with its host host2: ssh ended with exit code 255 (")
    assert len(said.splitlines()) == 1
    wait_for(lambda: no_process_is_left(hosts), "processes are left on a host")


def test_the_worker_to_blame_gives_the_exit_code(hosts: SshHosts, tmp_path: Path) -> None:
    script = (str(SCRIPTS / "ends.py"), "sys.exit(3)", "1")
    code, _, errors = hosts.run(tmp_path, "-H", "host1,host2", "--quiet", "--logs", "logs", *script)
    assert code == 3
    assert errors.startswith("error: worker 1 ")
    assert errors.endswith("log: logs/worker-1.log\n")
    assert len(errors.splitlines()) == 1
    assert no_process_is_left(hosts)


def test_a_killed_worker_goes_on_from_what_the_script_has_kept(hosts: SshHosts, tmp_path: Path) -> None:
    """In the run's folder, which the hosts share: with the bits of a run that nobody disturbs; a file names hosts."""
    (tmp_path / "hosts").write_text("host1  # the first worker\nhost2 slots=2\n")
    ends = []
    for kills in ((), ("1:5",)):
        script = (str(SCRIPTS / "keeps.py"), "3", *kills)
        code, _, errors = hosts.run(tmp_path, "--hostfile", "hosts", *EXACT, *script)
        assert code == 0, errors
        assert ("another process takes its place" in errors) == bool(kills)
        ends.append([(tmp_path / f"end.{rank}").read_text().split()[:3] for rank in range(3)])
    assert ends[0] == ends[1]
    assert (tmp_path / "killed.1.5").exists()
    assert no_process_is_left(hosts)


FAKE = """
import importlib.metadata
import taihu.core
versions, known = {}, importlib.metadata.version
importlib.metadata.version = lambda name: versions.get(name) or known(name)
"""


def test_a_host_that_cannot_take_part_is_named_with_the_remedy(hosts: SshHosts, tmp_path: Path) -> None:
    """Before anything starts, in one line."""
    work = tmp_path / "shared" / "work"
    work.mkdir(parents=True)
    (work / "script.py").write_text(ENDLESS)
    fakes = {"taihu": 'taihu.core.__version__ = "0.0.9"', "torch": 'versions["torch"] = "1.2.3"'}
    for name, line in fakes.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(FAKE + line)
    nowhere = ["--python", "/nowhere/python"]
    told: dict[str, tuple[str, Path | None, list[str], str]] = {
        "no server": ("", None, ["gone"], "gone: ssh does not reach it ("),
        "no name": ("", None, ["nobody.invalid"], "nobody.invalid: ssh knows no such name ("),
        "no way in": ("AllowUsers nobody", None, ["host3"], "host3: ssh may not log in without a pass"),
        "another key": ("", None, ["stranger"], "stranger: ssh does not know its key, or knows another one: log in"),
        "no Python": ("", None, ["host3", *nowhere], "host3: there is no Python at /nowhere/python; install taihu"),
        "no taihu": (
            "",
            Path(sysconfig.get_path("purelib")),
            ["host3"],
            f"host3: {sys.executable} has no taihu there; install it, or give --python",
        ),
        "an older taihu": ("", Path(taihu.__file__).parent, ["host3"], "host3: its taihu is another version, which"),
        "no folder": ("", work.parent, ["host3"], f"host3: has no folder {work}; make it there, share it"),
        "another taihu": (
            f"SetEnv PYTHONPATH={tmp_path / 'taihu'}",
            None,
            ["host3"],
            f"host3: has taihu 0.0.9, expected {taihu.__version__} as here; install the same version",
        ),
        "another PyTorch": (
            f"SetEnv PYTHONPATH={tmp_path / 'torch'}",
            None,
            ["host3"],
            "host3: has PyTorch 1.2.3, expected ",
        ),
    }
    for more, hidden, arguments, words in told.values():
        hosts.end(3)
        hosts.begin(3, more, hidden)
        host, *options = arguments
        code, output, errors = hosts.run(work, "-H", f"{'' if options else 'host1,'}{host}", *options, "script.py")
        assert (code, output) == (2, ""), errors
        assert errors.startswith(f"error: {words}"), errors
        assert len(errors.splitlines()) == 1
    hosts.end(3)
    hosts.begin(3)
    assert not list(work.glob("runs"))
    assert no_process_is_left(hosts)
