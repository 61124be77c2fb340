"""`sbatch` of the example on a real Slurm: a job that is queued again goes on with the bits of one that is not."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_nodes import SlurmNodes
from support.daemons import wait_for
from support.torch_scripts import SCRIPTS, taihu_run

EXAMPLE = Path(__file__).parents[3] / "deploy" / "slurm" / "train.sbatch"
EXACT = ("--set", "exchange.plan=bucket:1MB", "--set", "cluster.threads=1")
VARIABLES = {"TAIHU_EXCHANGE__PLAN": "bucket:1MB", "OMP_NUM_THREADS": "1"}
EPOCHS = "3"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmNodes]:
    with SlurmNodes(3, tmp_path_factory.mktemp("slurm")) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Hash, rate and a draw of each worker at the end of a run of this machine."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = taihu_run(folder, *EXACT, script="keeps.py", arguments=(EPOCHS,))
    assert done.returncode == 0, done.stderr
    return ends(folder)


def ends(folder: Path) -> list[list[str]]:
    return [(folder / f"end.{rank}").read_text().split()[:3] for rank in range(3)]


def began(folder: Path) -> list[int]:
    """The steps behind which the workers of the last life have begun."""
    return [int((folder / f"end.{rank}").read_text().split()[3]) for rank in range(3)]


def submit(slurm: SlurmNodes, folder: Path, *arguments: str) -> str:
    """The number of a job of the example with these arguments."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {**VARIABLES, "PATH": path}
    return slurm.say("sbatch", "--parsable", str(EXAMPLE), *arguments, folder=folder, variables=variables).strip()


def await_end(slurm: SlurmNodes, folder: Path, job: str) -> None:
    """Return when the job has completed."""
    log = folder / f"train-{job}.log"
    final = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
    wait_for(lambda: slurm.state(job) in final, f"job {job} does not end: {slurm.state(job)}")
    assert slurm.state(job) == "COMPLETED", log.read_text()


def test_a_job_that_is_queued_again_goes_on(slurm: SlurmNodes, undisturbed: list[list[str]], tmp_path: Path) -> None:
    """By itself where a task is killed, then by `scontrol requeue`, as a node that fails does: in mid-epoch."""
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    script = (SCRIPTS / "keeps.py").read_text().replace(kill, f"{kill} if each[1] == 3 else signal.pause()")
    (tmp_path / "keeps.py").write_text(script)
    job = submit(slurm, tmp_path, "keeps.py", EPOCHS, "2:3", "1:6")
    wait_for((tmp_path / "killed.1.6").exists, "the script does not come to step 6")
    slurm.say("scontrol", "requeue", job)
    await_end(slurm, tmp_path, job)
    assert ends(tmp_path) == undisturbed
    assert began(tmp_path) == [5, 5, 5]
