"""Processes that a killed supervisor leaves behind: `python -m benchmarks orphans --help`.

`taihu train` or `taihu run` is ended by SIGKILL at a random instant of its life: while it starts, while it trains,
while another process takes a killed one's place, and about its end. Each of its processes has to end by itself. They
are found in /proc by a variable of the environment that the run was started with. A row tells, for one time of life,
the number of runs, the longest time until the last process had gone, how many processes had to end themselves the
hard way, because the first interrupt had no effect, and how many were left. Of those two the logs are printed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["Survivor", "marked", "seconds_until_gone"]

VARIABLE: Final = "OF_RUN"
_POLL_S: Final = 0.02
_HARD: Final = "its supervisor has ended, and this process not within"
_LINES: Final = 400
_LONG: Final = ("--steps", "1000000", "--set", "checkpoint.every_steps=20", "--set", "checkpoint.restarts=9")
_ROUTES: Final = {
    "servers": ("--servers", "2", "--workers", "2"),
    "ring": ("--exchange", "ring", "--workers", "3"),
    "zero": ("--servers", "1", "--workers", "2", "--zero", "3", "--optimizer", "adam"),
}
_SCRIPT: Final = """
import torch, taihu.torch
model = torch.nn.Linear(8, 2)
optimizer = taihu.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model)
for _ in range({steps}):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


@dataclass(frozen=True)
class Survivor:
    """A process that is there when it should have gone."""

    pid: int
    command: str
    parent: int
    state: str
    threads: int

    def __str__(self) -> str:
        return f"{self.pid} {self.command}: parent {self.parent}, state {self.state}, {self.threads} threads"


def marked(value: str) -> Iterator[Survivor]:
    """The processes whose environment has `VARIABLE` with this value, as it was when their program began."""
    mark = f"{VARIABLE}={value}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError, IndexError, ValueError):  # it has just ended, or is another user's
            if mark not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            state, parent, *rest = (folder / "stat").read_text().rpartition(")")[2].split()
            if state not in "ZX":
                yield Survivor(int(folder.name), command, int(parent), state, int(rest[15]))


def seconds_until_gone(value: str, limit_s: float) -> tuple[float, list[Survivor]]:
    """The time until no process is marked, and those that are there after `limit_s`."""
    begun_s = time.monotonic()
    while living := list(marked(value)):
        if time.monotonic() - begun_s > limit_s:
            return limit_s, living
        time.sleep(_POLL_S)
    return time.monotonic() - begun_s, []


@dataclass
class _Run:
    """One run in `folder`, alive in the block."""

    folder: Path
    arguments: Sequence[str]
    value: str = field(default_factory=lambda: os.urandom(8).hex())

    def start(self) -> None:
        environment = {**os.environ, VARIABLE: self.value}
        with (self.folder / "said").open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "taihu", *self.arguments],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def daemons(self) -> list[int]:
        """The pids of the run's processes, but for the one that watches."""
        commands = ("-m taihu.worker", "-m taihu.ps_server", "-m taihu.torch.script")
        return [each.pid for each in marked(self.value) if any(known in each.command for known in commands)]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def wait_for(self, condition: Callable[[], bool], limit_s: float = 120.0) -> None:
        """Raises RuntimeError with what was said, where the run has ended or the condition does not come."""
        until_s = time.monotonic() + limit_s
        while not condition():
            if self.process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError((self.folder / "said").read_text(errors="replace"))
            time.sleep(_POLL_S)


def _while_it_starts(run: _Run, chance: random.Random) -> None:
    run.start()
    time.sleep(chance.uniform(0.0, 4.0))


def _while_it_trains(run: _Run, chance: random.Random) -> None:
    run.start()
    run.wait_for(lambda: any(run.folder.glob("runs/*/checkpoints/*/manifest.json")))
    time.sleep(chance.uniform(0.0, 0.5))


def _while_another_takes_its_place(run: _Run, chance: random.Random) -> None:
    _while_it_trains(run, chance)
    for _ in range(chance.randint(1, 2)):
        os.kill(chance.choice(run.daemons()), signal.SIGKILL)
        time.sleep(chance.uniform(0.0, 2.0))


def _about_its_end(run: _Run, chance: random.Random) -> None:
    run.start()
    run.wait_for(lambda: any(run.folder.glob("runs/*/steps.csv")))
    time.sleep(chance.uniform(0.0, 2.0))


def _scripts(run: _Run, chance: random.Random) -> None:
    run.start()
    time.sleep(chance.uniform(0.0, 8.0))


_TIMES: Final[Mapping[str, tuple[Callable[[_Run, random.Random], None], Sequence[str]]]] = {
    "start": (_while_it_starts, _LONG),
    "training": (_while_it_trains, _LONG),
    "replacement": (_while_another_takes_its_place, _LONG),
    "end": (_about_its_end, ("--steps", "60", "--set", "checkpoint.every_steps=20")),
    "scripts": (_scripts, ()),
}


def _once(time_of_life: str, chance: random.Random, limit_s: float) -> tuple[float, int, int]:
    """Kill one run; the seconds until all have gone, how many had to be ended hard, and how many were left.

    Of both the logs are told; who lives on is ended.
    """
    hard = 0
    act, arguments = _TIMES[time_of_life]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if time_of_life == "scripts":
            (folder / "script.py").write_text(_SCRIPT.format(steps=chance.choice([20, 1_000_000])))
            command = ["run", "--workers", "2", *chance.choice([(), ("--servers", "1")]), "script.py"]
        else:
            command = ["train", *chance.choice(list(_ROUTES.values())), *arguments]
        run = _Run(folder, command)
        try:
            act(run, chance)
        finally:
            run.kill()
        seconds, left = seconds_until_gone(run.value, limit_s)
        for each in left:
            print(each, flush=True)
        for log in folder.glob("runs/*/logs/*.log"):
            said = log.read_text(errors="replace")
            hard += _HARD in said
            if left or _HARD in said:
                print(f"--- {log.name}", *said.splitlines()[-_LINES:], sep="\n", flush=True)
        for each in left:
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
    return seconds, hard, len(left)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each time of life; exit with 1 where a process was left."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks orphans", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--times", nargs="*", default=list(_TIMES), choices=_TIMES, metavar="TIME", help=", ".join(_TIMES)
    )
    parser.add_argument("--runs", type=int, default=100, help="for each of them (100)")
    parser.add_argument("--limit", type=float, default=15.0, metavar="SECONDS", help="for the last one to go (15)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    print("| killed in its | runs | longest, s | ended hard | left |\n|---|---|---|---|---|", flush=True)
    lives = 0
    for time_of_life in given.times:
        chance = random.Random(f"{given.seed} {time_of_life}")  # noqa: S311 - instants, no secrets
        seconds, hard, left = zip(*(_once(time_of_life, chance, given.limit) for _ in range(given.runs)), strict=True)
        lives += sum(left)
        print(
            f"| {time_of_life} | {given.runs} | {max(seconds):.1f} | {sum(hard)} | {sum(left)} |",
            flush=True,
        )
    sys.exit(1 if lives else 0)


if __name__ == "__main__":
    main()
