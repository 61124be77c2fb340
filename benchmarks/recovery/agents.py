"""A run whose machines come, go and die at random: `python -m benchmarks agents --help`.

Servers, in a ring worker 0, and agents each have a host of their own, with a link and memory that nobody else sees.
Every few seconds something happens, drawn by a seed: an agent is killed with all that its host held, or the host is
cut off without a word; one of its workers is killed, or a server, which is started again; an agent leaves, or another
one joins. Nobody takes the place of an agent. After so many events the run is stopped. Then the same job, of as many
steps, runs undisturbed by `taihu train`. What counts is whether both end with the same parameters, to the bit, and
how many completed steps were made again; and whether the servers' memory stays what it was. Needs root and iproute2.

Rows that the file of --json holds are not measured again.

Examples:
  python -m benchmarks agents --json benchmarks/results/agents.json --docs docs/agents.md
  python -m benchmarks agents --kinds servers --events 200 --every 3 --of "agent joins;agent leaves" --agents 2:8
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from benchmarks.base.rows import load_rows, publish, save_rows
from benchmarks.recovery.chaos import daemons_of
from benchmarks.recovery.hosts import Hosts
from taihu.core.base.words import parse_rate

__all__ = ["KINDS", "Disturbance", "Machines", "disturbed", "table"]

_PAGE: Final = "measured by benchmarks.recovery.agents"
_PORT: Final = 7072
_WORKERS: Final = 6
_SERVERS: Final = ("--servers", "2")
_MODEL: Final = ("--model", "cifar10_quick", "--data", "synthetic:3x32x32:samples=2048", "--batch", "4")
_WORLD: Final = ("--workers", str(_WORKERS), "--set", "cluster.threads=1", "--set", "train.evaluate=false")
KINDS: Final = MappingProxyType(
    {
        "servers": (*_SERVERS, *_MODEL),
        "servers, batch norm": (
            *(*_SERVERS, "--model", "resnet20", "--data", "synthetic:3x32x32:samples=2048", "--batch", "2"),
        ),
        "Adam + bf16 + stage 3": (*_SERVERS, *_MODEL, "--optimizer", "adam", "--precision", "bf16", "--zero", "3"),
        "dlgs": (*_SERVERS, *_MODEL, "--compression", "dlgs", "--density", "0.01"),
        "ring": ("--exchange", "ring", *_MODEL),
    }
)
"""Flags of the runs by what they are."""
_EVENTS: Final = MappingProxyType(
    {
        "agent killed": 3,
        "host cut off": 1,
        "worker killed": 2,
        "server killed": 1,
        "agent leaves": 2,
        "agent joins": 3,
    }
)
_CUT_S: Final = 4.0
_AT_ONCE_S: Final = 60.0
_GOES_ON_S: Final = 2.0
_SETTLED_S: Final = 15.0


class Machines:
    """The hosts of one run: of members that stay first, then those on which agents come and go.

    Args:
        folder: that all hosts share.
        flags: of the job.
        hosts: all of them.
        agents: the fewest and the most that are there at a time.
    """

    def __init__(self, folder: Path, flags: Sequence[str], hosts: Hosts, agents: tuple[int, int]) -> None:
        self._folder = folder
        self._hosts = hosts
        self._least, self._most = agents
        self._address = f"{hosts.address(0)}:{_PORT}"
        servers = int(flags[flags.index("--servers") + 1]) if "--servers" in flags else 0
        self._members = [f"server {index}" for index in range(servers)] or ["worker 0"]
        self._flags = (*_WORLD, *flags, "--set", f"checkpoint.dir={folder}/kept", "--coordinator", self._address)
        self._steps = ("--steps", "1000000", "--set", "checkpoint.restarts=10000")
        self._logs = (folder / "log").open("ab")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self.joined: dict[int, subprocess.Popen[bytes]] = {}
        for name in self._members:
            self._start(name)

    def _start(self, name: str) -> None:
        role, rank = name.split()
        words = [sys.executable, "-P", "-m", "taihu", role, "--rank", rank, *self._flags, *self._steps]
        words += self._outputs if name == "worker 0" else []
        self._processes[name] = self._hosts.start(self._members.index(name), words, self._logs)

    @property
    def _outputs(self) -> list[str]:
        return ["--run-dir", str(self._folder / "run")]

    def come(self) -> int:
        """An agent on a host that has none."""
        free = self._free()
        words = [sys.executable, "-P", "-m", "taihu", "agent", *self._flags, *self._steps]
        words += [] if "worker 0" in self._members else self._outputs
        self.agents[free] = self._hosts.start(free, words, self._logs)
        return free

    def join(self, host: int | None = None) -> int:
        """Another server, on a host that has none."""
        free = self._free() if host is None else host
        words = [sys.executable, "-P", "-m", "taihu", "server", "--join", *self._flags, *self._steps]
        self.joined[free] = self._hosts.start(free, words, self._logs)
        return free

    def _free(self) -> int:
        taken = {*range(len(self._members)), *self.agents, *self.joined}
        return next(host for host in range(self._hosts.count) if host not in taken)

    def happens(self, event: str, generator: np.random.Generator) -> bool:
        """Have it happen, if it can."""
        if event == "agent joins":
            if len(self.agents) < self._most:
                self.come()
            return len(self.agents) <= self._most
        if event == "server killed":
            name = str(generator.choice(self._members))
            if name == "worker 0":
                return False
            self.replace(name)
            return True
        host = int(generator.choice(sorted(self.agents)))
        if event == "worker killed":
            workers = list(daemons_of(self.agents[host].pid).values())
            if workers:
                os.kill(int(generator.choice(workers)), signal.SIGKILL)
            return bool(workers)
        has_others = len(self.agents) > self._least
        if event == "agent leaves" and has_others:
            self.agents.pop(host).send_signal(signal.SIGTERM)
        elif has_others:
            self.lose(event, host)
        return has_others

    def replace(self, name: str) -> None:
        """A member is killed, and started again."""
        self._processes[name].kill()
        self._processes[name].wait()
        self._start(name)

    def lose(self, event: str, host: int) -> None:
        """A host loses its power, or its link before that."""
        agent = self.agents.pop(host)
        if event == "host cut off":
            self._hosts.cut(host, off=True)
            time.sleep(_CUT_S)
        workers = daemons_of(agent.pid).values()
        agent.kill()
        agent.wait()
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        self._hosts.forget(host)
        if event == "host cut off":
            self._hosts.cut(host, off=False)

    @property
    def member_mb(self) -> float:
        """Megabytes that the members which stay have in memory, together."""
        pages = (Path(f"/proc/{each.pid}/statm").read_text().split()[1] for each in self._processes.values())
        return sum(map(int, pages)) * os.sysconf("SC_PAGE_SIZE") / 1e6

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events that the run has told."""
        path = self._folder / "run" / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def steps(self) -> int:
        """The steps in the table of the run."""
        path = self._folder / "run" / "steps.csv"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def resumed(self) -> list[float]:
        """The times at which the run has gone on."""
        names = ("resumed", "values take another path")
        return [datetime.fromisoformat(each["time"]).timestamp() for each in self.events if each["event"] in names]

    def stop(self) -> dict[str, Any]:
        """Stop the run; its results."""
        words = [sys.executable, "-P", "-m", "taihu", "stop", self._address]
        self._hosts.start(0, words, self._logs).wait()
        for process in self._processes.values():
            process.wait()
        results: dict[str, Any] = json.loads((self._folder / "run" / "results.json").read_text())
        return results


@dataclass(frozen=True)
class Disturbance:
    """The things that happen to a run.

    Attributes:
        names: of what may happen.
        count: of what does.
        every_s: seconds from one to the next, in the mean.
        seed: they are drawn by it.
        agents: the fewest and the most that are there at a time.
    """

    names: Sequence[str]
    count: int
    every_s: float
    seed: int
    agents: tuple[int, int]


def disturbed(flags: Sequence[str], disturbance: Disturbance, *, folder: Path, rate: float) -> dict[str, Any]:
    """One run to which things happen."""
    generator, agents = np.random.default_rng(disturbance.seed), disturbance.agents
    names, every_s = list(disturbance.names), disturbance.every_s
    weights = np.array([_EVENTS[name] for name in names], dtype=float)
    member_mb: list[float] = []
    happened: Counter[str] = Counter()
    times: list[tuple[str, float]] = []
    ring = "ring" in flags
    with Hosts((1 if ring else 2) + agents[1] + 2, rate) as hosts:
        machines = Machines(folder, flags, hosts, agents)
        for _ in range(agents[0]):
            machines.come()
        _await(lambda: len(machines.resumed()) > 0)
        while happened.total() < disturbance.count:
            time.sleep(min(generator.exponential(every_s), 3 * every_s))
            event = str(generator.choice(names, p=weights / weights.sum()))
            start = time.time()
            if machines.happens(event, generator):
                happened[event] += 1
                times.append((event, start))
                member_mb.append(round(machines.member_mb, 1))
                print(f"  {start:.1f} {event}: {len(machines.agents)} agents", flush=True)
        _await(lambda: _goes_on(machines, times[-1][1]))
        results = machines.stop()
        events = machines.events
    return {
        "events": dict(sorted(happened.items())),
        "recovery_seconds": _recoveries(times, machines.resumed()),
        "made_again": sum(each.get("made_again", 0) for each in events if each["event"] == "resumed"),
        "made_again_by": _made_again(times, events),
        "member_mb": _quarters(member_mb),
        "steps": results["steps"],
        "sha256": results["parameters_sha256"],
    }


def _quarters(values: Sequence[float]) -> list[float]:
    """The medians of the quarters of a course, as far as it has so many values."""
    return [float(np.median(part)) for part in np.array_split(values, 4) if len(part)]


def _await(condition: Any) -> None:
    deadline = time.monotonic() + _AT_ONCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"error: the run does not go on within {_AT_ONCE_S:g} s")
        time.sleep(0.1)


def _goes_on(machines: Machines, last_s: float) -> bool:
    """Whether steps are made, and have been for a while, long after the last event."""
    before = machines.steps
    time.sleep(_GOES_ON_S)
    return machines.steps > before and time.time() - last_s > _SETTLED_S


def _recoveries(times: Sequence[tuple[str, float]], resumed: Sequence[float]) -> dict[str, list[float]]:
    """Seconds from each event to the first step of the next generation, of those with no other event in between."""
    found: dict[str, list[float]] = {}
    for number, (event, start) in enumerate(times):
        following = times[number + 1][1] if number + 1 < len(times) else float("inf")
        first = min((each for each in resumed if each > start), default=float("inf"))
        if first < following:
            found.setdefault(event, []).append(round(first - start, 3))
    return found


def _made_again(times: Sequence[tuple[str, float]], events: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Completed steps that were made again, by the event before."""
    found: Counter[str] = Counter()
    for each in events:
        if each["event"] == "resumed" and each.get("made_again"):
            when = datetime.fromisoformat(each["time"]).timestamp()
            before = [event for event, start in times if start < when]
            found[before[-1] if before else "nothing"] += each["made_again"]
    return dict(found)


def measure(kind: str, disturbance: Disturbance, rate: str) -> dict[str, Any]:
    """One row: the disturbed run of a kind, and whether the undisturbed one ends with the same parameters."""
    if (bits := parse_rate(rate)) is None:
        raise SystemExit(f"error: --rate {rate}: expected a rate such as 1gbit")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            row = disturbed(KINDS[kind], disturbance, folder=folder, rate=bits)
        except BaseException:
            sys.stderr.write((folder / "log").read_text()[-20_000:])
            raise
        command = [sys.executable, "-P", "-m", "taihu", "train", *_WORLD, *KINDS[kind], "--steps", str(row["steps"])]
        command += ["--run-dir", "none", "--json", str(folder / "results.json"), "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        undisturbed = json.loads((folder / "results.json").read_text())["parameters_sha256"]
    drawn = {"seed": disturbance.seed, "agents": list(disturbance.agents)}
    return {"kind": kind, **drawn, **row, "same": undisturbed == row["sha256"]}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| run | events | steps | made again | death to next step, s: median, 95 %, most | SIGTERM to next step "
        "| parameters |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        by = ", ".join(f"{event} {steps}" for event, steps in row["made_again_by"].items())
        again = f"{row['made_again']} ({by})" if by else str(row["made_again"])
        deaths = [each for event, found in row["recovery_seconds"].items() if "kill" in event for each in found]
        moves = [
            each for event, found in row["recovery_seconds"].items() if event.startswith("agent l") for each in found
        ]
        same = "the same bits" if row["same"] else "**differ**"
        lines.append(
            f"| {row['kind']} | {sum(row['events'].values())} | {row['steps']} | {again} "
            f"| {_quantiles(deaths)} | {_quantiles(moves)} | {same} |"
        )
    return "\n".join(lines)


def _quantiles(seconds: Sequence[float]) -> str:
    if not seconds:
        return "none alone"
    return f"{', '.join(f'{each:.2f}' for each in np.quantile(seconds, (0.5, 0.95, 1.0)))} of {len(seconds)}"


def main() -> None:
    """Measure what is asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=";".join(KINDS), help="separated by semicolons")
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--of", default=";".join(_EVENTS), metavar="A;B", help="these alone happen")
    parser.add_argument(
        "--every", type=float, default=5.0, metavar="SECONDS", help="from event to event, in the mean"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--agents", default="2:5", metavar="LEAST:MOST")
    parser.add_argument("--rate", default="1gbit", help="of each host's link")
    parser.add_argument("--json", type=Path, help="write the rows, and measure those that it lacks")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    least, most = map(int, options.agents.split(":"))
    rows = load_rows(options.json)
    for kind in options.kinds.split(";"):
        if (kind, options.seed) not in [(row["kind"], row["seed"]) for row in rows]:
            names = options.of.split(";")
            disturbance = Disturbance(names, options.events, options.every, options.seed, (least, most))
            rows.append(measure(kind, disturbance, options.rate))
            save_rows(options.json, rows)
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
