"""Random training loops on 2 and 3 workers against one process with all samples: equal, or an error on all ranks.

    python -m benchmarks random_scripts --count 2000 --workers 2,3 --seed 1
    python -m benchmarks random_scripts --seed 1 --only 17        # one of them, and its source
    python -m benchmarks random_scripts --by-command 20           # and one of twenty again, by `taihu run`

Workers are threads of a process that runs script after script, each with a world of its own; a process that hangs is
ended. What fails is made smaller, and printed as a script that `taihu run` starts. The end tells what became of all,
and by which words loops that work alone were refused.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import structlog
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from benchmarks.pytorch.random_loops import Loop, loops, smaller, source_of
from taihu.core.base.errors import TaihuError
from taihu.core.coordination.listener import ListenOptions
from taihu.core.job import Job
from taihu.core.wire.base.address import free_port
from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.place import RunPlace
from taihu.torch.world import World

__all__ = ["Outcome", "drawn", "main", "outcome_by_command", "outcome_of"]

HANGS_AFTER_S: Final = 60.0
REFUSED_WITHIN_S: Final = 10.0
RIGHT: Final = ("equal", "refused on all ranks within 10 s", "fails alone, too")
WRONG: Final = ("hangs", "parted", "other values than alone")
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
        return self.kind in RIGHT


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
        return Outcome(RIGHT[1] if seconds < REFUSED_WITHIN_S else "refused late", words, seconds)
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


def outcome_by_command(loop: Loop, workers: int) -> Outcome:
    """Run a loop by `taihu run`, in processes of its own, and in this process alone."""
    start, source = time.monotonic(), source_of(loop)
    try:
        alone = _told_alone(source)
    except Exception as error:
        alone = error
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "loop.py"
        script.write_text(source + f"torch.save(told, f'{folder}/{{tt.rank()}}.pt')\n", encoding="utf-8")
        command = [sys.executable, "-m", "taihu", "run", "--workers", str(workers), "--quiet", "--run-dir", "none"]
        try:
            done = subprocess.run(
                [*command, str(script)], capture_output=True, text=True, check=False, timeout=HANGS_AFTER_S
            )
        except subprocess.TimeoutExpired:
            return Outcome("hangs", f"for {HANGS_AFTER_S:g} s, by taihu run", HANGS_AFTER_S)
        seconds = time.monotonic() - start
        last = (done.stderr.strip().splitlines() or [""])[-1]
        if isinstance(alone, Exception):
            return Outcome("fails alone, too" if done.returncode else "no error, and one alone", last, seconds)
        if done.returncode:
            return Outcome(RIGHT[1] if last.startswith("error: ") else "no word of an error", last, seconds)
        return _compared(loop, alone, [torch.load(folder / f"{rank}.pt") for rank in range(workers)], seconds)


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
        world = World(RunPlace(job, rank, ListenOptions(bind, patience=job.patience)))
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
        way, loop, workers = pipe.recv()
        pipe.send(way(loop, workers))


Way = Callable[[Loop, int], Outcome]


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

    def run(self, loop: Loop, workers: int, way: Way = outcome_of) -> Outcome:
        """The outcome of a loop, run by `way`."""
        self._pipe.send((way, loop, workers))
        # A command is given its time by itself.
        if self._pipe.poll(HANGS_AFTER_S if way is outcome_of else 2 * HANGS_AFTER_S):
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


class _Tally:
    """The outcomes so far."""

    def __init__(self) -> None:
        self.kinds, self.failures, self.done, self._slowest = Counter[str](), 0, 0, 0.0
        self._refused: Counter[str] = Counter()
        self._start = time.monotonic()

    def add(self, loop: Loop, outcome: Outcome) -> None:
        self.done += 1
        self.kinds[outcome.kind] += 1
        self.failures += not outcome.is_right
        self._slowest = max(self._slowest, outcome.seconds)
        if outcome.kind == RIGHT[1] and not loop.has_fault:
            words = re.sub(r"^(error: )?(worker \d+: )*", "", outcome.words.split(" | ")[0])
            self._refused[re.sub(r"(parameter )?[\w.]*\d+[\w.]*|\w+\.(weight|bias)", "N", words)[:110]] += 1

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {self.kinds[kind]}" for kind in dict.fromkeys([*RIGHT, *WRONG, *self.kinds]))
        return f"{self.done} loops in {time.monotonic() - self._start:.0f} s: {kinds}; slowest {self._slowest:.1f} s"

    def refused(self) -> str:
        """The words by which loops without a fault were refused, with how often."""
        rows = [f"  {count} {words}" for words, count in self._refused.most_common()]
        return "\n".join([f"refused although all ranks do the same: {sum(self._refused.values())}", *rows])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="number of loops")
    parser.add_argument("--workers", default="2,3", help="numbers of workers, in turns")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    parser.add_argument("--only", type=int, help="run this one alone, and print its source")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so many seconds")
    parser.add_argument("--no-early-ends", action="store_true", help="without ranks that end early")
    parser.add_argument("--by-command", type=int, default=0, metavar="N", help="run one of N by `taihu run`, too")
    return parser.parse_args()


def main() -> None:
    """Run them."""
    options = _options()
    sizes = [int(each) for each in options.workers.split(",")]
    found = drawn(options.count, options.seed, early_ends=not options.no_early_ends)
    runner, tally, by_command = _Runner(), _Tally(), _Tally()
    start = time.monotonic()
    for number, loop in enumerate(found):
        if options.only is not None and number != options.only:
            continue
        if time.monotonic() - start > options.seconds:
            break
        # Both sizes for each way.
        workers = sizes[number % len(sizes)]
        _run(runner, options, (number, loop, workers), outcome_of, tally)
        if options.by_command and number // len(sizes) % options.by_command == 0:
            _run(runner, options, (number, loop, workers), outcome_by_command, by_command)
        if tally.done % 50 == 0:
            print(tally, file=sys.stderr, flush=True)
    runner.close()
    print(f"{options.workers} workers, seed {options.seed}: {tally}")
    print(tally.refused())
    if options.by_command:
        print(f"by taihu run: {by_command}")
    sys.exit(bool(tally.failures or by_command.failures))


def _run(runner: _Runner, options: argparse.Namespace, what: tuple[int, Loop, int], way: Way, tally: _Tally) -> None:
    number, loop, workers = what
    outcome = runner.run(loop, workers, way)
    tally.add(loop, outcome)
    if options.only is not None:
        print(source_of(loop), outcome, sep="\n")
    elif not outcome.is_right:
        print(f"loop {number} of seed {options.seed} on {workers} workers, {way.__name__}: {outcome}", loop, sep="\n")
        if outcome.kind != "hangs" and way is outcome_of:
            print("smallest:", *_smallest(runner, loop, workers, outcome), sep="\n", flush=True)


if __name__ == "__main__":
    main()
