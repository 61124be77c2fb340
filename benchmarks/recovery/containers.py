"""Every container of a run lost in turn, in each of the ways that containers are lost.

    deploy/run-kills compose --image localhost/taihu:latest       (as root; podman, and podman-compose in the PATH)
    deploy/run-kills pods --image localhost/taihu:latest

`compose` runs deploy/compose.yaml; `pods` what `taihu manifest --checkpoint-claim` writes, by `podman play kube`. As
soon as the run has gone on after one container, the next one is lost: server 0, which coordinates, the other servers,
every worker. What counts is whether the run ends with the parameters of the same job file under `taihu train`.

died      SIGKILL to the process: the engine starts the container again, by its restart policy
killed    podman kill, which no policy follows; then podman start, as an operator would
stopped   podman stop, with which the process leaves in order; then podman start
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

import yaml
from play import container_of, network_for, play, pods_of
from pods import secret

from benchmarks.base.rows import in_page, load_rows, save_rows

__all__ = [
    "WAYS",
    "Started",
    "compose",
    "drill_job",
    "events_of",
    "finished",
    "first_after",
    "gone_on",
    "local_hash",
    "output",
    "pods",
    "steps_of",
    "table",
    "until",
    "volume",
]

_ROOT: Final = Path(__file__).parents[2]
_COMPOSE: Final = ("podman-compose", "-f", str(_ROOT / "deploy" / "compose.yaml"))
_PAGE: Final = "measured by benchmarks.recovery.containers"
_TIMEOUT_S: Final = 300.0
_LOOK_S: Final = 0.05
_POD_ENDS_S: Final = 15.0
_NAME: Final = "drill"
_FILES: Final = "drill-tls"


@dataclass(frozen=True)
class Started:
    """A run whose containers have been started.

    Attributes:
        containers: their names, by the member that is in each.
        folder: the run's, as this host sees it.
    """

    containers: Mapping[str, str]
    folder: Path


def drill_job(text: str, *, steps: int, kept: int) -> str:
    """The job file `text` with so many steps, a checkpoint every `kept` of them, and restarts without end."""
    lines = [f"steps = {steps}" if line.startswith("steps") else line for line in text.splitlines()]
    return "\n".join((*lines, "", "[checkpoint]", f"every_steps = {kept}", "restarts = 1000", ""))


def died(container: str) -> None:
    """End its process by SIGKILL."""
    os.kill(int(output("podman", "inspect", "-f", "{{.State.Pid}}", container)), signal.SIGKILL)


def killed(container: str) -> None:
    """End it by the engine, and start it again."""
    output("podman", "kill", container)
    _start(container)


def stopped(container: str) -> None:
    """Have it leave, and start it again."""
    output("podman", "stop", "--time", "60", container)
    _start(container)


def _start(container: str) -> None:
    """Start it again, when the pod that it may be in has ended, too: podman would end what is started until then."""
    deadline = time.monotonic() + _POD_ENDS_S
    while (pod := output("podman", "inspect", "-f", "{{.Pod}}", container)) and time.monotonic() < deadline:
        if output("podman", "pod", "inspect", "-f", "{{.State}}", pod) == "Exited":
            break
        time.sleep(_LOOK_S)
    output("podman", "start", container)


WAYS: Final[Mapping[str, Callable[[str], None]]] = MappingProxyType(
    {"died": died, "killed": killed, "stopped": stopped}
)
"""The ways in which containers are lost and come back."""


@contextmanager
def compose(job: Path, image: str) -> Iterator[Started]:
    """The job under deploy/compose.yaml; nothing of it is left at the end."""
    environment = {**os.environ, "TAIHU_JOB": str(job), "TAIHU_IMAGE": image, "TAIHU_LINGER": "0"}

    def run(*arguments: str) -> None:
        subprocess.run([*_COMPOSE, *arguments], check=True, capture_output=True, env=environment)

    try:
        run("up", "-d", "certs", "server", "worker")
        names = output("podman", "ps", "-a", "--format", "{{.Names}}").split()
        found = sorted(name.split("_") for name in names if name.startswith(("taihu_server_", "taihu_worker_")))
        containers = {f"{role} {int(number) - 1}": "_".join((group, role, number)) for group, role, number in found}
        yield Started(containers, volume("taihu_runs") / "run")
    finally:
        run("down", "--volumes", "--timeout", "5")


@contextmanager
def pods(job: Path, image: str, *, encrypts: bool = False) -> Iterator[Started]:
    """The job as pods that recover, under mutual TLS or not; nothing of it is left at the end."""
    flags = ["--checkpoint-claim", "taihu-kept", "--run-claim", "taihu-runs"]
    flags += ["--tls-secret", _FILES] if encrypts else []
    text = output(sys.executable, "-P", "-m", "taihu", "manifest", str(job), "--name", _NAME, *flags)
    objects = list(yaml.safe_load_all(text))
    objects += [_certificates(job)] if encrypts else []
    for item in objects:
        item.get("data", {}).pop("TAIHU_LINGER", None)
    made = pods_of(objects, image)
    with network_for(made), tempfile.TemporaryDirectory() as folder:
        for name in made:
            play(name, objects, made, Path(folder))
        yield Started({_member(name): container_of(name, made) for name in made}, volume("taihu-runs") / _NAME)


def _certificates(job: Path) -> dict[str, Any]:
    """A Secret with the files of all processes of the job."""
    with tempfile.TemporaryDirectory() as folder:
        output(sys.executable, "-P", "-m", "taihu", "certs", str(job), "--set", f"name={_NAME}", "--out", folder)
        return secret(_FILES, Path(folder))


def _member(pod: str) -> str:
    """The member in a pod: worker 0 has a Job of its own."""
    _, kind, number = pod.rsplit("-", 2)
    return {"server": f"server {number}", "first": "worker 0", "worker": f"worker {int(number) + 1}"}[kind]


ENGINES: Final[Mapping[str, Callable[[Path, str], AbstractContextManager[Started]]]] = MappingProxyType(
    {"compose": compose, "pods": pods}
)


def lose_each(run: Started, kept: int, said: Callable[[Mapping[str, Any]], None]) -> tuple[list[dict[str, Any]], str]:
    """Lose every container in every way, one after another; the rows, and the hash of the final parameters.

    Raises:
        SystemExit: the run ended too early, or did not go on, or a container ended otherwise than it should.
    """
    rows = []
    until(lambda: steps_of(run.folder) > kept, "the run did not begin")
    for how, lose in WAYS.items():
        for member, container in run.containers.items():
            step, start = steps_of(run.folder), time.time()
            lose(container)
            at = until(partial(gone_on, run.folder, start), f"{member} {how}: no step since")
            rows.append({"member": member, "how": how, "step": step, "seconds": round(at - start, 2)})
            said(rows[-1])
    return rows, str(finished(run)["parameters_sha256"])


def finished(run: Started) -> dict[str, Any]:
    """The results of a run, as soon as it has ended.

    Raises:
        SystemExit: it does not end, or a worker ended otherwise than it should.
    """
    until(lambda: any(event["event"] == "finished" for event in events_of(run.folder)), "the run did not finish")
    for container in (name for member, name in run.containers.items() if member.startswith("worker")):
        code = output("podman", "wait", container).strip()
        if code != "0":
            raise SystemExit(f"error: {container} ended with exit code {code}")
    results: dict[str, Any] = json.loads((run.folder / "results.json").read_text())
    return results


def gone_on(folder: Path, start: float) -> float:
    """The time of the first step behind a loss, 0 for none yet."""
    return first_after(events_of(folder), start)


def first_after(events: Sequence[Mapping[str, Any]], start: float) -> float:
    """The time of the first step of a generation that began after `start`, in seconds of the epoch; 0 for none yet.

    Raises:
        SystemExit: the run has ended since.
    """
    for event in events:
        at = datetime.fromisoformat(event["time"]).timestamp()
        if at > start and event["event"] == "resumed":
            return at
        if event["event"] in ("finished", "failed", "stopped"):
            raise SystemExit(
                f"error: the run has {event['event']}, and not all containers were lost; give more --steps"
            )
    return 0.0


def events_of(folder: Path) -> list[dict[str, Any]]:
    """The events that the run has told."""
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def steps_of(folder: Path) -> int:
    """The number of steps in the table of the run."""
    path = folder / "steps.csv"
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


def until(look: Callable[[], float], otherwise: str) -> float:
    """Whatever `look` finds, as soon as that is not 0; SystemExit after a while."""
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(_LOOK_S)
    raise SystemExit(f"error: {otherwise} within {_TIMEOUT_S:g} s")


def local_hash(job: Path, folder: Path) -> str:
    """The hash of the job's final parameters under `taihu train`."""
    results = folder / "local.json"
    words = ("train", str(job), "--run-dir", "none", "--json", str(results), "--quiet")
    output(sys.executable, "-P", "-m", "taihu", *words)
    return str(json.loads(results.read_text())["parameters_sha256"])


def volume(name: str) -> Path:
    """The place of a volume on this host."""
    return Path(output("podman", "volume", "inspect", "-f", "{{.Mountpoint}}", name).strip())


def output(*command: str) -> str:
    """The output of a command; SystemExit where it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as Markdown: a line for each way, seconds from a loss to the next step over all members."""
    lines = ["| lost | " + " | ".join(row["engine"] for row in rows) + " |", "|---" * (1 + len(rows)) + "|"]
    for how in WAYS:
        seconds = ([loss["seconds"] for loss in row["losses"] if loss["how"] == how] for row in rows)
        told = (f"{median(each):.1f} s, {min(each):.1f} to {max(each):.1f}" for each in seconds)
        lines.append(f"| {how} | {' | '.join(told)} |")
    same = ("the same bits" if row["sha256"] == row["local"] else "**differ**" for row in rows)
    return "\n".join([*lines, f"| parameters | {' | '.join(same)} |"])


def main() -> int:
    """Run on one engine; returns 0 when both runs end with the same parameters."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--image", default="localhost/taihu:latest")
    parser.add_argument("--job", type=Path, default=_ROOT / "deploy" / "job.toml")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--kept", type=int, default=50, metavar="STEPS", help="from checkpoint to checkpoint")
    parser.add_argument("--json", type=Path, help="write the row of this engine beside those of others")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # containers read the job as another user
        job = folder / "drill.toml"
        job.write_text(drill_job(options.job.read_text(), steps=options.steps, kept=options.kept))
        local = local_hash(job, folder)
        with ENGINES[options.engine](job, options.image) as run:
            losses, sha256 = lose_each(run, options.kept, lambda row: print(*row.values(), sep="\t", flush=True))
    row = {"engine": options.engine, "steps": options.steps, "losses": losses, "sha256": sha256, "local": local}
    rows = [row if each["engine"] == options.engine else each for each in load_rows(options.json)]
    rows += [] if row in rows else [row]
    save_rows(options.json, rows)
    print(f"taihu train    {local}\n{options.engine:14} {sha256}\n\n{table(rows)}")
    if options.docs is not None:
        options.docs.write_text(in_page(options.docs.read_text(), _PAGE, table(rows)))
    return int(sha256 != local)


if __name__ == "__main__":
    sys.exit(main())
