"""The remains of one run of `taihu train`: all of it in one folder, and each file says the same."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file
from support.commands import run_command
from support.report_runs import Page, parse_value

from taihu.core.checkpoint.ended import ENDED
from taihu.core.job import load_job
from taihu.core.process.results import RESULTS_FORMAT
from taihu.report.page import page_of
from taihu.report.reading import read_run

# One run for all of them.
pytestmark = pytest.mark.xdist_group("what stays")

JOB = "name = 'kept'\n# As it was given.\n[optimizer]\nschedule = 'cosine'\ndecay_steps = 40\nwarmup_steps = 5\n"
STEPS = 20


@dataclass(frozen=True)
class Run:
    """A run that has ended: what it printed, its folder, and where it was started."""

    output: str
    folder: Path
    home: Path

    @property
    def results(self) -> dict[str, Any]:
        results: dict[str, Any] = json.loads((self.folder / "results.json").read_text())
        return results

    def table(self, name: str) -> list[dict[str, str]]:
        with (self.folder / name).open(newline="") as file:
            return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp("home")
    (home / "job.toml").write_text(JOB)
    size = ("--servers", "1", "--workers", "2", "--steps", str(STEPS))
    done = run_command("taihu", "train", "job.toml", *size, "--json", "mine.json", folder=home)
    assert done.returncode == 0, done.stderr
    (folder,) = (home / "runs").iterdir()
    return Run(done.stdout, folder, home)


def test_the_folder_is_told_and_complete(run: Run) -> None:
    assert run.folder.name.startswith("kept-20")
    assert run.output.count(f"runs/{run.folder.name}\n") == 2
    assert f"runs/{run.folder.name}/model.safetensors" in run.output
    assert {path.name for path in run.folder.iterdir()} == {
        *("job.toml", "settings.toml", "results.json", "steps.csv", "epochs.csv", "events.jsonl"),
        *("model.safetensors", "checkpoints", "logs"),
    }
    kept = {path.name for path in (run.folder / "checkpoints").iterdir()}
    assert kept == {f"step-{STEPS:06d}", ENDED}
    logs = {path.name for path in (run.folder / "logs").iterdir()}
    assert logs == {"server-0.log", "worker-0.log", "worker-1.log"}
    assert sorted(path.name for path in run.home.iterdir()) == ["job.toml", "mine.json", "runs"]


def test_job_and_settings_are_those_of_the_run(run: Run) -> None:
    assert (run.folder / "job.toml").read_text() == JOB
    job = load_job(run.folder / "settings.toml")
    assert (job.name, job.train.steps, job.cluster.workers, job.optimizer.warmup_steps) == ("kept", STEPS, 2, 5)
    assert json.loads((run.home / "mine.json").read_text()) == run.results


def test_the_table_of_steps_is_that_of_the_run(run: Run) -> None:
    table = run.table("steps.csv")
    assert [int(row["step"]) for row in table] == list(range(1, STEPS + 1))
    rates = [float(row["learning_rate"]) for row in table]
    assert rates[:5] == sorted(rates[:5])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert all(float(row["step_seconds"]) >= float(row["wait_seconds"]) for row in table)
    # The mean of the workers' final losses is told; worker 0's is one of two that are not negative.
    assert 0 < float(table[-1]["worker_0_loss"]) <= 2 * run.results["final_loss"]
    assert int(table[-1]["sent_bytes"]) == pytest.approx(run.results["bytes_sent_per_step"] / 2, rel=0.05)


def test_the_table_of_tests_is_that_of_the_results(run: Run) -> None:
    table = run.table("epochs.csv")
    told = run.results["evaluations"]
    assert [int(row["step"]) for row in table] == [each["step"] for each in told]
    assert [float(row["test_accuracy"]) for row in table] == [each["test_accuracy"] for each in told]
    assert float(table[-1]["test_accuracy"]) == run.results["test_accuracy"]


def test_every_worker_and_process_has_its_figures(run: Run) -> None:
    results = run.results
    assert results["format"] == RESULTS_FORMAT
    assert [each["rank"] for each in results["by_rank"]] == [0, 1]
    assert results["by_rank"][0]["seconds_compute"] == results["seconds_compute"]
    assert sum(each["bytes_sent_per_step"] for each in results["by_rank"]) == results["bytes_sent_per_step"]
    memory = {each["process"]: each for each in results["memory"]}
    assert list(memory) == ["worker 0", "worker 1", "server 0"]
    # By default the server has the optimizer's state, of as many values as there are parameters.
    states = ("parameters", "gradients", "optimizer")
    elements = sum(layer["elements"] for layer in results["profile"]["layers"])
    assert [memory["worker 1"]["planned"][kind] for kind in states] == [4 * elements, 4 * elements, 0]
    assert [memory["server 0"]["planned"][kind] for kind in states] == [4 * elements, 0, 4 * elements]
    assert memory["worker 0"]["planned"]["activations"] > 0
    assert all(0 < each["before_bytes"] <= each["peak_bytes"] for each in memory.values())


def test_what_happened_is_told_with_the_step_after_which_it_did(run: Run) -> None:
    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    assert [events[0]["event"], events[-1]["event"]] == ["training", "finished"]
    plans = [each for each in events if each["event"] == "planned"]
    assert plans[-1]["predicted_seconds"] == run.results["predicted_seconds_per_step"]
    assert 0 < plans[0]["step"] < STEPS == events[-1]["step"]
    assert [each["time"] for each in events] == sorted(each["time"] for each in events)


def test_a_report_is_made_of_it(run: Run) -> None:
    page = Page(page_of(read_run(run.folder)))
    assert page.unbalanced == []
    told = page.rows("Time of a step by worker")
    medians = [each["seconds_compute"]["median"] for each in run.results["by_rank"]]
    assert [parse_value(row["compute"]) for row in told] == pytest.approx(medians, rel=6e-3)
    assert len(page.rows("Bytes of a step")) == STEPS
    assert {"Time by layer", "Memory, planned and measured", "Events"} <= set(page.titles())


def test_the_model_is_saved(run: Run) -> None:
    assert sum(values.size for values in load_file(run.folder / "model.safetensors").values()) > 30_000
