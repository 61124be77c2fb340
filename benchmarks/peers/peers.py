"""Rounds of an exchange by other systems and by this one, over the same links: `python -m benchmarks peers`.

Three workers have gradients of a model's size on hosts of their own (see `base.network`), and have the common
values at the end of each round: parameters of a server, on a host of its own, or the mean of the gradients. Nothing
is computed. Rows are of servers (taihu, torch.distributed.rpc, TensorFlow, Ray), and of workers among themselves
(taihu's ring, DistributedDataParallel over Gloo, with and without hooks). TensorFlow and Ray are installed in
environments of their own, in `--environments`, where they are missing; what cannot be installed or run has a row
that says so. Rows that the file of --json holds are not measured again. Needs root, and torch.

Horovod is not among them: its last release (0.28.1, 2023) comes as sources alone, and was not tried.

Examples:
  python -m benchmarks peers --json benchmarks/results/peers.json --docs docs/exchange.md
  python -m benchmarks peers --only ray --rates 1gbit
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.base.network import ShapedNetwork, run_torch_workers
from benchmarks.base.rows import load_rows, publish, save_rows
from benchmarks.exchange import exchange
from taihu.cli.planning.link_rate import parse_rate
from taihu.core.planner.model_shapes import layer_table

__all__ = ["PEERS", "Peer", "table"]

_PAGE: Final = "measured by benchmarks.peers.peers"
_HERE: Final = Path(__file__).parent
_WORKERS: Final = 3
_PORT: Final = 7074
_LONGEST_S: Final = 900.0
_ENVIRONMENTS: Final = Path("build") / "peers"
_FLOORS: Final = {"servers": float(_WORKERS), "workers": 2 * (_WORKERS - 1) / _WORKERS}
"""Times that the values pass the link which has most to carry, in each direction."""


@dataclass(frozen=True)
class Setting:
    """The work of a row: shapes of a model's parameters, links, and rounds."""

    model: str
    rate: str
    rounds: int
    environments: Path

    @property
    def shapes(self) -> list[list[int]]:
        """Those of all tensors, in PyTorch's order of dimensions."""
        return [list(reversed(tensor.shape)) for layer in layer_table(self.model).layers for tensor in layer.tensors]

    @property
    def value_bytes(self) -> int:
        """Bytes of the values, in fp32."""
        return 4 * layer_table(self.model).elements


@dataclass(frozen=True)
class Peer:
    """A system.

    Attributes:
        name: of the row.
        among: `servers` or `workers`, by whom gradients are summed.
        measure: the seconds of the rounds of a setting.
    """

    name: str
    among: str
    measure: Callable[[Setting], Sequence[float]]


def _own(size: tuple[int, int], setting: Setting) -> Sequence[float]:
    row = exchange.measure(setting.model, size, setting.rate, setting.rounds, ["--set=exchange.transport=auto"])
    return list(row["all_seconds"]["own"])


def _ddp(hook: str, setting: Setting) -> Sequence[float]:
    with tempfile.TemporaryDirectory() as folder, ShapedNetwork(_WORKERS, parse_rate(setting.rate)) as network:
        file = Path(folder) / "seconds.json"
        command = [sys.executable, "-m", "benchmarks.peers.ddp_rounds", hook, json.dumps(setting.shapes)]
        run_torch_workers(network, [*command, str(setting.rounds), str(file)], {})
        return list(json.loads(file.read_text()))


def _script(file: str, packages: Sequence[str], told_by: int, setting: Setting) -> Sequence[float]:
    """The rounds of a server and workers that run `file`, with `packages` in an environment of its own."""
    python = _python_with(packages, setting.environments)
    sizes = [prod(shape) for shape in setting.shapes]
    with ShapedNetwork(1 + _WORKERS, parse_rate(setting.rate)) as network:
        place = [str(1 + _WORKERS), network.address(0), str(_PORT), json.dumps(sizes), str(setting.rounds)]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0"}
        processes = [
            subprocess.Popen(
                network.command(rank, python, "-P", str(_HERE / file), str(rank), *place),
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in range(1 + _WORKERS)
        ]
        try:
            told = processes[told_by].communicate(timeout=_LONGEST_S)[0]
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.communicate()
    return [float(each) for each in json.loads(told)]


def _python_with(packages: Sequence[str], environments: Path) -> str:
    """Python of an environment with these packages, this one's where there are none to be installed."""
    if not packages:
        return sys.executable
    folder = environments / packages[0].partition("=")[0]
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        print(f"installing {', '.join(packages)} in {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--no-compile", *packages], check=True)
        done.touch()
    return str(python.absolute())


PEERS: Final = (
    Peer("taihu, a server", "servers", partial(_own, (1, _WORKERS))),
    Peer("torch.distributed.rpc", "servers", partial(_script, "torch_rpc_server.py", (), 1)),
    Peer("TensorFlow", "servers", partial(_script, "tensorflow_server.py", ("tensorflow-cpu==2.21.0",), 1)),
    Peer("Ray", "servers", partial(_script, "ray_server.py", ("ray==2.60.0", "numpy"), 0)),
    Peer("taihu, a ring", "workers", partial(_own, (0, _WORKERS))),
    Peer("DDP over Gloo", "workers", partial(_ddp, "none")),
    Peer("DDP, fp16 hook", "workers", partial(_ddp, "fp16")),
    Peer("DDP, PowerSGD hook, rank 4", "workers", partial(_ddp, "powersgd")),
)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as Markdown, beside taihu's of the same kind, and the floor of sending all values in fp32."""
    lines = ["| model | links | summed by | system | ms | of the floor | to taihu |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        head = f"| {row['model']} | {row['rate']} | {row['among']} | {row['system']} |"
        if not row["seconds"]:
            lines.append(f"{head} {row['why']} | - | - |")
            continue
        own_s = median(row["seconds"])
        floor_s = _FLOORS[row["among"]] * row["bytes"] * 8 / parse_rate(row["rate"])
        beside = [
            median(other["seconds"])
            for other in rows
            if other["system"].startswith("taihu")
            and all(other[key] == row[key] for key in ("model", "rate", "among"))
            and other["seconds"]
        ]
        ratio = f"{own_s / beside[0]:.2f}" if beside else "-"
        lines.append(f"{head} {1e3 * own_s:,.0f} | {own_s / floor_s:.2f} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet50", help="comma-separated")
    parser.add_argument("--rates", default="1gbit,10gbit", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", default="", metavar="WORDS", help="systems whose name has these words")
    parser.add_argument("--environments", type=Path, default=_ENVIRONMENTS, metavar="FOLDER")
    parser.add_argument("--json", type=Path, help="write the rows, and measure those that it lacks")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    # What did not run is tried again.
    rows = [row for row in load_rows(options.json) if row["seconds"]]
    known = {(row["model"], row["rate"], row["system"]) for row in rows}
    for model in options.models.split(","):
        for rate in options.rates.split(","):
            setting = Setting(model, rate, options.rounds, options.environments)
            for peer in PEERS:
                if options.only.lower() in peer.name.lower() and (model, rate, peer.name) not in known:
                    rows.append(_row(peer, setting))
                    save_rows(options.json, rows)
                    print(table(rows[-1:]).splitlines()[-1], flush=True)
    publish(table(rows), _PAGE, options.docs)


def _row(peer: Peer, setting: Setting) -> dict[str, Any]:
    seconds: Sequence[float] = []
    why = ""
    try:
        seconds = peer.measure(setting)
    except (subprocess.SubprocessError, SystemExit, OSError, ValueError) as error:
        why = f"does not run here: {type(error).__name__}"
    return {
        "model": setting.model,
        "rate": setting.rate,
        "among": peer.among,
        "system": peer.name,
        "bytes": setting.value_bytes,
        "seconds": [round(each, 6) for each in seconds],
        "why": why,
        "load": os.getloadavg()[0],
    }


if __name__ == "__main__":
    main()
