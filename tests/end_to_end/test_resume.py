"""A run that died goes on from its last checkpoint, and ends with the parameters of one that was left alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.commands import run_command
from support.daemons import daemons, wait_for

from taihu.core.checkpoint.manifest import MANIFEST

# One run for all of them.
pytestmark = pytest.mark.xdist_group("resume")

# The plan of compressed groups decides what is selected: it is named.
JOB = (
    *("--servers", "2", "--workers", "2", "--data", "digits", "--epochs", "6"),
    *("--compression", "dlgs", "--density", "0.1", "--set", "exchange.plan=bucket:50kB"),
    *("--set", "checkpoint.every_steps=10", "--set", "checkpoint.keep=3"),
)


def train(folder: Path, *arguments: str) -> dict[str, Any]:
    done = run_command("taihu", "train", *arguments, "--json", "result.json", folder=folder)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return {**results, "output": done.stdout, "errors": done.stderr}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a run was killed, with all its processes, when it had some checkpoints."""
    home = tmp_path_factory.mktemp("killed")
    with daemons(home) as start:
        process = start("taihu", "train", *JOB)
        wait_for(lambda: len(list(home.glob(f"runs/*/checkpoints/*/{MANIFEST}"))) == 3, "no checkpoints")
        process.kill()
    return home


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return train(tmp_path_factory.mktemp("undisturbed"), *JOB)


def copy(home: Path, to: Path) -> Path:
    """The folder of the run in a copy of `home`."""
    shutil.copytree(home, to, dirs_exist_ok=True)
    return next((to / "runs").iterdir())


def test_a_run_that_was_killed_goes_on_with_the_same_end(
    killed: Path, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    run = copy(killed, tmp_path)
    newest = sorted(run.glob(f"checkpoints/*/{MANIFEST}"))[-1].parent
    results = train(tmp_path, "--resume", "auto")
    assert f"going on from   runs/{run.name}/checkpoints/{newest.name}\n" in results["output"]
    assert results["parameters_sha256"] == undisturbed["parameters_sha256"]
    assert results["steps"] == undisturbed["steps"]
    assert results["evaluations"][-1]["test_metrics"] == undisturbed["evaluations"][-1]["test_metrics"]
    # All steps behind the checkpoint, and no others, were made again.
    anew = next(path for path in (tmp_path / "runs").iterdir() if path != run)
    steps = [int(line.split(",")[0]) for line in (anew / "steps.csv").read_text().splitlines()[1:]]
    assert steps == list(range(int(newest.name.removeprefix("step-")) + 1, results["steps"] + 1))


def test_a_damaged_checkpoint_is_passed_over(killed: Path, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    run = copy(killed, tmp_path)
    *_, before, newest = sorted(run.glob("checkpoints/*/worker-1.safetensors"))
    if not (newest.parent / MANIFEST).exists():  # it was being written
        *_, before, newest = sorted(path.parent / newest.name for path in run.glob(f"checkpoints/*/{MANIFEST}"))
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    # Both from and to a store, as fsspec sees it.
    store = f"file://{tmp_path}/store"
    results = train(tmp_path, *JOB, "--resume", f"file://{run}", "--set", f"checkpoint.dir={store}")
    assert len(list(tmp_path.glob(f"store/step-*/{MANIFEST}"))) == 3
    assert (
        f"{newest.name}: its SHA-256 is not the manifest's; it is damaged; using the one before" in results["errors"]
    )
    assert f"checkpoints/{before.parent.name}\n" in results["output"]
    assert results["parameters_sha256"] == undisturbed["parameters_sha256"]


def test_a_run_goes_on_with_other_numbers_and_more_epochs(
    killed: Path, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    run = copy(killed, tmp_path)
    flags = ("--servers", "1", "--workers", "3", "--epochs", "7")
    results = train(tmp_path, "--resume", f"runs/{run.name}", *flags)
    assert (results["servers"], results["workers"]) == (1, 3)
    assert results["test_accuracy"] == pytest.approx(undisturbed["test_accuracy"], abs=0.1)


def test_a_run_that_has_made_all_steps_says_what_to_raise(killed: Path, tmp_path: Path) -> None:
    run = copy(killed, tmp_path)
    done = run_command("taihu", "train", "--resume", f"runs/{run.name}", "--epochs", "1", folder=tmp_path)
    assert done.returncode == 2
    assert "all 22 steps have been made; raise train.epochs or train.steps to go on" in done.stderr


def test_there_is_nothing_to_go_on_from_in_an_empty_folder(tmp_path: Path) -> None:
    for named, why in (("auto", "no run in runs has a checkpoint"), ("runs/none", "no checkpoint is complete there")):
        done = run_command("taihu", "train", "--resume", named, folder=tmp_path)
        assert done.returncode == 2
        assert why in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_are_listed_verified_exported_and_tested(killed: Path, tmp_path: Path) -> None:
    run = copy(killed, tmp_path)
    newest = sorted(run.glob(f"checkpoints/*/{MANIFEST}"))[-1].parent

    def taihu(*arguments: str) -> tuple[int, str]:
        done = run_command("taihu", *arguments, folder=tmp_path)
        return done.returncode, done.stdout + done.stderr

    code, listed = taihu("checkpoint", "ls", f"runs/{run.name}")
    assert (code, len(listed.splitlines())) == (0, 4)
    assert f"{int(newest.name.removeprefix('step-'))}" in listed.splitlines()[1]
    assert "2 servers, 2 workers" in listed
    code, whole = taihu("checkpoint", "verify", f"runs/{run.name}")
    assert (code, whole.count("4 files")) == (0, 3)

    code, _ = taihu("checkpoint", "export", f"file://{run}", "model.safetensors")
    assert code == 0
    of_file, of_folder = taihu("evaluate", "model.safetensors"), taihu("evaluate", str(newest))
    assert of_file == of_folder
    assert of_file[0] == 0
    assert "test_accuracy" in of_file[1] or "accuracy" in of_file[1]

    code, _ = taihu("checkpoint", "reshard", f"runs/{run.name}", "moved", "--servers", "0", "--workers", "3")
    assert code == 0
    assert taihu("evaluate", f"file://{tmp_path}/moved/{newest.name}") == of_file

    path = newest / "server-1.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    code, damaged = taihu("checkpoint", "verify", str(newest))
    assert (code, "server-1.safetensors" in damaged) == (2, True)
    code, damaged = taihu("checkpoint", "verify", f"runs/{run.name}")
    assert (code, damaged.count("whole"), "1 checkpoint of 3 damaged" in damaged) == (2, 2, True)
    assert taihu("checkpoint", "ls", "moved/none")[0] == 2


def test_a_run_with_spread_layers_goes_on_and_its_checkpoints_are_as_any_others(tmp_path: Path) -> None:
    job = ("--servers", "1", "--workers", "3", "--fc", "shard", "--optimizer", "adam", "--steps", "24")
    whole = train(tmp_path, *job, "--set", "checkpoint.every_steps=10", "--save", "saved.safetensors")
    (run,) = (tmp_path / "runs").iterdir()
    before, newest = (run.relative_to(tmp_path) / "checkpoints" / f"step-{step:06d}" for step in (20, 24))

    def taihu(*arguments: object) -> tuple[int, str]:
        done = run_command("taihu", *map(str, arguments), folder=tmp_path)
        return done.returncode, done.stdout + done.stderr

    code, listed = taihu("checkpoint", "ls", run)
    assert (code, listed.count("1 server, 3 workers")) == (0, 2)
    code, checked = taihu("checkpoint", "verify", run)
    assert (code, checked.count("4 files")) == (0, 2)
    assert taihu("checkpoint", "export", run, "exported.safetensors")[0] == 0
    saved = [(tmp_path / f"{name}.safetensors").read_bytes() for name in ("saved", "exported")]
    assert saved[0] == saved[1]
    assert taihu("checkpoint", "reshard", before, "moved", "--servers", "2", "--workers", "2")[0] == 0
    expected = taihu("evaluate", "saved.safetensors")
    assert expected[0] == 0
    assert taihu("evaluate", newest) == expected

    again = train(tmp_path, "--resume", str(before))
    assert again["parameters_sha256"] == whole["parameters_sha256"]
    others = train(tmp_path, "--resume", f"moved/{before.name}", *job, "--workers", "2")
    data = train(tmp_path, "--resume", str(before), "--fc", "data", "--workers", "2")
    assert (others["steps"], data["steps"], data["fc"]) == (24, 24, None)
    assert others["final_loss"] == pytest.approx(data["final_loss"], rel=1e-2)

    path = tmp_path / newest / "worker-2.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    for command in (("checkpoint", "verify", newest), ("evaluate", newest), ("train", "--resume", newest)):
        code, damaged = taihu(*command)
        assert (code, "worker-2.safetensors" in damaged) == (2, True), command
