"""Scripts that torchrun, srun and mpirun start: places by their variables, and processes that find each other so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from support.daemons import free_port
from support.torch_ranks import RANKS

import taihu.torch
from taihu.core.base.errors import ConfigError
from taihu.core.job.environment import without_settings
from taihu.torch.place import RunPlace, find_place

SCRIPTS = Path(__file__).with_name("scripts")
LIMIT_S = 60.0
OF_LAUNCHERS = ("TAIHU_", "RANK", "WORLD_", "LOCAL_", "MASTER_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI")


def torchrun(rank: int, size: int) -> dict[str, str]:
    """As of `torchrun --standalone`; the port is that of its own store, where it listens itself."""
    numbers = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
    return {**numbers, "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": str(os.getpid())}


def srun(rank: int, size: int) -> dict[str, str]:
    numbers = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(size), "SLURM_JOB_ID": str(os.getpid())}
    return {**numbers, "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node7", "SLURM_JOB_NODELIST": "node[6-7]"}


def mpirun(rank: int, size: int) -> dict[str, str]:
    numbers = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size)}
    return {**numbers, "OMPI_COMM_WORLD_LOCAL_SIZE": str(size), "PMIX_NAMESPACE": f"{os.getpid()}1"}


def by_hand(rank: int, size: int) -> dict[str, str]:
    numbers = {"RANK": str(rank), "WORLD_SIZE": str(size)}
    return {**numbers, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT)}


PORT = free_port()
LAUNCHERS = (torchrun, srun, mpirun, by_hand)


def placed(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], **tables: Mapping[str, object]) -> RunPlace:
    for name in os.environ:
        if name.startswith(OF_LAUNCHERS):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return find_place(None, tables)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_all_processes_of_a_launch_are_workers_of_one_ring(launcher: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(launcher)
    places = [placed(monkeypatch, launcher(rank, 3)) for rank in range(3)]
    assert [place.rank for place in places] == [0, 1, 2]
    assert {place.job.cluster.workers for place in places} == {3}
    assert {place.job.exchange.kind.key for place in places} == {"ring"}
    (coordinator,) = {place.job.cluster.coordinator for place in places}
    assert coordinator is not None
    # Worker 0 listens there, the others where there is room; on one machine nobody else can connect.
    host, _, port = coordinator.rpartition(":")
    assert host == "127.0.0.1"
    assert [place.listen.bind for place in places] == [f"{host}:{port}", f"{host}:0", f"{host}:0"]
    assert port != "29500"


def test_a_process_alone_needs_no_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    for variables in ({}, *(launcher(0, 1) for launcher in LAUNCHERS)):
        place = placed(monkeypatch, variables)
        assert (place.rank, place.is_alone, place.job.exchange.returns) == (0, True, "gradients")


def test_a_rank_that_was_given_comes_before_those_of_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"TAIHU_RANK": "1", "TAIHU_CLUSTER__WORKERS": "2", "TAIHU_CLUSTER__COORDINATOR": "127.0.0.1:7071"}
    place = placed(monkeypatch, {**srun(5, 9), **own})
    assert (place.rank, place.job.cluster.workers, place.job.cluster.coordinator) == (1, 2, "127.0.0.1:7071")


def test_on_other_machines_worker_0_listens_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [placed(monkeypatch, {**by_hand(rank, 2), "MASTER_ADDR": "192.0.2.7"}) for rank in range(2)]
    assert [place.listen.bind for place in places] == [f"0.0.0.0:{PORT}", "0.0.0.0:0"]


@pytest.mark.parametrize(
    ("variables", "tables", "expected"),
    [
        (
            torchrun(0, 3),
            {"cluster": {"workers": 2}},
            "torchrun started 3 processes of the script, but",
        ),
        (srun(0, 3), {"cluster": {"servers": 2}}, "srun started the workers and does not say where server 0 is"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, {}, "RANK does not say where rank 0 is"),
        ({**by_hand(0, 2), "RANK": "2"}, {}, "rank 2 of 2 processes makes no sense"),
    ],
)
def test_what_does_not_fit_is_said(
    variables: dict[str, str],
    tables: dict[str, dict[str, object]],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match=expected):
        placed(monkeypatch, variables, **tables)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_processes_with_the_variables_of_a_launcher_train_together(launcher: object) -> None:
    assert callable(launcher)
    pipes = [RANKS.Pipe(duplex=False) for _ in range(2)]
    ranks = [RANKS.Process(target=one_step, args=(launcher(rank, 2), pipe)) for rank, (_, pipe) in enumerate(pipes)]
    for rank in ranks:
        rank.start()
    try:
        for place, (pipe, _) in enumerate(pipes):
            assert pipe.poll(LIMIT_S), f"no answer of rank {place}"
            assert pipe.recv() == (place, 2, 1.5)
    finally:
        for rank in ranks:
            rank.join(LIMIT_S)
            rank.kill()
    assert [rank.exitcode for rank in ranks] == [0, 0]


def one_step(variables: dict[str, str], pipe: Connection) -> None:
    """A step whose gradient is the rank + 1; tells rank, number of workers and the mean."""
    own = without_settings(os.environ)
    os.environ.clear()
    os.environ.update({**own, **variables})
    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = taihu.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    assert isinstance(optimizer, torch.optim.Optimizer)
    rank = taihu.torch.rank()
    model(torch.full((1, 1), rank + 1.0)).sum().backward()
    assert model.weight.grad is not None
    pipe.send((rank, taihu.torch.world_size(), model.weight.grad.item()))


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun: Debian's openmpi-bin")
def test_mpirun_starts_a_script(tmp_path: Path) -> None:
    command = [
        "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        "2",
        sys.executable,
        str(SCRIPTS / "mean.py"),
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**without_settings(os.environ), "OMPI_MCA_plm_rsh_agent": "true"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2: 1.5", "rank 1 of 2: 1.5"]


def test_the_exit_code_of_a_rank_that_ends_early_is_told_to_the_others() -> None:
    """No process watches those that were started by hand."""
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith(OF_LAUNCHERS)}
    port = free_port()
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPTS / "ends.py"), "sys.exit(3)", "1"],
            env={**surroundings, **by_hand(rank, 2), "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=LIMIT_S)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [1, 3]
    told = "worker 1 has ended after 3 backwards (exit code 3) while worker 0 waits in its 4th backward"
    assert told in said[0].splitlines()[-1]
