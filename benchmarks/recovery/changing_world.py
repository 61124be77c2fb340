"""A run whose machines and servers come, go and are killed: `python -m benchmarks changing_world --help`.

Each server and each agent has a host of its own, with a link and memory that nobody else sees. Six workers of one
job run on two machines, then six, then three; its servers are one, then three, then two; in between a worker, a
machine with all that it held, a server that joined, and the server that coordinates are killed. What counts is how
long nobody makes a step at each of these, how many completed steps are made again, and whether the run ends with the
parameters of `taihu train`, which has one server and no disturbance, to the bit. Needs root and iproute2.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, NamedTuple, Self

import numpy as np

from benchmarks.base.rows import load_rows, publish, save_rows
from benchmarks.recovery.agents import Machines
from benchmarks.recovery.hosts import Hosts

__all__ = ["SCHEDULE", "table"]

_PAGE: Final = "measured by benchmarks.recovery.changing_world"
_JOB: Final = ("--servers", "1", "--data", "synthetic:3x32x32:samples=2048", "--set", "optimizer.momentum=0.9")
_MODELS: Final = MappingProxyType(
    {
        "cifar10_quick": ("--model", "cifar10_quick", "--batch", "4"),
        "vgg16_cifar": ("--model", "vgg16_cifar", "--batch", "2"),
    }
)
_RATE_BITS: Final = 1e9
_HOSTS: Final = 10
_STEPS: Final = 40
_LONGEST_S: Final = 300.0
_CHANGES_S: Final = 40.0
_LOOK_S: Final = 0.1
_SAMPLE_S: Final = 0.02


class World:
    """The machines of a run, and the numbers of those that are there."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self._generator = np.random.default_rng(0)

    def agents_come(self, count: int) -> None:
        """Agents join."""
        for _ in range(count):
            self.machines.come()

    def servers_join(self, count: int) -> None:
        """Servers join."""
        for _ in range(count):
            self.machines.join()

    def worker_killed(self) -> None:
        """A worker of an agent is killed, which starts another one."""
        while not self.machines.happens("worker killed", self._generator):
            time.sleep(_LOOK_S)

    def joined_killed(self) -> None:
        """A server that joined is killed, and its launcher starts another one on its host."""
        host = min(self.machines.joined)
        self.machines.joined[host].kill()
        self.machines.joined[host].wait()
        self.machines.join(host)

    def agent_killed(self) -> None:
        """An agent is killed, with all that its host held in memory."""
        self.machines.lose("agent killed", max(self.machines.agents))

    def agents_leave(self, count: int) -> None:
        """Agents get SIGTERM."""
        for host in sorted(self.machines.agents)[-count:]:
            self.machines.agents.pop(host).send_signal(signal.SIGTERM)

    def server_leaves(self) -> None:
        """The first server that joined gets SIGTERM; the last one takes its place."""
        self.machines.joined.pop(min(self.machines.joined)).send_signal(signal.SIGTERM)

    def coordinator_killed(self) -> None:
        """Server 0 is killed, and its launcher starts another one."""
        self.machines.replace("server 0")


class Event(NamedTuple):
    """One line of the schedule: its words, what happens, and the servers and agents that are there behind it."""

    words: str
    happens: Callable[[World], None]
    servers: int
    agents: int


SCHEDULE: Final = (
    Event("4 agents join", lambda world: world.agents_come(4), 1, 6),
    Event("a worker is killed", World.worker_killed, 1, 6),
    Event("2 servers join", lambda world: world.servers_join(2), 3, 6),
    Event("a server that joined is killed, another one is started there", World.joined_killed, 3, 6),
    Event("a machine is killed, nobody comes", World.agent_killed, 3, 5),
    Event("2 agents leave", lambda world: world.agents_leave(2), 3, 3),
    Event("server 0 is killed, and started again", World.coordinator_killed, 3, 3),
    Event("a server leaves", World.server_leaves, 2, 3),
)
"""Everything that happens, behind a beginning with one server and two agents."""


def _await(machines: Machines, changes: int) -> None:
    """Return when the run has gone on behind so many changes, and has made steps since.

    An agent that comes or goes may be one that runs no worker: nothing changes then.
    """
    start = time.monotonic()
    deadline = start + _LONGEST_S
    while len(machines.resumed()) < changes and time.monotonic() - start < _CHANGES_S:
        _check(deadline)
    until = machines.steps + _STEPS
    while machines.steps < until:
        _check(deadline)


def _check(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise SystemExit(f"error: the run does not go on within {_LONGEST_S:g} s")
    time.sleep(_LOOK_S)


class Steps:
    """The times at which rows of steps were there, looked for again and again beside everything else."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._over = threading.Event()
        self._seen: list[tuple[float, int]] = []
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            steps = self._machines.steps
            if not self._seen or steps != self._seen[-1][1]:
                self._seen.append((time.time(), steps))

    def longest_gap_s(self, start: float, end: float) -> float:
        """The longest time without a new row that lies in an interval, at least in part."""
        gaps = [later - before for (before, _), (later, _) in pairwise(self._seen) if start < later and before < end]
        return max(gaps, default=0.0)


def _pauses(steps: Steps, events: Sequence[dict[str, Any]], starts: Sequence[float]) -> list[dict[str, Any]]:
    """Of each start, until the next: the longest time without steps, changes of generation, steps made again."""
    rows = []
    for start, following in zip(starts, [*starts[1:], time.time()], strict=True):
        own = [each for each in events if each["event"] == "resumed" and start <= _time_of(each) < following]
        again = sum(each.get("made_again", 0) for each in own)
        gap_s = round(steps.longest_gap_s(start, following), 2)
        rows.append({"pause_s": gap_s, "changes": len(own), "made_again": again})
    return rows


def _time_of(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def _happens(world: World) -> list[float]:
    """Have all of the schedule happen; the times at which each began."""
    world.agents_come(2)
    _await(world.machines, 0)
    starts = []
    for event in SCHEDULE:
        starts.append(time.time())
        before = len(world.machines.resumed())
        event.happens(world)
        _await(world.machines, before + 1)
        print(f"  {event.words}: {time.time() - starts[-1]:.1f} s", flush=True)
    return starts


def measure(model: str) -> dict[str, Any]:
    """The schedule once, and whether the undisturbed run ends with the same parameters."""
    flags = (*_JOB, *_MODELS[model])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Hosts(_HOSTS, _RATE_BITS) as hosts:
            try:
                machines = Machines(folder, flags, hosts, (1, 6))
                with Steps(machines) as steps:
                    starts = _happens(World(machines))
                    pauses = _pauses(steps, machines.events, starts)
                results = machines.stop()
                held = sum(path.stat().st_size for path in max((folder / "kept").glob("step-*")).iterdir())
            except BaseException:
                sys.stderr.write((folder / "log").read_text()[-20_000:])
                raise
        command = [sys.executable, "-P", "-m", "taihu", "train", "--workers", "6", "--set", "cluster.threads=1"]
        command += [*flags, "--set", "train.evaluate=false", "--steps", str(results["steps"])]
        command += ["--run-dir", "none", "--json", str(folder / "results.json"), "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        undisturbed = json.loads((folder / "results.json").read_text())["parameters_sha256"]
    lines = [
        {"event": event.words, "servers": event.servers, "agents": event.agents, **pause}
        for event, pause in zip(SCHEDULE, pauses, strict=True)
    ]
    same = undisturbed == results["parameters_sha256"]
    return {"model": model, "bytes": held, "steps": results["steps"], "events": lines, "same": same}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown, an event on each line, and behind those of a row how it ended."""
    lines = []
    for row in rows:
        lines += ["| event | servers, agents then | longest without a step, s | begun again | steps made again |"]
        lines += ["|" + "---|" * 5]
        for event in row["events"]:
            there, counts = f"{event['servers']}, {event['agents']}", f"{event['changes']} | {event['made_again']}"
            lines.append(f"| {event['event']} | {there} | {event['pause_s']:.2f} | {counts} |")
        same = "the same bits" if row["same"] else "**other bits**"
        lines += ["", f"{row['model']}, {row['bytes'] / 1e6:.1f} MB, {row['steps']} steps: {same}.", ""]
    return "\n".join(lines[:-1])


def main() -> None:
    """Measure what is asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(_MODELS), help="separated by commas")
    parser.add_argument("--json", type=Path, help="write the rows, and measure those that it lacks")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    rows = load_rows(options.json)
    for model in options.models.split(","):
        if model not in [row["model"] for row in rows]:
            rows.append(measure(model))
            save_rows(options.json, rows)
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
