"""PyTorch loops over shaped links: `python -m benchmarks torch --help`.

Three workers with a host each (network namespaces with shaped links, as root; --workers for another number) make the
same steps by several ways in turns, in one process each: without any exchange, with a barrier in its place, by
DistributedDataParallel over Gloo, plain, with the fp16 hook and with the PowerSGD hook (rank 1), and by taihu's
adapter, dense around a ring or sparse, or through a server on a host of its own. Rows that the file of --json holds
are not measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from benchmarks.base.network import ShapedNetwork, run_torch_workers
from benchmarks.base.rows import load_rows, publish, save_rows

__all__ = ["measure", "table"]

_PAGE: Final = "measured by benchmarks.pytorch.torch"
_WORKERS: Final = 3
_RATES: Final = MappingProxyType({"10 Mbit/s": 10e6, "100 Mbit/s": 100e6, "1 Gbit/s": 1e9})
_DLGS: Final = MappingProxyType({"TAIHU_COMPRESSION__METHOD": "dlgs", "TAIHU_COMPRESSION__DENSITY": "0.01"})
_BY_SERVER: Final = "dlgs, 0.01, int4 both ways by a server"
_EXCHANGES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "dense": MappingProxyType({}),
        "dlgs, 0.01": _DLGS,
        _BY_SERVER: MappingProxyType(
            {
                **_DLGS,
                "TAIHU_COMPRESSION__VALUE_TYPE": "int4",
                "TAIHU_COMPRESSION__DOWNLINK_VALUE_TYPE": "int4",
            }
        ),
    }
)
_COLUMNS: Final = ("no exchange", "only a barrier", "DDP", "DDP, fp16", "DDP, PowerSGD", "taihu")

Wanted = tuple[str, str, str]

_RATIOS: Final = ("to no exchange", "to a barrier", "DDP to it", "best hook to it")


def measure(wanted: Wanted, workers: int, steps: int, rounds: int) -> dict[str, Any]:
    """A row of a model, a rate and an exchange: median seconds of a step by way."""
    model, rate, exchange = wanted
    hosts = workers + (exchange == _BY_SERVER)
    with tempfile.TemporaryDirectory() as name, ShapedNetwork(hosts, _RATES[rate]) as network:
        result = Path(name) / "times.json"
        command = [sys.executable, "-m", "benchmarks.pytorch.torch_ways", "--model", model, "--json", str(result)]
        command += ["--steps", str(steps), "--rounds", str(rounds)]
        run_torch_workers(network, command, _EXCHANGES[exchange], has_server=exchange == _BY_SERVER)
        times = json.loads(result.read_text())
    return {"model": model, "rate": rate, "exchange": exchange, "workers": workers, "times": times}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown, in milliseconds, and the ratios to no exchange, plain DDP and the best hook."""
    lines = [
        f"| model, link, taihu's exchange | {' | '.join((*_COLUMNS, *_RATIOS))} |",
        f"|---|{'---|' * (len(_COLUMNS) + len(_RATIOS))}",
    ]
    for row in rows:
        of = {name: row["times"][name]["median"] for name in _COLUMNS}
        ours, best = of["taihu"], min(of["DDP, fp16"], of["DDP, PowerSGD"])
        cells = [f"{1e3 * of[name]:.1f}" for name in _COLUMNS]
        what = f"{row['model']}, {row['rate']}, {row['exchange']}"
        workers = "" if row["workers"] == _WORKERS else f", {row['workers']} workers"
        ratios = [
            f"{ours / of['no exchange']:.2f}",
            f"{ours / of['only a barrier']:.2f}",
            f"{of['DDP'] / ours:.2f}",
            f"{best / ours:.2f}",
        ]
        lines.append(f"| {what}{workers} | {' | '.join([*cells, *ratios])} |")
    return "\n".join(lines)


def _wanted() -> Iterator[Wanted]:
    for model in ("resnet20", "vgg16"):
        for rate in _RATES:
            for exchange in _EXCHANGES:
                yield model, rate, exchange


def main() -> None:
    """Measure the rows that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="WORDS", default="", help="rows whose name has these words")
    parser.add_argument("--workers", type=int, default=_WORKERS)
    parser.add_argument("--steps", type=int, default=5, help="of each way in a round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", type=Path, help="write the rows, and measure those that it lacks")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    rows = load_rows(options.json)
    known = {(row["model"], row["rate"], row["exchange"]) for row in rows if row["workers"] == options.workers}
    for wanted in _wanted():
        if wanted not in known and options.only in ", ".join(wanted):
            rows.append(measure(wanted, options.workers, options.steps, options.rounds))
            save_rows(options.json, rows)
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
