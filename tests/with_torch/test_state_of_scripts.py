"""Scripts that keep their state go on where they were killed, or stopped: the same bits, and no step made again."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.daemons import wait_for
from support.torch_scripts import SCRIPTS, taihu_run
from torch.distributed import checkpoint as torch_checkpoint

from taihu.core.checkpoint.run_memory import named_memory
from taihu.core.job import load_job

BATCHES = 4
"""Of an epoch of keeps.py on three workers."""


def ends_of(folder: Path, workers: int) -> list[list[str]]:
    """The hash of the parameters, the learning rate, a last draw, and the step that the last life began with."""
    return [(folder / f"end.{rank}").read_text().split() for rank in range(workers)]


def run(folder: Path, *flags: str, epochs: int = 3, kills: tuple[str, ...] = (), workers: int = 3) -> str:
    """A run that ends well; its words."""
    folder.mkdir(exist_ok=True)
    arguments = (str(epochs), *kills)
    done = taihu_run(folder, *flags, script="keeps.py", arguments=arguments, workers=workers)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "flags",
    [(), ("--compression", "dlgs", "--no-fork"), ("--servers", "1", "--compression", "topk")],
    ids=["dense", "dlgs", "servers"],
)
def test_a_script_goes_on_behind_its_last_step_whoever_is_killed(flags: tuple[str, ...], tmp_path: Path) -> None:
    run(tmp_path / "whole", *flags)
    told = run(tmp_path / "killed", *flags, kills=("0:3", "2:5", "1:8"))
    assert told.count("was killed by SIGKILL") == 3
    whole, killed = ends_of(tmp_path / "whole", 3), ends_of(tmp_path / "killed", 3)
    assert [each[:3] for each in killed] == [each[:3] for each in whole]
    # Who kills itself has not come back to the loop behind its step: that is given up. Others keep their processes,
    # in the first and the last pass of an epoch, too.
    assert told.count("another process takes its place") == 3
    assert [each[3] for each in killed] == ["2", "7", "4"]
    (folder,) = (tmp_path / "killed" / "runs").iterdir()
    kept = folder / "checkpoints"
    with (folder / "steps.csv").open() as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(1, 3 * BATCHES + 1))
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "finished"
    assert [each["after_step"] for each in events if each["event"] == "resumed"][-1] == 7
    assert named_memory(kept) is None


def test_who_cannot_go_back_into_a_loop_is_started_again_too(tmp_path: Path) -> None:
    ends = []
    for kill in ((), ("kill",)):
        folder = tmp_path / str(len(kill))
        folder.mkdir()
        done = taihu_run(folder, script="breaks.py", arguments=kill, workers=2)
        assert done.returncode == 0, done.stderr
        assert ("all processes of the script are started again" in done.stderr) == bool(kill)
        ends.append([(folder / f"end.{rank}").read_text() for rank in range(2)])
    assert ends[0] == ends[1]


def test_a_script_of_one_process_goes_on_too(tmp_path: Path) -> None:
    run(tmp_path / "whole", workers=1)
    # The first eight steps of a life are all held, however short they are.
    run(tmp_path / "killed", kills=("0:8",), workers=1)
    whole, killed = ends_of(tmp_path / "whole", 1), ends_of(tmp_path / "killed", 1)
    assert killed[0][:3] == whole[0][:3]
    assert killed[0][3] == "7"


@pytest.mark.parametrize("launcher", ["taihu", "slurm"])
def test_a_run_goes_on_with_more_epochs_and_in_its_folder(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = () if launcher == "taihu" else ("--set", f"checkpoint.dir={tmp_path / 'kept'}")
    run(tmp_path, *folder, "--set", "checkpoint.every_steps=5", epochs=2)
    first = ends_of(tmp_path, 3)
    assert load_job(next((tmp_path / "runs").iterdir()) / "settings.toml").checkpoint.every_steps == 5
    if launcher == "slurm":
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    run(tmp_path, *(folder or ("--resume", "auto")), epochs=3)
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    assert all((each / "results.json").exists() for each in (tmp_path / "runs").iterdir())
    later = ends_of(tmp_path, 3)
    assert {each[3] for each in later} == {str(2 * BATCHES)}
    run(tmp_path / "whole")
    assert [each[:3] for each in later] == [each[:3] for each in ends_of(tmp_path / "whole", 3)]
    assert first != later


def test_a_run_goes_on_from_one_checkpoint_of_another_and_on_other_workers(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    told = ("--set", "checkpoint.every_steps=3", "--set", f"checkpoint.dir={kept}", "--set", "checkpoint.keep=9")
    run(tmp_path, *told)
    whole = ends_of(tmp_path, 3)
    run(tmp_path / "again", "--resume", str(kept / "step-000006"), kills=("1:7",))
    again = ends_of(tmp_path / "again", 3)
    assert [each[:3] for each in again] == [each[:3] for each in whole]
    # Two epochs of 4 batches of three workers are all samples of two epochs of 6 batches of two workers.
    run(tmp_path / "fewer", "--resume", str(kept / "step-000009"), workers=2)
    assert {each[3] for each in ends_of(tmp_path / "fewer", 2)} == {"9"}


def test_a_run_whose_launcher_was_killed_too_goes_on_from_memory(tmp_path: Path) -> None:
    run(tmp_path / "whole", workers=2)
    kept = tmp_path / "kept"
    command = [sys.executable, "-P", "-m", "taihu", "run", "--workers", "2", "--set", f"checkpoint.dir={kept}"]
    # Worker 1 stops itself behind its 5th step: it is there, and the others wait.
    script = (SCRIPTS / "keeps.py").read_text().replace("signal.SIGKILL", "signal.SIGSTOP")
    (tmp_path / "keeps.py").write_text(script)
    with subprocess.Popen([*command, "keeps.py", "3", "1:5"], cwd=tmp_path, stderr=subprocess.DEVNULL) as launcher:
        wait_for((tmp_path / "killed.1.5").exists, "worker 1 has not come to its 5th step")
        os.kill(launcher.pid, signal.SIGKILL)
    # Who is stopped cannot end with its launcher.
    wait_for((tmp_path / "killed.1.5").read_text, "worker 1 has not told who it is")
    os.kill(int((tmp_path / "killed.1.5").read_text()), signal.SIGKILL)
    assert named_memory(kept) is not None
    assert not list(kept.glob("step-*"))
    run(tmp_path, "--resume", "auto", "--set", f"checkpoint.dir={kept}", workers=2)
    ends = ends_of(tmp_path, 2)
    assert [each[:3] for each in ends] == [each[:3] for each in ends_of(tmp_path / "whole", 2)]
    assert {each[3] for each in ends} == {"4"}


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("state = taihu.torch.state()", "expected what is to be kept"),
        ("state = taihu.torch.state(model=3)", "model is of int, which has no state_dict"),
        ("state = taihu.torch.state(model=model)\nanother = taihu.torch.state(model=model)", "there is one already"),
        (
            "optimizer = taihu.torch.DistributedOptimizer(optimizer, model, update='servers')\n"
            "state = taihu.torch.state(optimizer=optimizer)",
            "update=",
        ),
        ("taihu.torch.shard_linear(model)\nstate = taihu.torch.state(model=model)", "shard_linear"),
        (
            "taihu.torch.init(compression={'method': 'dlgs'})\nstate = taihu.torch.state(model=model)",
            "holds gradients back",
        ),
    ],
)
def test_what_is_not_kept_whole_is_refused(script: str, words: str, tmp_path: Path) -> None:
    head = "import torch, taihu.torch\nmodel = torch.nn.Linear(1024, 1024)\n"
    head += "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    (tmp_path / "script.py").write_text(head + script)
    flags = ("--servers", "1") if "servers" in script else ()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "taihu", "run", "--workers", "2", *flags, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert words in done.stderr.splitlines()[-1]


def test_what_a_script_has_kept_is_exported_for_pytorch(tmp_path: Path) -> None:
    run(tmp_path, "--set", f"checkpoint.dir={tmp_path / 'kept'}", workers=2)
    for name in ("state.pt", "state.safetensors", "state"):
        command = [sys.executable, "-P", "-m", "taihu", "checkpoint", "export", "kept", name]
        told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
        assert told.stdout.startswith(f"{name}: the state after ")
        assert not told.stderr
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    model, digest = loaded["model"], hashlib.sha256()
    for name in ("0.weight", "0.bias", "1.weight", "1.bias", "4.weight", "4.bias"):
        digest.update(model[name].numpy().tobytes())
    assert digest.hexdigest() == ends_of(tmp_path, 2)[0][0]
    assert loaded["scheduler"]["last_epoch"] == 3
    tensors = load_file(tmp_path / "state.safetensors")
    assert {name for name in tensors if name.startswith("model.")} == {f"model.{name}" for name in model}
    assert torch.equal(tensors["optimizer.state.0.exp_avg"], loaded["optimizer"]["state"][0]["exp_avg"])
    own = {"model": {name: torch.zeros_like(each) for name, each in model.items()}}
    with pytest.warns(UserWarning, match="single process"):
        torch_checkpoint.load(own, checkpoint_id=tmp_path / "state", no_dist=True)
    assert all(torch.equal(own["model"][name], each) for name, each in model.items())


def test_a_folder_of_an_earlier_run_is_not_overwritten(tmp_path: Path) -> None:
    kept = ("--set", f"checkpoint.dir={tmp_path / 'kept'}")
    run(tmp_path, *kept, workers=1, epochs=1)
    done = taihu_run(tmp_path, *kept, script="keeps.py", arguments=("1",), workers=1)
    assert done.returncode == 1
    assert "has checkpoints of an earlier run" in done.stderr
