"""Scripts whose workers come and go: each sample once, and the parameters of one process with whole batches."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from support.daemons import free_port, wait_for
from support.torch_scripts import SCRIPTS

from taihu.core.job.environment import without_settings

TAIHU = [sys.executable, "-P", "-m", "taihu"]
EPOCHS, SAMPLES = 2, 100


@contextmanager
def begun(folder: Path, *flags: str, batch: int, waits: tuple[int, ...]) -> Iterator[subprocess.Popen[str]]:
    """A run of elastic.py, ended behind the block if it has not."""
    arguments = [str(EPOCHS), str(batch), *map(str, waits)]
    command = [*TAIHU, "run", "--run-dir", "run", *flags, str(SCRIPTS / "elastic.py"), *arguments]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as launcher:
        try:
            yield launcher
        finally:
            launcher.terminate()


def scaled(folder: Path, workers: int) -> subprocess.CompletedProcess[str]:
    command = [*TAIHU, "scale", "run", str(workers)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def parameters_of_one(batch: int) -> list[torch.Tensor]:
    """The parameters of one process with whole batches, without taihu."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    drawn = torch.Generator().manual_seed(7)
    inputs, labels = torch.randn(100, 20, generator=drawn), torch.randint(0, 3, (100,), generator=drawn)
    for chosen in batches_of_one(batch):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def batches_of_one(batch: int) -> list[list[int]]:
    """All batches by step."""
    batches = []
    for epoch in range(EPOCHS):
        order = np.random.default_rng([3, epoch]).permutation(SAMPLES).tolist()
        order += order[: -SAMPLES % batch]
        batches += [order[start : start + batch] for start in range(0, len(order), batch)]
    return batches


def seen(folder: Path, step: int, workers: int) -> list[int]:
    """The samples of a step that so many workers have made, together."""
    shares = [(folder / f"seen.{step}.{rank}.{workers}").read_text().split() for rank in range(workers)]
    return [int(each) for share in shares for each in share]


def check(folder: Path, batch: int, sizes: dict[int, int]) -> None:
    """Each step has its batch, by so many workers from such a step on; the parameters are those of one process."""
    for step, expected in enumerate(batches_of_one(batch), 1):
        workers = next(size for first, size in sorted(sizes.items(), reverse=True) if first <= step)
        assert seen(folder, step, workers) == expected
    for rank in range(list(sizes.values())[-1]):
        for own, oracle in zip(torch.load(folder / f"end.{rank}"), parameters_of_one(batch), strict=True):
            torch.testing.assert_close(own, oracle, rtol=1e-5, atol=1e-6)


# Ten samples are 5 and 5, then 2, 3, 2 and 3, then 3, 3 and 4: gradients count by shares.
def test_two_then_four_then_three_workers_train_as_one(tmp_path: Path) -> None:
    with begun(tmp_path, "--workers", "2", "--max-workers", "4", batch=10, waits=(5, 13)) as launcher:
        wait_for((tmp_path / "waits.5").exists, "worker 0 has not come to step 5")
        refused = scaled(tmp_path, 5)
        assert refused.returncode == 2
        assert "does not go on with 5 workers: --max-workers is 4" in refused.stderr
        assert "goes on with 4 workers" in scaled(tmp_path, 4).stdout
        wait_for((tmp_path / "waits.13").exists, "worker 0 has not come to step 13")
        assert "goes on with 3 workers" in scaled(tmp_path, 3).stdout
        told = launcher.communicate(timeout=120)[1]
    assert launcher.returncode == 0, told
    check(tmp_path, 10, {1: 2, 5: 4, 13: 3})


def test_who_is_killed_again_and_again_is_left_out(tmp_path: Path) -> None:
    with begun(tmp_path, "--workers", "3", "--min-workers", "2", batch=12, waits=(4,)) as launcher:
        for _ in range(2):
            wait_for((tmp_path / "waits.4").exists, "worker 0 has not come to step 4")
            pid = int((tmp_path / "waits.4").read_text())
            (tmp_path / "waits.4").unlink()
            os.kill(pid, signal.SIGKILL)
        wait_for((tmp_path / "waits.4").exists, "worker 0 has not come to step 4")
        os.kill(int((tmp_path / "waits.4").read_text()), signal.SIGKILL)
        told = launcher.communicate(timeout=120)[1]
    assert launcher.returncode == 0, told
    assert "another process takes its place" in told
    assert "are started again, with 2 workers, and go on" in told
    check(tmp_path, 12, {1: 3, 4: 2})


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--workers", "2", "--min-workers", "3"), "--min-workers 3: begins with 2"),
        (("--workers", "2", "--max-workers", "1"), "--max-workers 1: begins with 2"),
    ],
)
def test_numbers_that_cannot_be_are_refused(flags: tuple[str, ...], words: str, tmp_path: Path) -> None:
    command = [*TAIHU, "run", *flags, str(SCRIPTS / "elastic.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert words in done.stderr


def test_a_script_that_keeps_nothing_is_not_scaled(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(
        "import time, taihu.torch\ntaihu.torch.rank()\nopen(f'here.{taihu.torch.rank()}', 'w')\ntime.sleep(600)\n"
    )
    command = [*TAIHU, "run", "--run-dir", "run", "--workers", "2", "--grace", "1", "waits.py"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as launcher:
        wait_for((tmp_path / "here.1").exists, "worker 1 has not begun")
        refused = scaled(tmp_path, 3)
        launcher.terminate()
    assert refused.returncode == 2
    assert "the script has made no taihu.torch.state yet" in refused.stderr


def test_a_run_that_has_ended_is_not_scaled(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "settings.toml").touch()
    refused = scaled(tmp_path, 2)
    assert refused.returncode == 1
    assert "taihu run --workers 2 --resume run goes on with it" in refused.stderr


def of(rank: int, life: int) -> dict[str, str]:
    """A rank's own variables; each host counts its own restarts."""
    return {"RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": str(life * (rank % 2))}


def test_hosts_that_torchrun_lets_come_and_go(tmp_path: Path) -> None:
    """Torchrun starts all workers again where hosts come or go, and counts no restart: its run id tells."""
    lives = ((2, "waits.5"), (4, "waits.13"), (3, None))
    for life, (workers, waits) in enumerate(lives):
        words = {
            "WORLD_SIZE": str(workers),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(free_port()),
            "TORCHELASTIC_RUN_ID": f"job-{os.getpid()}",
            "TAIHU_CHECKPOINT__DIR": str(tmp_path / "kept"),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-P", str(SCRIPTS / "elastic.py"), str(EPOCHS), "10", "5", "13"]
        processes = [
            subprocess.Popen(command, cwd=tmp_path, env={**without_settings(os.environ), **words, **of(rank, life)})
            for rank in range(workers)
        ]
        try:
            if waits is None:
                assert [process.wait(120) for process in processes] == [0] * workers
            else:
                wait_for((tmp_path / waits).exists, f"worker 0 has not come to {waits}")
        finally:
            for process in processes:
                process.kill()
                process.wait()
    check(tmp_path, 10, {1: 2, 5: 4, 13: 3})
    assert not (tmp_path / "kept" / "launch").exists()
