"""The examples for Hugging Face's libraries: their losses are Gloo's, and those of one process with the whole batch.

The commands are those of a user. Only where an example is a reference do others follow it in the same processes,
because these libraries take six seconds to import.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.daemons import free_port
from support.torch_scripts import SCRIPTS, taihu_run

from benchmarks.pytorch.huggingface import BATCH, EXAMPLES, FOLDER, losses_of, ours, plain, without_ours

PAGE = Path(__file__).parents[2] / "docs" / "huggingface.md"
SHORT = {
    "trainer": ("--steps", "12"),
    "accelerate_loop": ("--epochs", "1"),
    "sft": ("--steps", "12"),
    "lora_loop": ("--steps", "20"),
    "trainer_optimizer": ("--steps", "10"),
}
BY_BACKEND = [name for name in SHORT if '"taihu"' in (FOLDER / f"{name}.py").read_text()]
Losses = dict[int, float]
Turn = tuple[Path, tuple[str, ...]]


def in_turn(folder: Path, launcher: Sequence[str], turns: Sequence[Turn]) -> list[Losses]:
    """The losses of scripts, each with its arguments, that follow each other in the processes of a launcher."""
    words = [",".join([str(free_port()), str(script), *arguments]) for script, arguments in turns]
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPTS / "in_turn.py"), str(folder), *words],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [losses_of((folder / f"{number}.0").read_text()) for number in range(len(turns))]


@pytest.fixture(scope="module")
def plain_examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return without_ours(tmp_path_factory.mktemp("plain") / "examples")


@pytest.fixture(scope="module")
def alone(plain_examples: Path) -> dict[str, Losses]:
    """Of one process, whose batches are those of two."""
    batches = {name: ("--batch", BATCH[name]) if name in BATCH else () for name in SHORT}
    turns = [(plain_examples / f"{name}.py", (*SHORT[name], *batches[name])) for name in SHORT]
    return dict(zip(SHORT, in_turn(plain_examples, (), turns), strict=True))


@pytest.fixture(scope="module")
def by_torchrun(plain_examples: Path) -> dict[tuple[str, str], Losses]:
    """Of two processes, over Gloo without a line of taihu and over taihu."""
    turns = {("Gloo", name): plain_examples for name in BY_BACKEND}
    turns |= {("taihu", name): FOLDER for name in [*BY_BACKEND, "lora_loop"]}
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    scripts = [(folder / f"{name}.py", SHORT[name]) for (_, name), folder in turns.items()]
    return dict(zip(turns, in_turn(plain_examples, launcher, scripts), strict=True))


def test_every_example_is_run() -> None:
    assert SHORT.keys() == EXAMPLES.keys()
    assert BY_BACKEND == ["trainer", "accelerate_loop", "sft"]


@pytest.mark.parametrize("name", BY_BACKEND)
def test_losses_by_torchrun_are_those_of_gloo(name: str, by_torchrun: dict[tuple[str, str], Losses]) -> None:
    losses = by_torchrun["taihu", name]
    assert losses == pytest.approx(by_torchrun["Gloo", name], rel=1e-5)
    assert losses[max(losses)] < losses[1] - 0.5


def test_a_loop_by_torchrun_has_the_losses_of_one_process(
    alone: dict[str, Losses], by_torchrun: dict[tuple[str, str], Losses]
) -> None:
    assert by_torchrun["taihu", "lora_loop"] == pytest.approx(alone["lora_loop"], rel=1e-5)


@pytest.mark.parametrize("name", SHORT)
def test_losses_by_taihu_run_are_those_of_one_process(
    name: str, alone: dict[str, Losses], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = taihu_run(tmp_path, script=str(FOLDER / f"{name}.py"), arguments=SHORT[name], workers=2)
    assert done.returncode == 0, done.stderr
    losses = losses_of(done.stdout)
    assert losses == pytest.approx(alone[name], rel=1e-5)
    assert len(set(losses.values())) > 1


def test_a_loop_with_accelerate_goes_on_where_its_processes_are_killed(tmp_path: Path) -> None:
    told = {}
    for kills in ((), ("1:7", "0:9")):
        folder = tmp_path / str(len(kills))
        folder.mkdir()
        done = taihu_run(folder, script="accelerated_state.py", arguments=kills, workers=2)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("was killed by SIGKILL") == len(kills)
        told[kills] = (folder / "losses").read_text().splitlines()
    whole, killed = told.values()
    # Who is killed in a step has not come to its end: that step is made again, to the same bits.
    assert len(killed) == len(whole) + 2 == 3 * 4 + 2
    assert sorted(set(killed)) == sorted(whole)


def test_the_page_shows_the_lines_of_each_example() -> None:
    page = PAGE.read_text().replace(" ", "")
    for name in EXAMPLES:
        text = (FOLDER / f"{name}.py").read_text()
        assert "taihu.torch" not in plain(text)
        for line in ours(text):
            assert f"+{line}".replace(" ", "") in page, f"{name}: {line}"
