"""A run of agents, or of servers that join: real processes on this machine, which come, go and die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.daemons import Process, daemons, listening, ring_address, wait_for
from taihu.core.coordination.status import fetch_status, stop_run

__all__ = ["Machines", "come_go_and_die", "ends_as_undisturbed"]

Taihu = Callable[..., subprocess.CompletedProcess[str]]

WORKERS = 4
JOB = (
    *("--model", "cifar10_quick", "--data", "synthetic:3x32x32:samples=256", "--batch", "4"),
    *("--workers", str(WORKERS), "--optimizer", "adam", "--set", "train.evaluate=false"),
    *("--set", "cluster.threads=1", "--set", "cluster.heartbeat_s=0.2", "--set", "checkpoint.restarts=100"),
)
"""No checkpoint comes by itself: all steps would be made again that nobody holds."""
ENDLESS = ("--steps", "1000000")


class Machines:
    """The processes of a run: `members` by rank, and agents and servers, which come and go."""

    def __init__(self, folder: Path, flags: tuple[str, ...], members: tuple[str, ...]) -> None:
        self._folder = folder
        self._flags = (*JOB, *ENDLESS, *flags, "--set", f"checkpoint.dir={folder}/kept")
        self._members = members
        self._comers: list[Process] = []
        self._hosts: list[Process] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        with daemons(self._folder, by_hand=True) as start:
            self._start, address = start, ""
            for name in self._members:
                role, rank = name.split()
                module = {"server": "taihu.ps_server", "worker": "taihu.worker"}[role]
                own = ("--bind", "127.0.0.1:0") if not address else ("--coordinator", address)
                process = start(module, "--rank", rank, *own, *self._outputs(name), *self._flags)
                if not address:
                    address = listening(process)[0] if role == "server" else ring_address(process)
                self._hosts.append(process)
            self._address = address
            yield

    def _outputs(self, name: str) -> tuple[str, ...]:
        return ("--run-dir", str(self._folder / "run")) if name == "worker 0" else ()

    def come(self) -> int:
        """Another agent; its number."""
        outputs = () if "worker 0" in self._members else self._outputs("worker 0")
        return self._comes("taihu", "agent", *outputs)

    def join(self) -> int:
        """Another server; its number."""
        return self._comes("taihu.ps_server", "--join")

    def _comes(self, module: str, *words: str) -> int:
        self._comers.append(self._start(module, *words, "--coordinator", self._address, *self._flags))
        return len(self._comers) - 1

    def signal(self, comer: int, number: signal.Signals) -> None:
        os.kill(self._comers[comer].pid, number)

    def code(self, comer: int) -> int:
        return int(self._comers[comer].wait(timeout=120))

    def stop(self) -> dict[str, Any]:
        """Stop the run; its results."""
        stop_run(self._address, "taihu", "enough", 120.0)
        codes = [process.wait(timeout=120) for process in self._hosts]
        assert codes == [130] * len(self._hosts), f"{codes}, {self.said()}"
        results: dict[str, Any] = json.loads((self._folder / "run" / "results.json").read_text())
        return results

    def said(self) -> str:
        """The last lines of all processes."""
        logs = sorted(self._folder.glob("*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in logs)

    @property
    def servers(self) -> int:
        """The number of servers that take part."""
        return fetch_status(self._address, 60.0).servers

    @property
    def steps(self) -> int:
        path = self._folder / "run" / "steps.csv"
        return len(path.read_text().splitlines()) if path.exists() else 0

    @property
    def resumed(self) -> list[dict[str, Any]]:
        path = self._folder / "run" / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [each for each in map(json.loads, lines) if each["event"] == "resumed"]

    def goes_on(self, times: int) -> None:
        """Return when steps have been made behind so many changes."""
        before = self.steps
        wait_for(lambda: len(self.resumed) >= times and self.steps > before + 10, f"{self.resumed}, {self.steps}")

    def goes_on_with(self, servers: int) -> None:
        """Return when steps have been made through so many servers."""
        wait_for(lambda: self.servers == servers, f"{servers} servers: {self.said()}")
        before = self.steps
        wait_for(lambda: self.steps > before + 10, f"{self.resumed}, {self.steps}")


def come_go_and_die(flags: tuple[str, ...], members: tuple[str, ...], folder: Path, taihu: Taihu) -> None:
    """Of two agents one is killed, a third one joins, and the first leaves: no bit changes, no step is lost.

    A killed worker may have sent its part of a step and not have held it yet, while worker 0 has completed that: such
    a step is made again.
    """
    machines = Machines(folder, flags, members)
    with machines.running():
        first, second = machines.come(), machines.come()
        machines.goes_on(0)
        third = machines.come()
        machines.signal(second, signal.SIGKILL)
        machines.goes_on(2)
        machines.signal(first, signal.SIGTERM)
        machines.goes_on(3)
        assert machines.code(first) == 130
        disturbed = machines.stop()
        assert machines.code(third) == 130
    assert len(machines.resumed) == 3
    assert sum(each.get("made_again", 0) for each in machines.resumed) <= 1, machines.said()
    ends_as_undisturbed(disturbed, flags, folder, taihu)


def ends_as_undisturbed(disturbed: dict[str, Any], flags: tuple[str, ...], folder: Path, taihu: Taihu) -> None:
    """`taihu train` ends with the same parameters behind as many steps."""
    steps = ("--steps", str(disturbed["steps"]))
    ended = taihu("train", *JOB, *flags, *steps, "--json", str(folder / "local.json"), "--run-dir", "none")
    assert ended.returncode == 0, ended.stderr
    undisturbed = json.loads((folder / "local.json").read_text())
    assert disturbed["parameters_sha256"] == undisturbed["parameters_sha256"]
