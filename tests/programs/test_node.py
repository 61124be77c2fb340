"""`mpirun ... taihu node` over several hosts: one line, one log, one exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mpi_hosts import MpiHosts
from support.daemons import wait_for

from taihu.core.job.environment import without_settings

ROOT = Path(__file__).parents[2]

Taihu = Callable[..., subprocess.CompletedProcess[str]]

STEPS = ("--set", "train.steps=20", "--set", "cluster.lost_after_s=120")
ENDLESS = """
train = { steps = 100000, evaluate = false }
cluster = { servers = 1, heartbeat_s = 0.2, lost_after_s = 60 }
"""


@pytest.fixture(scope="module")
def mpi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MpiHosts]:
    with MpiHosts(4, tmp_path_factory.mktemp("mpi")) as hosts:
        yield hosts


def local_hash(taihu: Taihu, folder: Path, *arguments: str) -> str:
    done = taihu("train", *arguments, *STEPS, "--json", str(folder / "local.json"), "--run-dir", "none")
    assert done.returncode == 0, done.stderr
    return str(json.loads((folder / "local.json").read_text())["parameters_sha256"])


def processes(marker: str) -> dict[int, int]:
    """Rank by pid of the processes with `marker` among their arguments."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            variables = dict(text.partition("=")[::2] for text in (folder / "environ").read_text().split("\0"))
        except (OSError, ValueError):
            continue
        if marker in words and "OMPI_COMM_WORLD_RANK" in variables:
            found[int(folder.name)] = int(variables["OMPI_COMM_WORLD_RANK"])
    return found


def test_three_hosts_train_what_one_machine_trains(mpi: MpiHosts, taihu: Taihu, tmp_path: Path) -> None:
    arguments = (*STEPS, "--save", "model.safetensors", "--json", "result.json")
    code, output = mpi.run(0, tmp_path, "-n", "5", "-H", mpi.hosts([1, 2, 2]), "taihu", "node", *arguments)
    assert code == 0, output
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["parameters_sha256"] == local_hash(taihu, tmp_path, "--servers", "2", "--workers", "3")
    assert (tmp_path / "model.safetensors").exists()
    for words in ("2 servers, 3 workers", "done in", f"{'sha256':<15} {result['parameters_sha256']}"):
        assert output.count(words) == 1
    for role, place in (("server", 0), ("server", 1), ("worker", 0), ("worker", 1), ("worker", 2)):
        assert any(f"role={role}" in line and f"rank={place} " in line + " " for line in output.splitlines())


def test_a_ring_by_a_hostfile_from_a_host_that_takes_no_part(mpi: MpiHosts, taihu: Taihu, tmp_path: Path) -> None:
    lines = (f"{mpi.address(host)} slots=1" for host in (1, 2, 3))
    (tmp_path / "hosts").write_text("\n".join(lines))
    arguments = (*STEPS, "--exchange", "ring", "--json", "result.json")
    code, output = mpi.run(0, tmp_path, "-n", "3", "--hostfile", "hosts", "taihu", "node", *arguments)
    assert code == 0, output
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["parameters_sha256"] == local_hash(taihu, tmp_path, "--exchange", "ring", "--workers", "3")


def test_one_host_needs_no_network(mpi: MpiHosts, tmp_path: Path) -> None:
    arguments = ("--set", "train.steps=2", "--servers", "1")
    code, output = mpi.run(3, tmp_path, "--oversubscribe", "-n", "3", "taihu", "node", *arguments)
    assert code == 0, output
    assert "address=127.0.0.1:" in output


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_broken_off_ends_everywhere_and_fails(mpi: MpiHosts, tmp_path: Path, number: int) -> None:
    job = tmp_path / "job.toml"
    job.write_text(ENDLESS)
    marker = str(job)
    arguments = ("taihu", "node", marker)
    with mpi.start(0, tmp_path, "-n", "3", "-H", mpi.hosts([1, 2]), *arguments) as process:
        try:
            assert process.stdout is not None
            while (line := process.stdout.readline()) and " step " not in line:
                pass
            assert line, "the run ended before its first step"
            if number == signal.SIGKILL:
                os.kill(next(pid for pid, rank in processes(marker).items() if rank == 2), number)
            else:
                process.send_signal(number)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode not in (0, None)
    wait_for(lambda: not processes(marker), "processes of the run are still there", timeout_s=30)


def test_a_wrong_number_of_processes_is_refused(mpi: MpiHosts, tmp_path: Path) -> None:
    arguments = ("taihu", "node", "--servers", "2", "--workers", "3")
    code, output = mpi.run(0, tmp_path, "--oversubscribe", "-n", "4", *arguments)
    assert code == 2
    assert "error: mpirun started 4 processes, but the job has 2 servers and 3 workers: start 5 processes" in output


BARE_SHELL = """#!/bin/sh
# As ssh to a host whose shell knows nothing of an environment that is active elsewhere.
shift
exec env -i HOME="$HOME" PATH=/usr/bin:/bin OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 sh -c "$*"
"""


def test_the_line_of_the_readme_finds_an_environment_that_is_active_here_alone(tmp_path: Path) -> None:
    (line,) = re.findall(r"^mpirun .* taihu node job.toml$", (ROOT / "docs" / "guide.md").read_text(), re.MULTILINE)
    assert line == "mpirun -x PATH -n 5 -H host1:1,host2:2,host3:2 taihu node job.toml"
    agent = tmp_path / "agent"
    agent.write_text(BARE_SHELL)
    agent.chmod(0o755)
    (tmp_path / "job.toml").write_text('model.name = "mlp"\ntrain.steps = 10\n')
    environment = {
        **without_settings(os.environ),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_plm_rsh_agent": str(agent),
        "PRTE_MCA_plm_ssh_agent": str(agent),
    }
    there = line.replace("-n 5 -H host1:1,host2:2,host3:2", "-n 3 -H host1:3").split()
    done = subprocess.run(
        there, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 steps, final loss" in done.stdout
