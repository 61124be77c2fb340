"""Small, fast, sealed and same-host exchanges beside their floors and peers: `python -m benchmarks edges`.

Hosts are network namespaces (see `base.network`): root and iproute2 are needed. A row is a bound: what an exchange
takes, in the median of all its rounds, what it is compared with in the same run, by turns, and how many times that it
may take. Peers: the link's floor, the same exchange by plain sockets (`plain_sockets.py`), Gloo, OpenMPI over shared
memory (mpirun and mpicc of Debian's openmpi-bin and libopenmpi-dev; rows without them say so), and plain text for
TLS. Rows that the file of --json holds are not measured again.

Examples:
  python -m benchmarks edges --json benchmarks/results/edges.json --docs docs/exchange.md
  python -m benchmarks edges --only resnet20
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.base.network import ShapedNetwork
from benchmarks.base.rows import load_rows, publish, save_rows
from benchmarks.exchange import allreduce, exchange, tls
from taihu.cli.planning.link_rate import parse_rate

__all__ = ["CASES", "Case", "table"]

_PAGE: Final = "measured by benchmarks.exchange.edges"
_HERE: Final = Path(__file__).parent
_MODEL_BYTES: Final = 102_228_128
"""Of ResNet-50's parameters, in fp32."""
_PORT: Final = 7073
_TURNS: Final = 2
_SAME_HOST_ROUNDS: Final = 40

Times = Mapping[str, Sequence[float]]
"""Seconds of rounds, by who made them: `ours`, and who it is compared with."""


@dataclass(frozen=True)
class Case:
    """A bound on an exchange.

    Attributes:
        name: of the row.
        measure: the seconds of one turn.
        bounds: the most, in times of each that it is compared with; of `at most` in seconds.
    """

    name: str
    measure: Callable[[], Times]
    bounds: Mapping[str, float]


def _exchange(model: str, size: tuple[int, int], rate: str, rounds: int, *extra: str) -> Times:
    row = exchange.measure(model, size, rate, rounds, list(extra))
    return {"ours": row["all_seconds"]["own"], "floor": [row["floor_seconds"]]}


def _beside_sockets(rate: str, rounds: int) -> Times:
    return {**_exchange("resnet50", (1, 3), rate, rounds), "plain sockets": _plain_sockets(rate, 3, rounds)}


def _plain_sockets(rate: str, workers: int, rounds: int) -> list[float]:
    """The first worker's rounds by `plain_sockets.py`."""
    with ShapedNetwork(1 + workers, parse_rate(rate)) as network:
        place = [network.address(0), str(_PORT), str(workers), str(_MODEL_BYTES), str(rounds)]
        program = [sys.executable, "-P", str(_HERE / "plain_sockets.py")]
        roles = ["server", *["worker"] * workers]
        processes = [
            subprocess.Popen(network.command(host, *program, role, *place), stdout=subprocess.PIPE, text=True)
            for host, role in enumerate(roles)
        ]
        told = [process.communicate()[0] for process in processes]
    return [float(seconds) for seconds in json.loads(told[1])]


def _ring(rate: str, ranks: int, size: float, rounds: int) -> Times:
    (row,) = allreduce.measure(rate, ranks, f"{size:g}", rounds, ["--against=gloo"])
    floor_s = size * 1e6 * 2 * (ranks - 1) / ranks * 8 / parse_rate(rate)
    return {"ours": [row["seconds"]["median"]], "Gloo": [row["gloo_seconds"]["median"]], "floor": [floor_s]}


def _sealed(rate: str, rounds: int) -> Times:
    with tempfile.TemporaryDirectory() as folder:
        sealed = exchange.measure(
            "resnet50", (1, 3), rate, rounds, ["--set=exchange.transport=auto", *tls.certificates(folder)]
        )
    plain = exchange.measure("resnet50", (1, 3), rate, rounds, ["--set=exchange.transport=auto"])
    return {"ours": sealed["all_seconds"]["own"], "plain text": plain["all_seconds"]["own"]}


def _same_host(ranks: int, size: float) -> Times:
    rounds = _SAME_HOST_ROUNDS if size < 100 else 10
    (row,) = allreduce.measure("same-host", ranks, f"{size:g}", rounds, [])
    return {"ours": [row["seconds"]["median"]], **_openmpi(ranks, round(size * 1e6), rounds)}


def _openmpi(ranks: int, size: int, rounds: int) -> dict[str, list[float]]:
    """The median of MPI_Allreduce over shared memory; nothing without OpenMPI."""
    compiler, launcher = shutil.which("mpicc"), shutil.which("mpirun")
    if compiler is None or launcher is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/mpi_allreduce"
        made = subprocess.run([compiler, "-O2", "-o", program, str(_HERE / "mpi_allreduce.c")], check=False)
        if made.returncode:
            return {}
        command = [launcher, "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,vader", "-n", str(ranks)]
        done = subprocess.run(
            [*command, program, str(size), str(rounds)], check=True, stdout=subprocess.PIPE, text=True
        )
    return {"OpenMPI": [float(done.stdout)]}


_GRPC: Final = "--set=exchange.transport=grpc"
CASES: Final = (
    *(
        Case(
            f"ResNet-20, {size[0]} + {size[1]}, {rate}",
            partial(_exchange, "resnet20", size, rate, rounds),
            {"floor": 1.12},
        )
        for size in ((1, 3), (2, 2))
        for rate, rounds in (("100mbit", 12), ("1gbit", 60))
    ),
    Case("ResNet-50, 1 + 3, 1gbit", partial(_exchange, "resnet50", (1, 3), "1gbit", 6), {"floor": 1.02}),
    Case("ResNet-50, 1 + 3, 10gbit", partial(_beside_sockets, "10gbit", 20), {"plain sockets": 1.0, "at most": 0.36}),
    Case("the same by gRPC", partial(_exchange, "resnet50", (1, 3), "10gbit", 15, _GRPC), {"at most": 0.6}),
    Case("ring of 4, 61 MB, 10gbit", partial(_ring, "10gbit", 4, 60.97, 10), {"Gloo": 1 / 1.3, "floor": 2.0}),
    *(
        Case(f"ResNet-50 under TLS, {rate}", partial(_sealed, rate, rounds), {"plain text": 1 / share})
        for rate, rounds, share in (("1gbit", 5, 0.98), ("10gbit", 15, 0.9))
    ),
    *(
        Case(
            f"{ranks} ranks of one host, {size:g} MB",
            partial(_same_host, ranks, size),
            {"OpenMPI": 1.0, **({"at most": 50e-6} if size < 0.1 else {})},
        )
        for ranks in (2, 4)
        for size in (0.064, 0.1, 1, 10, 60.97, 244)
    ),
)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as Markdown, a line for each bound."""
    lines = ["| exchange | ms | beside | ms | ratio | at most | met |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        ours = median(row["seconds"]["ours"])
        for other, most in row["bounds"].items():
            head = f"| {row['name']} | {1e3 * ours:,.3f} "
            if other == "at most":
                lines.append(f"{head}| - | - | - | {1e3 * most:g} ms | {_met(ours <= most)} |")
            elif other in row["seconds"]:
                beside = median(row["seconds"][other])
                ratio = ours / beside
                lines.append(
                    f"{head}| {other} | {1e3 * beside:,.3f} | {ratio:.3f} | {most:.2f} | {_met(ratio <= most)} |"
                )
            else:
                lines.append(f"{head}| {other} | not here | - | {most:.2f} | - |")
    return "\n".join(lines)


def _met(is_met: bool) -> str:
    return "yes" if is_met else "no"


def _measure(case: Case, turns: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {}
    for _ in range(turns):
        for name, each in case.measure().items():
            seconds.setdefault(name, []).extend(each)
    return {"name": case.name, "seconds": seconds, "bounds": dict(case.bounds), "load": os.getloadavg()[0]}


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORDS", help="rows whose name has these words")
    parser.add_argument("--turns", type=int, default=_TURNS)
    parser.add_argument("--json", type=Path, help="write the rows, and measure those that it lacks")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    rows = load_rows(options.json)
    for case in CASES:
        if options.only.lower() in case.name.lower() and case.name not in [row["name"] for row in rows]:
            rows.append(_measure(case, options.turns))
            save_rows(options.json, rows)
            print("\n".join(table(rows[-1:]).splitlines()[2:]), flush=True)
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
