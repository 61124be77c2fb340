"""Daemons that a launcher starts: it starts one that is gone again by the same command, and the run goes on."""

from __future__ import annotations

import csv
import json
import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import grpc
import pytest
from support.certificates import MEMBERS, TestAuthority
from support.commands import run_command
from support.daemons import Process, Start, listening, ring_address, wait_for

from taihu.core.checkpoint.manifest import MANIFEST
from taihu.core.coordination.status import fetch_status
from taihu.core.wire.serving.channel import open_channel

STEPS: Final = 400
COMMON: Final = (
    *("--steps", str(STEPS), "--workers", "2", "--set", "cluster.threads=1", "--set", "train.evaluate=false"),
)
KINDS: Final = {"servers": ("--servers", "1"), "ring": ("--exchange", "ring")}


@dataclass
class Launcher:
    """The processes of a run, each started by a command that stays the same."""

    kind: str
    start: Start
    folder: Path
    own: tuple[str, ...] = ()
    processes: dict[str, Process] = field(default_factory=dict)
    address: str = "127.0.0.1:0"

    def begin(self) -> None:
        """Start all of them."""
        first = self.launch(self.host)
        self.address = listening(first)[0] if self.kind == "servers" else ring_address(first)
        for name in ("worker 0", "worker 1"):
            if name != self.host:
                self.launch(name)

    @property
    def host(self) -> str:
        """The member that coordinates the run."""
        return "server 0" if self.kind == "servers" else "worker 0"

    def launch(self, name: str) -> Process:
        """Start one of them."""
        role, rank = name.split()
        is_host, meets = name == self.host, self.kind == "ring"
        bind = ("--bind", self.address) if is_host else ("--bind", "127.0.0.1:0") if meets else ()
        files = ("--run-dir", str(self.folder / "run"), "--json", "0.json") if name == "worker 0" else ()
        coordinator = () if is_host and self.address.endswith(":0") else ("--coordinator", self.address)
        keeping = ("--set", f"checkpoint.dir={self.folder / 'kept'}", "--set", "checkpoint.every_steps=10")
        module = "taihu.ps_server" if role == "server" else "taihu.worker"
        flags = (*KINDS[self.kind], *COMMON, *keeping, *self.own)
        self.processes[name] = self.start(module, *flags, "--rank", rank, *bind, *coordinator, *files)
        return self.processes[name]

    @contextmanager
    def held(self) -> Iterator[None]:
        """The run makes no step meanwhile, so that it is not over when this process, on a busy machine, is late."""
        self.processes["worker 0"].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.processes["worker 0"].send_signal(signal.SIGCONT)

    def await_newer_checkpoint(self) -> None:
        """Return when the run has got further."""
        before = self._newest()
        wait_for(partial(self._has_newer, before), "nothing kept")

    def await_going_on(self, times: int) -> None:
        """Return when the run has gone on so often, with a step of its present members."""
        events = self.folder / "run" / "events.jsonl"

        def has_gone_on() -> bool:
            return events.exists() and events.read_text().count('"event": "resumed"') >= times

        wait_for(has_gone_on, "it does not go on")

    def await_end(self) -> None:
        """All processes end well, and the tables have every step once."""
        codes = {name: process.wait(timeout=600) for name, process in self.processes.items()}
        assert codes == dict.fromkeys(self.processes, 0)
        with (self.folder / "run" / "steps.csv").open(newline="") as file:
            assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(1, STEPS + 1))

    @property
    def parameters(self) -> str:
        """The hash that the run ended with."""
        return str(json.loads((self.folder / "0.json").read_text())["parameters_sha256"])

    def _newest(self) -> int:
        found = (self.folder / "kept").glob(f"*/{MANIFEST}")
        return max((int(path.parent.name.removeprefix("step-")) for path in found), default=0)

    def _has_newer(self, step: int) -> bool:
        return self._newest() > step


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory, where there is one: of a run of two seconds a disk that stands still keeps nothing."""
    memory = Path("/dev/shm")  # noqa: S108 - the folder in it is made by tempfile
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for runs that nobody disturbs."""
    return tmp_path_factory.mktemp("undisturbed")


@cache
def undisturbed(kind: str, folder: Path) -> str:
    """The hash of parameters of the run that nobody disturbs."""
    flags = (*KINDS[kind], *COMMON, "--run-dir", "none", "--json", f"{kind}.json")
    whole = run_command("taihu", "train", *flags, folder=folder)
    assert whole.returncode == 0, whole.stderr
    return str(json.loads((folder / f"{kind}.json").read_text())["parameters_sha256"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_as_soon_as_the_lost_process_is_there_again(
    kind: str, start: Start, tmp_path: Path, folder: Path
) -> None:
    run = Launcher(kind, start, tmp_path)
    run.begin()
    for victim in ("worker 1", run.host):
        run.await_newer_checkpoint()
        run.processes[victim].kill()
        run.processes[victim].wait(timeout=600)
        run.launch(victim)
    run.await_end()
    assert run.parameters == undisturbed(kind, folder)


def test_who_leaves_is_awaited_and_no_step_is_made_again(start: Start, tmp_path: Path, folder: Path) -> None:
    run = Launcher("servers", start, tmp_path, ("--on-term", "leave", "--set", "cluster.heartbeat_s=0.02"))
    run.begin()
    for leaver in ("worker 1", run.host):
        run.await_newer_checkpoint()
        run.await_newer_checkpoint()  # by now the coordinator has heard of steps
        run.processes[leaver].terminate()
        assert run.processes[leaver].wait(timeout=600) == 130
        run.launch(leaver)
    run.await_end()
    assert run.parameters == undisturbed("servers", folder)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    left = [re.search(rf"after step (\d+) of {STEPS}: (.*): interrupted", each.get("reason", "")) for each in events]
    resumed = [each["after_step"] for each in events if each["event"] == "resumed"]
    assert [(int(each[1]), each[2]) for each in left if each] == list(
        zip(resumed, ("worker 1", "server 0"), strict=True)
    )


def test_a_run_that_resumes_by_itself_goes_on_from_where_all_of_it_was_killed(
    start: Start, tmp_path: Path, folder: Path
) -> None:
    """As a launcher does that starts all processes again, by the same commands, until they have ended well."""
    run = Launcher("servers", start, tmp_path, ("--resume", "auto", "--set", "checkpoint.restarts=0"))
    run.begin()
    run.await_newer_checkpoint()
    for process in run.processes.values():
        process.kill()
        process.wait(timeout=600)
    (tmp_path / "run").rename(tmp_path / "first")  # without restarts every start has a folder of its own
    for name in run.processes:
        run.launch(name)
    codes = {name: process.wait(timeout=600) for name, process in run.processes.items()}
    assert codes == dict.fromkeys(run.processes, 0)
    assert run.parameters == undisturbed("servers", folder)
    (tmp_path / "run").rename(tmp_path / "second")
    again = [run.launch(name).wait(timeout=600) for name in ("worker 1", "server 0", "worker 0")]
    assert again == [0, 0, 0]
    # A server that its pod keeps goes on to tell that it lives; it would be started again else, for ever.
    run.own = (*run.own, "--hold")
    held = run.launch("server 0")
    assert held.stdout is not None
    told = [held.stdout.readline() for _ in range(2)]
    with urllib.request.urlopen(f"http://127.0.0.1:{told[1].split()[-1]}/healthz") as answer:
        assert answer.status == 200
    held.terminate()
    assert held.wait(timeout=600) == 0
    with (tmp_path / "second" / "steps.csv").open(newline="") as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    assert steps[0] > 10
    assert steps == list(range(steps[0], STEPS + 1))


def test_certificates_are_renewed_while_a_run_goes_on(start: Start, tmp_path: Path, folder: Path) -> None:
    """All of them, and the authority, so that nobody gets in with what was read before."""
    authority = signed(tmp_path / "certificates")
    shown = [word for key, value in authority.settings().items() for word in ("--set", f"security.{key}={value}")]
    run = Launcher("servers", start, tmp_path, (*shown, "--set", "exchange.transport=grpc"))
    run.begin()
    for lost, victim in enumerate(("worker 1", run.host)):
        # Who connects just now, with what it has read before, would be refused for as long as it tries.
        run.await_going_on(lost)
        run.await_newer_checkpoint()
        observer = authority.security("observer/0")
        with run.held(), open_channel(run.address, security=observer, peer="server-0") as channel:
            check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert check(b"", timeout=600)
            authority = signed(authority.folder)
            # Who is connected stays so, and whoever comes now shows and is shown what was renewed.
            assert check(b"", timeout=600)
            assert fetch_status(run.address, 120, observer).job == "taihu"
        run.await_newer_checkpoint()
        run.processes[victim].kill()
        run.processes[victim].wait(timeout=600)
        run.launch(victim)
    run.await_end()
    assert run.parameters == undisturbed("servers", folder)


def signed(folder: Path) -> TestAuthority:
    """An authority, and the files of all members, in the place of what is in `folder`."""
    authority = TestAuthority(folder)
    for place in MEMBERS:
        authority.sign(place)
    return authority
