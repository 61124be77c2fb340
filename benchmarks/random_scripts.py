"""Random training loops on 2 and 3 workers against one process with all samples: equal, or an error on all ranks.

    python -m benchmarks.random_scripts --count 2000 --workers 2,3 --seed 1
    python -m benchmarks.random_scripts --seed 1 --only 17        # one of them, and its source

Workers are threads of a process that runs script after script, each with a world of its own; a process that hangs is
ended. What fails is made smaller, and printed as a script that `taihu run` starts.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, Final

import structlog
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from benchmarks.random_loops import Loop, loops, smaller, source_of
from taihu.coordination.listener import ListenOptions
from taihu.errors import TaihuError
from taihu.job import Job
from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.place import Place
from taihu.torch.world import World
from taihu.wire.address import free_port

__all__ = ["Outcome", "drawn", "main", "outcome_of"]

HANGS_AFTER_S: Final = 60.0
_TOLERANCE: Final = 2e-3
_TRIES: Final = 40


@dataclass(frozen=True)
class Outcome:
    """The end of a loop: `equal`, `refused`, or the fault; `words` say more."""

    kind: str
    words: str
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether it is as it should be."""
        return self.kind in ("equal", "refused", "fails alone, too")


def drawn(count: int, number: int, *, early_ends: bool = True) -> list[Loop]:
    """`count` loops, the same for the same seed `number`."""
    found: list[Loop] = []

    @seed(number)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(loops(early_ends=early_ends))
    def draw(loop: Loop) -> None:
        found.append(loop)

    draw()
    return found


def outcome_of(loop: Loop, workers: int) -> Outcome:
    """Run a loop in threads of this process, and beside them alone."""
    start = time.monotonic()
    source = source_of(loop)
    try:
        alone = _told_alone(source)
    except Exception as error:
        alone = error
    seen = _told_on_workers(source, workers)
    seconds = time.monotonic() - start
    errors = [each for each in seen if isinstance(each, BaseException)]
    if isinstance(alone, Exception):
        if len(errors) == workers:
            return Outcome("fails alone, too", f"{type(alone).__name__}: {alone}", seconds)
        return Outcome("no error, and one alone", f"{type(alone).__name__}: {alone}", seconds)
    if errors:
        words = " | ".join(
            str(each).replace("\n", " ")[:300] if isinstance(each, BaseException) else "ended" for each in seen
        )
        if len(errors) < workers:
            return Outcome("an error on some ranks alone", words, seconds)
        if not any(isinstance(each, TaihuError) for each in errors):
            return Outcome("an error that is not taihu's", f"{type(errors[0]).__name__}: {words}", seconds)
        return Outcome("refused", words, seconds)
    return _compared(loop, alone, seen, seconds)


def _compared(loop: Loop, alone: Any, seen: list[Any], seconds: float) -> Outcome:
    first = seen[0]
    for rank, other in enumerate(seen[1:], start=1):
        if len(other) != len(first):
            return Outcome("ranks of other lengths, and no error", f"{len(first)} and {len(other)} steps", seconds)
        for i, (a, b) in enumerate(zip(first, other, strict=True)):
            if not all(torch.equal(x, y) for x, y in zip(a, b, strict=True)):
                return Outcome("parted", f"rank {rank} behind step {i}, no error", seconds)
    if loop.has_fault:
        return Outcome("equal", "in spite of its fault", seconds)
    for i, (a, b) in enumerate(zip(first, alone, strict=True)):
        for x, y in zip(a, b, strict=True):
            largest = (x - y).abs().max().item()
            if not largest <= _TOLERANCE * max(1.0, y.abs().max().item()):
                return Outcome("other values than alone", f"behind step {i}: {largest:g}", seconds)
    return Outcome("equal", "", seconds)


class _Alone:
    """taihu.torch, as a script alone sees it."""

    def rank(self) -> int:
        return 0

    def world_size(self) -> int:
        return 1

    def DistributedOptimizer(self, optimizer: Any, model: Any = None) -> Any:  # noqa: N802
        return optimizer


class _Threaded:
    """taihu.torch, as a script sees it that is a thread."""

    def __init__(self, world: Any) -> None:
        self._world = world

    def rank(self) -> int:
        return int(self._world.rank)

    def world_size(self) -> int:
        return int(self._world.size)

    def DistributedOptimizer(self, optimizer: Any, model: Any = None) -> Any:  # noqa: N802
        return DistributedOptimizer(optimizer, model, self._world)


def _told(source: str, tt: object) -> Any:
    code = source.replace("import taihu.torch as tt\n", "")
    module = ModuleType(f"loop_{threading.get_ident()}")
    module.__dict__["tt"] = tt
    sys.modules[module.__name__] = module  # where pickle looks for its classes
    try:
        exec(compile(code, "loop", "exec"), module.__dict__)  # noqa: S102 - of our own making
    finally:
        torch.set_grad_enabled(True)
        del sys.modules[module.__name__]
    return module.__dict__["told"]


def _told_alone(source: str) -> Any:
    return _told(source, _Alone())


def _told_on_workers(source: str, workers: int) -> list[Any]:
    """The words of each rank, or the error that it ended with."""
    cluster = {"workers": workers, "heartbeat_s": 0.1, "coordinator": f"127.0.0.1:{free_port()}"}
    job = Job.model_validate({"exchange": {"kind": "ring", "returns": "gradients"}, "cluster": cluster})

    def life(rank: int) -> Any:
        bind = str(job.cluster.coordinator) if rank == 0 else "127.0.0.1:0"
        world = World(Place(job, rank, ListenOptions(bind, patience=job.patience)))
        try:
            told = _told(source, _Threaded(world))
        except BaseException as error:
            world.leave(error)
            return error
        return _left(world) or told

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(life, range(workers)))


def _left(world: World) -> BaseException | None:
    """Leave in order; the error that a process would end with then."""
    world.leave()
    return world.failure


def _serve(pipe: Connection) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    pipe.send("ready")
    while True:
        loop, workers = pipe.recv()
        pipe.send(outcome_of(loop, workers))


class _Runner:
    """A process that runs loops, and is ended when one hangs."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def run(self, loop: Loop, workers: int) -> Outcome:
        """The outcome of a loop."""
        self._pipe.send((loop, workers))
        if self._pipe.poll(HANGS_AFTER_S):
            try:
                outcome: Outcome = self._pipe.recv()
            except EOFError:
                outcome = Outcome("the process died", "", 0.0)
            else:
                return outcome
        else:
            outcome = Outcome("hangs", f"for {HANGS_AFTER_S:g} s", HANGS_AFTER_S)
            # Its threads' stacks, on standard error.
            os.kill(self._process.pid or 0, signal.SIGUSR1)
            self._process.join(1.0)
        self.close()
        self._start()
        return outcome

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.join()


def _smallest(runner: _Runner, loop: Loop, workers: int, outcome: Outcome) -> tuple[Loop, Outcome]:
    tries = _TRIES
    again = True
    while again and tries:
        again = False
        for other in smaller(loop):
            tries -= 1
            found = runner.run(other, workers)
            if found.kind == outcome.kind:
                loop, outcome, again = other, found, True
                break
            if not tries:
                break
    return loop, outcome


def main() -> None:
    """Run them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="number of loops")
    parser.add_argument("--workers", default="2,3", help="numbers of workers, in turns")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    parser.add_argument("--only", type=int, help="run this one alone, and print its source")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so many seconds")
    parser.add_argument("--no-early-ends", action="store_true", help="without ranks that end early")
    options = parser.parse_args()
    sizes = [int(each) for each in options.workers.split(",")]
    found = drawn(options.count, options.seed, early_ends=not options.no_early_ends)
    runner, kinds, failures, slowest, start = _Runner(), Counter[str](), 0, 0.0, time.monotonic()
    done = 0
    for number, loop in enumerate(found):
        if options.only is not None and number != options.only:
            continue
        if time.monotonic() - start > options.seconds:
            break
        workers = sizes[number % len(sizes)]
        outcome = runner.run(loop, workers)
        done += 1
        kinds[outcome.kind] += 1
        slowest = max(slowest, outcome.seconds)
        if options.only is not None:
            print(source_of(loop), outcome, sep="\n")
        elif not outcome.is_right:
            failures += 1
            print(
                f"loop {number} of seed {options.seed} on {workers} workers: {outcome.kind}: {outcome.words}",
                flush=True,
            )
            print(loop, flush=True)
            if outcome.kind != "hangs":
                print("smallest:", *_smallest(runner, loop, workers, outcome), sep="\n", flush=True)
        if done % 50 == 0:
            print(
                f"{done} loops in {time.monotonic() - start:.0f} s: {dict(kinds)}, slowest {slowest:.1f} s",
                file=sys.stderr,
            )
    runner.close()
    print(f"{done} loops on {options.workers} workers, seed {options.seed}: {dict(kinds)}; slowest {slowest:.1f} s")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
