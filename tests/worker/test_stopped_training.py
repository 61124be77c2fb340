"""Runs that are asked to stop, in this process: all workers end after one step, as if it had been the last."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cluster import make_job
from support.daemons import wait_for
from support.whole_run import hosted

from taihu.core.coordination.listener import Listener
from taihu.core.coordination.membership.members import RunState
from taihu.core.coordination.status import fetch_status, stop_run
from taihu.core.job import Job
from taihu.core.job.run_folder import RunFiles, stopped_model
from taihu.core.process.entry import Interrupts
from taihu.worker.daemon import WorkerDaemon
from taihu.worker.options import WorkerOptions
from taihu.worker.saved.reading import load_model
from taihu.worker.training import evaluation, replica

WORKERS = 2
ENDLESS = 500
SOON = 64  # a batch by which an epoch ends after 16 steps

JOBS: dict[str, dict[str, dict[str, object]]] = {
    "servers": {},
    "ring": {"exchange": {"kind": "ring"}},
    "gathered": {"exchange": {"kind": "ring", "zero": 3}},
    "fetched": {"exchange": {"zero": 3, "plan": "single"}, "train": {"precision": "bf16"}},
    "sharded": {"exchange": {"fc": "shard"}},
    "compressed": {"exchange": {"plan": "single"}, "compression": {"method": "dlgs", "density": 0.1}},
}


def job_of(name: str, steps: int, batch: int = 4) -> Job:
    sections = {section: dict(values) for section, values in JOBS[name].items()}
    sections["train"] = {"steps": steps, "batch": batch, "evaluate": True, **sections.get("train", {})}
    sections["data"] = {"name": "synthetic:1x8x8"}
    sections["model"] = {"name": "small_cnn"}
    job = make_job(1, WORKERS, **sections)
    # Kernels may have to be compiled.
    cluster = job.cluster.model_copy(update={"lost_after_s": 60.0, "connect_timeout_s": 60.0})
    return job.model_copy(update={"cluster": cluster})


class Trial:
    """A run of `job` in this process, worker 0 of which saves to `path`."""

    def __init__(self, job: Job, path: Path) -> None:
        self.interrupts = [Interrupts() for _ in range(WORKERS)]
        self._job = job
        self._path = path

    def run(self, ask: Callable[[Trial, str], None] | None = None) -> list[dict[str, Any]]:
        """The results of all workers; `ask(self, coordinator)` is called when some steps have been made."""
        with hosted(self._job) as (job, listeners), ThreadPoolExecutor(WORKERS) as pool:
            workers = [pool.submit(self._worker(job, *each).run) for each in enumerate(listeners)]
            coordinator = job.cluster.coordinator
            assert coordinator is not None
            if ask is not None:
                wait_for(lambda: made_steps(coordinator) or any(w.done() for w in workers), "no steps are made")
                ask(self, coordinator)
            return [worker.result(timeout=120) for worker in workers]

    def _worker(self, job: Job, rank: int, listener: Listener | None) -> WorkerDaemon:
        files = RunFiles(model=self._path) if rank == 0 else RunFiles()
        return WorkerDaemon(
            job, WorkerOptions(rank, listener=listener, files=files, interrupts=self.interrupts[rank])
        )


def made_steps(coordinator: str) -> bool:
    return any(member.progress.step > 2 for member in fetch_status(coordinator, 120).members)


def interrupt_second(trial: Trial, coordinator: str) -> None:
    trial.interrupts[1].arrived(signal.SIGTERM)


def interrupt_all(trial: Trial, coordinator: str) -> None:
    for interrupts in trial.interrupts:
        interrupts.arrived(signal.SIGTERM)


def ask_from_outside(trial: Trial, coordinator: str) -> None:
    assert stop_run(coordinator, Job().name, "taihu train: interrupted by SIGINT", 10) is RunState.RUNNING


ASKS: dict[str, Callable[[Trial, str], None]] = {"ring": interrupt_all, "gathered": ask_from_outside}


@pytest.mark.parametrize("name", JOBS)
def test_a_stopped_run_is_one_of_so_many_steps(name: str, tmp_path: Path) -> None:
    path = tmp_path / "stopped.safetensors"
    first, second = Trial(job_of(name, ENDLESS), path).run(ASKS.get(name, interrupt_second))
    assert first["stopped"]
    assert second["stopped"]
    assert "interrupted by SIG" in first["stop_reason"]
    assert first["steps"] == second["steps"]
    assert (first["saved"], second["saved"], first["total_steps"]) == (str(path), None, ENDLESS)
    check_against_whole_run(name, first, path)


def check_against_whole_run(name: str, stopped: dict[str, Any], path: Path, batch: int = 4) -> None:
    """A run of as many steps that nobody stops ends with the same model."""
    usual = path.with_name("usual.safetensors")
    whole, _ = Trial(job_of(name, stopped["steps"], batch), usual).run()
    assert not whole["stopped"]
    assert whole["steps"] == stopped["steps"]
    assert whole["parameters_sha256"] == stopped["parameters_sha256"]
    assert np.array_equal(load_model(path).parameters, load_model(usual).parameters)


def test_a_test_is_abandoned_for_a_stop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "stopped.safetensors"
    trial = Trial(job_of("fetched", ENDLESS, SOON), path)
    usual: Callable[..., Any] = evaluation.evaluate

    def interrupted(*arguments: Any, before_layer: Callable[[int], None], **others: Any) -> Any:
        if not trial.interrupts[0].reason:
            calls = iter(range(100))

            def read_layer(layer: int) -> None:
                if next(calls) == 5:  # in the middle of a batch
                    trial.interrupts[0].arrived(signal.SIGTERM)
                before_layer(layer)

            return usual(*arguments, before_layer=read_layer, **others)
        return usual(*arguments, before_layer=before_layer, **others)

    monkeypatch.setattr(replica, "evaluate", interrupted)
    first, _ = trial.run()
    assert first["stopped"]
    assert not first["evaluations"]
    check_against_whole_run("fetched", first, path, SOON)


def test_where_a_stopped_run_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = RunFiles(model=Path("model.safetensors"))
    assert stopped_model(Job(name="fashion"), asked, 57) == Path("model.safetensors")
    assert stopped_model(Job(name="fashion"), RunFiles(), 57) == tmp_path / "fashion-step-57.safetensors"
    none = Job.model_validate({"run": {"save": "none"}})
    assert stopped_model(none, RunFiles(), 57) is None
