"""The backend `taihu` of torch.distributed beside Gloo, in the same processes, in turns.

    python -m benchmarks torch_backend [--ranks 3] [--megabytes 0.1,1,10,61] [--rounds 10]
    python -m benchmarks torch_backend --links "1 Gbit/s,10 Gbit/s"      as root

Ranks are processes of this machine, or with --links each has a host of its own (network namespaces with shaped
links). Times are medians over rounds of rank 0: of one allreduce of fp32 values, and of one step of
DistributedDataParallel on a small ResNet. Rows that the file of --json holds are not measured again. Needs torch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taihu.torch.backend  # noqa: F401 - registers the backend
from benchmarks.base.network import ShapedNetwork, run_together
from benchmarks.base.rows import load_rows, publish, save_rows

__all__ = ["main", "table"]

_PAGE: Final = "measured by benchmarks.backend.torch_backend"
_CALLS_MB: Final = 20.0
_WARM: Final = 2
_PORT: Final = 29512
_HERE: Final = "one machine"
_RATES: Final = MappingProxyType({"100 Mbit/s": 100e6, "1 Gbit/s": 1e9, "10 Gbit/s": 10e9})

Call = Callable[[], None]


class Block(nn.Module):  # type: ignore[misc]  # torch has no types in the gate
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Any) -> Any:
        """The block's values; x of shape (N, C, H, W)."""
        return torch.relu(self.second(torch.relu(self.norm(self.first(x)))) + self.shortcut(x))


def _model() -> Any:
    widths = (3, 64, 128, 256, 512)
    blocks = [Block(a, b, 2) for a, b in pairwise(widths)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


def _in_turns(calls: dict[str, Call], rounds: int, times: int) -> dict[str, float]:
    """Median seconds of a call and of a processor in it, by contestant; all ranks begin each round together."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for number in range(_WARM + rounds):
        for name, call in calls.items():
            dist.barrier()
            start, busy = time.perf_counter(), time.process_time()
            for _ in range(times):
                call()
            if number >= _WARM:
                taken[name].append(((time.perf_counter() - start) / times, (time.process_time() - busy) / times))
    medians = {}
    for name, pairs in taken.items():
        medians[name], medians[f"{name} cpu"] = map(statistics.median, zip(*pairs, strict=True))
    return medians


def _allreduce(buffer: Any, group: Any) -> Call:
    return lambda: dist.all_reduce(buffer, group=group)


def _step(group: Any) -> Call:
    torch.manual_seed(1)
    model = DistributedDataParallel(_model(), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.rand(8, 3, 32, 32), torch.zeros(8, dtype=torch.int64)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def _measured(sizes: Sequence[float], rounds: int) -> Iterator[dict[str, Any]]:
    """Seconds by contestant of each row, on each rank of a group that there is."""
    groups = {"taihu": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    for size in sizes:
        buffers = {name: torch.zeros(max(1, round(size * 1e6 / 4))) for name in groups}
        calls = {name: _allreduce(buffers[name], group) for name, group in groups.items()}
        times = max(1, min(50, int(_CALLS_MB / size)))
        yield {"what": f"allreduce of {size:g} MB", **_in_turns(calls, rounds, times)}
    parameters = sum(each.numel() for each in _model().parameters())
    steps = {name: _step(group) for name, group in groups.items()}
    yield {"what": f"DDP step, {4e-6 * parameters:.1f} MB of parameters", **_in_turns(steps, rounds, 1)}


def _run(rank: int, options: argparse.Namespace, store: str, result: str) -> None:
    """Rank `rank`'s part; rank 0 writes the rows."""
    torch.set_num_threads(1)
    dist.init_process_group("taihu", init_method=store, rank=rank, world_size=options.ranks)
    rows = []
    for row in _measured(options.megabytes, options.rounds):
        rows.append(row)
        if rank == 0:
            print(table([{"link": options.link, **row}]).splitlines()[-1], file=sys.stderr, flush=True)
    dist.destroy_process_group()
    if rank == 0:
        Path(result).write_text(json.dumps(rows))


def _measure(link: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one kind of link."""
    options.link = link
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "rows.json"
        if link == _HERE:
            store = f"file://{Path(folder) / 'store'}"
            torch.multiprocessing.spawn(_run, (options, store, str(result)), options.ranks)
        else:
            _on_hosts(_RATES[link], options, result)
        rows: list[dict[str, Any]] = json.loads(result.read_text())
    return [{"link": link, "ranks": options.ranks, **row} for row in rows]


def _on_hosts(rate: float, options: argparse.Namespace, result: Path) -> None:
    with ShapedNetwork(options.ranks, rate) as network:
        store = f"tcp://{network.address(0)}:{_PORT}"
        command = [sys.executable, "-m", "benchmarks.backend.torch_backend", "--link", options.link, "--store", store]
        command += ["--ranks", str(options.ranks), "--rounds", str(options.rounds), "--json", str(result)]
        command += ["--megabytes", ",".join(f"{each:g}" for each in options.megabytes)]
        commands = [network.command(rank, *command, "--rank", str(rank)) for rank in range(options.ranks)]
        run_together(commands, {**os.environ, "GLOO_SOCKET_IFNAME": "eth0"})


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown, in milliseconds: by the clock, and of a processor on one rank."""
    columns = ("links", "what", "ours ms", "Gloo ms", "Gloo / ours", "ours CPU ms", "Gloo CPU ms")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in rows:
        ours, gloo = row["taihu"], row["gloo"]
        cells = [row["link"], row["what"], f"{1e3 * ours:.2f}", f"{1e3 * gloo:.2f}", f"{gloo / ours:.2f}"]
        cells += [f"{1e3 * row[name]:.2f}" for name in ("taihu cpu", "gloo cpu")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure the rows that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument(
        "--megabytes", type=lambda text: [float(each) for each in text.split(",")], default="0.1,1,10,61"
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--links", default=_HERE, help=f"some of: {', '.join((_HERE, *_RATES))}")
    parser.add_argument("--json", type=Path, help="write the rows, and measure those that it lacks")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    for own in ("--link", "--store", "--rank"):
        parser.add_argument(own, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        _run(int(options.rank), options, options.store, str(options.json))
        return
    links = options.links.split(",")
    if unknown := [link for link in links if link not in {_HERE, *_RATES}]:
        parser.error(f"no such link: {', '.join(unknown)}; there are {', '.join((_HERE, *_RATES))}")
    print(f"load {os.getloadavg()[0]:.1f}, {options.ranks} ranks, {os.cpu_count()} cores", file=sys.stderr)
    rows = load_rows(options.json)
    for link in links:
        if link not in {row["link"] for row in rows}:
            rows += _measure(link, options)
            save_rows(options.json, rows)
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
