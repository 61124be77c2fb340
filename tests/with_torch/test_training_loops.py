"""PyTorch loops under `taihu run`: the losses of three workers are those of one process with all their samples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.torch_scripts import SCRIPTS, taihu_run

WAYS = {
    "ring": ("--set", "exchange.transport=tcp"),
    "ring in shared memory": (),
    "servers": ("--servers", "2"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The loop in one process, which knows nothing of taihu."""
    path = tmp_path_factory.mktemp("whole") / "results.json"
    subprocess.run([sys.executable, str(SCRIPTS / "loop.py"), "plain", str(path)], check=True, timeout=100)
    results: dict[str, Any] = json.loads(path.read_text())
    return results


@pytest.mark.parametrize("way", WAYS)
def test_three_workers_are_one_process_with_all_their_samples(
    way: str, tmp_path: Path, whole: dict[str, Any]
) -> None:
    done = taihu_run(tmp_path, *WAYS[way], script="loop.py", arguments=("spread", "results"))
    assert done.returncode == 0, done.stderr
    seen = [json.loads((tmp_path / f"results.{rank}").read_text()) for rank in range(3)]
    for step, hashes in enumerate(zip(*(each["hashes"] for each in seen), strict=True)):
        assert len(set(hashes)) == 1, f"replicas differ after step {step}"
    losses = np.mean([each["losses"] for each in seen], axis=0)
    np.testing.assert_allclose(losses, whole["losses"], rtol=2e-4)


@pytest.mark.parametrize("flags", [(), ("--servers", "1"), ("--set", "exchange.local_steps=2")])
def test_an_average_is_made_in_a_block_where_workers_update(flags: tuple[str, ...], tmp_path: Path) -> None:
    """All parameters are here anyway, and the block failed, for it asked servers for them."""
    done = taihu_run(tmp_path, *flags, script="averaged.py", arguments=("results",), workers=2)
    assert done.returncode == 0, done.stderr
    assert len({(tmp_path / f"results.{rank}").read_text() for rank in range(2)}) == 1


def test_what_ends_one_script_ends_all_with_its_message(tmp_path: Path) -> None:
    done = taihu_run(tmp_path, "--logs", "logs", script="fails.py", arguments=("1",), workers=2)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: worker 1: ValueError: no paper left; log: ")
    assert "worker 1: no paper left" in (tmp_path / "logs" / "worker-0.log").read_text()


def test_a_script_takes_part_in_one_run_after_the_other(tmp_path: Path) -> None:
    done = taihu_run(tmp_path, script="again.py", arguments=("results",), workers=2)
    assert done.returncode == 0, done.stderr
    subprocess.run([sys.executable, str(SCRIPTS / "again.py"), "results"], cwd=tmp_path, check=True, timeout=60)
    alone, *others = (json.loads((tmp_path / f"results.{who}").read_text()) for who in ("alone", 0, 1))
    assert others[0] == others[1]
    np.testing.assert_allclose(others[0], alone, rtol=1e-5)


def test_workers_with_fewer_batches_take_part_in_those_of_others(tmp_path: Path) -> None:
    done = taihu_run(tmp_path, script="uneven.py", arguments=("results",))
    assert done.returncode == 0, done.stderr
    seen = [json.loads((tmp_path / f"results.{rank}").read_text()) for rank in range(3)]
    assert len({each["hash"] for each in seen}) == 1
    np.testing.assert_allclose(seen[0]["values"], alone_with_all_batches(), rtol=1e-5, atol=1e-6)


def alone_with_all_batches() -> list[float]:
    """The parameters after steps with the mean over three workers of whoever has a batch, in one process."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3 + 2 * 2):
        optimizer.zero_grad()
        for rank in range(3):
            if step < 3 + 2 * rank:
                data = torch.Generator().manual_seed(100 * rank + step)
                (model(torch.randn(8, 6, generator=data)).square().mean() / 3).backward()
        optimizer.step()
    return [value for p in model.parameters() for value in p.detach().flatten().tolist()]


def test_a_state_has_what_compression_holds_back(tmp_path: Path) -> None:
    flags = ("--compression", "dlgs", "--density", "0.05", "--set", "exchange.plan=single")
    for arguments in (("whole", "0", "16"), ("halves", "0", "8"), ("halves", "8", "16")):
        done = taihu_run(tmp_path, *flags, script="goes_on.py", arguments=arguments, workers=2)
        assert done.returncode == 0, done.stderr
    seen = {
        json.loads((tmp_path / f"{name}.{rank}").read_text()) for name in ("whole", "halves") for rank in range(2)
    }
    assert len(seen) == 1
