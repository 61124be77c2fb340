"""The functions of ours that are called in a step of an exchange, in any thread of this process, by file."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from support.exchanges import run_workers, settle, take_step
from support.worker import Worker
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.worker.training.step_driver import StepDriver

__all__ = ["ROOT", "calls_in_a_step"]

ROOT = Path(__file__).parents[2]
# They look at members by a clock of their own, and once in a while within a step: no value passes them.
_CLOCKS = frozenset({"membership", "server 0"})
_ROOMS = ("worker", "allreduce", "ps_server", "core", "taihu", "kernels")


def calls_in_a_step(job: Job, layout: Layout, steps: int = 2) -> Counter[str]:
    """Calls by file, as its path in this repository, in the last of so many steps of all workers of `job` together.

    A generator that goes on is called again. Others see to it that no sign of life comes meanwhile.
    """
    seen: Counter[str] = Counter()
    listening = False

    def note(frame: FrameType, event: str, _: Any) -> None:
        if listening and event == "call" and threading.current_thread().name not in _CLOCKS:
            seen[frame.f_code.co_filename] += 1

    def listen(on: bool) -> None:
        nonlocal listening
        listening = on

    before = threading.getprofile()
    threading.setprofile(note)
    try:
        workers = job.world.workers
        run_workers(job, layout, _driven(job, steps, threading.Barrier(workers, timeout=600), listen))
    finally:
        threading.setprofile(before)
    calls: Counter[str] = Counter()
    for name, count in seen.items():
        if name.startswith(f"{ROOT}/"):
            path = Path(name).resolve().relative_to(ROOT).as_posix()
            if path.partition("/")[0] in _ROOMS:
                calls[path] += count
    return calls


def _driven(
    job: Job, steps: int, barrier: threading.Barrier, listen: Callable[[bool], None]
) -> Callable[[Worker], None]:
    """Steps by the driver, of which the last is listened to."""

    def work(worker: Worker) -> None:
        settle(worker.exchange)
        driver = StepDriver(worker.exchange)
        layers = range(len(worker.exchange.plan.layout.layers))
        for step in range(1, steps + 1):
            if barrier.wait() == 0:
                listen(step == steps)
            barrier.wait()
            take_step(driver, worker, step)
            for layer in reversed(layers):
                driver.read(layer)
            driver.finish()
        if barrier.wait() == 0:
            listen(False)
        barrier.wait()

    return work
