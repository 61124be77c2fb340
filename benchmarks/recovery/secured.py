"""The same job on one machine, and three times under mutual TLS; what counts is one hash.

    deploy/run-secured --image localhost/taihu:latest       (as root; podman, podman-compose, iproute2 and iptables)

taihu train   processes of this machine
hosts         three network namespaces; at each server's one port is open, and a firewall drops all else
compose       deploy/compose.yaml
pods          what `taihu manifest --tls-secret` writes, by `podman play kube`

--docs puts the table into a page, between its markers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

from benchmarks.base.network import ShapedNetwork, run_together
from benchmarks.base.rows import in_page
from benchmarks.recovery.containers import compose, drill_job, finished, pods
from taihu.core.job import load_job
from taihu.core.job.environment import without_settings

__all__ = ["Ended", "complaints", "on_hosts", "table"]

_ROOT: Final = Path(__file__).parents[2]
_PAGE: Final = "run by benchmarks.recovery.secured"
_TAIHU: Final = (sys.executable, "-P", "-m", "taihu")
_HOSTS: Final = 3
_RATE_BITS: Final = 1e9
_PORT: Final = 7070
_HEAD: Final = """\
| run | carried by | sha256 of the parameters |
|---|---|---|"""


@dataclass(frozen=True)
class Ended:
    """A run that has ended: the hash of its parameters, and what carried its values."""

    sha256: str
    path: str

    @classmethod
    def of(cls, results: Mapping[str, Any]) -> Ended:
        """From the results of one of its workers."""
        return cls(str(results["parameters_sha256"]), str(results["path"]))


def _own_files(made: Path, folder: Path, member: str) -> list[str]:
    """Copy the files that `member` needs from `made` to a `folder` of its own; the arguments that name them."""
    folder.mkdir()
    for name in ("ca.pem", f"{member}.pem", f"{member}-key.pem"):
        shutil.copy(made / name, folder)
    files = {"ca": "ca.pem", "certificate": "{member}.pem", "key": "{member}-key.pem"}
    named = [f"security.{key}={folder / name}" for key, name in files.items()]
    return [word for text in (*named, "security.required=true") for word in ("--set", text)]


def locally(job: Path, folder: Path) -> Ended:
    """The job under `taihu train`."""
    results = folder / "local.json"
    subprocess.run(
        [*_TAIHU, "train", str(job), "--run-dir", "none", "--json", str(results), "--quiet"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return Ended.of(json.loads(results.read_text()))


def on_hosts(network: ShapedNetwork, job: Path, folder: Path) -> Ended:
    """The job on three hosts, whose servers are at the first ones, and whose workers take turns.

    Each process has its own certificate alone.

    Raises:
        SystemExit: a process failed, its workers differ, or no firewall has shut anybody out.
    """
    cluster = load_job(job).cluster
    results = [folder / f"{rank}.json" for rank in range(cluster.workers)]
    for host in range(_HOSTS):
        network.shut(host, but=_PORT if host < cluster.servers else None)
    made = folder / "made"
    subprocess.run([*_TAIHU, "certs", str(job), "--out", str(made)], check=True, stdout=subprocess.DEVNULL)
    commands = []
    for role, rank in [*product(["server"], range(cluster.servers)), *product(["worker"], range(cluster.workers))]:
        member = f"{role}-{rank}"
        own = ["--bind", f"{network.address(rank)}:{_PORT}"]
        if role == "worker":
            own = ["--json", str(results[rank]), "--run-dir", "none"]
        words = [role, str(job), "--rank", str(rank), "--coordinator", f"{network.address(0)}:{_PORT}", *own]
        words += _own_files(made, folder / member, member)
        commands.append(network.command(rank % _HOSTS, *_TAIHU, *words))
    run_together(commands, without_settings(os.environ))
    dropped = [network.dropped(host) for host in range(_HOSTS)]
    if not all(dropped[: cluster.servers]):
        raise SystemExit(f"error: firewalls dropped {dropped} packets: expected some of connections beside gRPC")
    (ended,) = {Ended.of(json.loads(each.read_text())) for each in results}
    return ended


def _on_own_hosts(job: Path, folder: Path) -> Ended:
    with ShapedNetwork(_HOSTS, _RATE_BITS) as network:
        return on_hosts(network, job, folder)


def in_compose(image: str, job: Path, _: Path) -> Ended:
    """The job in containers."""
    with compose(job, image) as run:
        return Ended.of(finished(run))


def in_pods(image: str, job: Path, _: Path) -> Ended:
    """The job in pods, of which each has its own files from a Secret."""
    with pods(job, image, encrypts=True) as run:
        return Ended.of(finished(run))


def table(runs: Mapping[str, Ended]) -> str:
    """The runs as Markdown."""
    rows = (f"| {name} | `{run.path}` | `{run.sha256}` |" for name, run in runs.items())
    return "\n".join([_HEAD, *rows])


def complaints(runs: Mapping[str, Ended]) -> Iterator[str]:
    """Hashes that differ."""
    if len({run.sha256 for run in runs.values()}) > 1:
        yield "the hashes differ"


def main() -> int:
    """Run the job in all ways; returns 0 when all of them end with the same parameters."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default="localhost/taihu:latest")
    parser.add_argument("--job", type=Path, default=_ROOT / "deploy" / "job.toml")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    ways: dict[str, Callable[[Path, Path], Ended]] = {
        "`taihu train`": locally,
        "three hosts, TLS, one port open": _on_own_hosts,
        "compose, TLS": partial(in_compose, options.image),
        "pods, TLS": partial(in_pods, options.image),
    }
    runs = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # containers read the job as another user
        job = folder / "job.toml"
        job.write_text(drill_job(options.job.read_text(), steps=options.steps, kept=options.steps))
        for way, run in ways.items():
            runs[way] = run(job, folder)
            print(way, runs[way].path, runs[way].sha256, sep="\t", flush=True)
    wrong = list(complaints(runs))
    if wrong:
        raise SystemExit(f"error: {'; '.join(wrong)}")
    if options.docs is not None:
        options.docs.write_text(in_page(options.docs.read_text(), _PAGE, table(runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
