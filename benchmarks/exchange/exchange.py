"""The exchange of steps over shaped links and on loopback: `python -m benchmarks exchange --help`.

Every role runs on a host of its own (see `base.network`). Prints one row for each setting and, with --json,
writes the rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.base.network import ShapedNetwork, run_together
from taihu.cli.planning.link_rate import parse_rate

__all__ = ["measure"]

_PORT = 7070


def measure(model: str, size: tuple[int, int], rate: str, rounds: int, extra: list[str]) -> dict[str, Any]:
    """One row: all roles on hosts of their own, links at `rate`; or on this one, by `loopback` or `same-host`.

    `size` is servers and workers; without servers, workers stand around a ring. Where `extra` does not say otherwise,
    values take connections beside gRPC, on `same-host` shared memory.
    """
    servers, workers = size
    flags = ["--model", model, "--workers", str(workers), "--rounds", str(rounds), *extra]
    flags += ["--servers", str(servers)] if servers else ["--set=exchange.kind=ring"]
    command = [sys.executable, "-P", "-m", "taihu", "dev", "bench", "exchange", *flags]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        if not any(item.startswith("--set=exchange.transport=") for item in extra):
            command.append(f"--set=exchange.transport={'same-host' if rate == 'same-host' else 'tcp'}")
        if rate in ("loopback", "same-host"):
            subprocess.run([*command, "--json", str(result)], check=True, stdout=subprocess.DEVNULL)
        else:
            _measure_shaped(command, servers, workers, rate, result)
        row: dict[str, Any] = json.loads(result.read_text())
    return {**row, "rate": rate}


def _measure_shaped(command: list[str], servers: int, workers: int, rate: str, result: Path) -> None:
    with ShapedNetwork(servers + workers, parse_rate(rate)) as network:
        address = f"{network.address(0)}:{_PORT}"
        roles = [
            network.command(i, *command, "--role", "server", "--rank", str(i), "--coordinator", address)
            for i in range(servers)
        ]
        for rank in range(workers):
            role = [*command, "--role", "worker", "--rank", str(rank), "--coordinator", address]
            if rank == 0:
                role += ["--rate", rate, "--json", str(result)]
            roles.append(network.command(servers + rank, *role))
        run_together(roles)


def _parse_size(text: str) -> tuple[int, int]:
    servers, workers = text.split("+")
    return int(servers), int(workers)


def _row(result: dict[str, Any]) -> str:
    seconds, floor = result["seconds_per_round"], result["floor_seconds"]
    bound = f"{floor:.3f} | {seconds['median'] / floor:.3f}" if floor else "- | -"
    return (
        f"| {result['model']} | {result['servers']} + {result['workers']} | {result['rate']} "
        f"| {result['path']} | {seconds['min']:.3f} | {seconds['median']:.3f} | {seconds['max']:.3f} | {bound} |"
    )


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet50", help="comma-separated layer tables")
    parser.add_argument("--sizes", default="1+3,2+2", help="comma-separated servers+workers; 0+4 is a ring")
    parser.add_argument("--rates", default="1gbit,loopback,same-host", help="link rates, loopback, same-host")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--set", action="append", default=[], help="passed on to the bench")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    extra = [f"--set={item}" for item in options.set]
    rows = []
    print("| model | servers + workers | links | path | min s | median s | max s | floor s | median / floor |")
    print("|---|---|---|---|---|---|---|---|---|")
    for model in options.models.split(","):
        for size in [_parse_size(text) for text in options.sizes.split(",")]:
            for rate in options.rates.split(","):
                rows.append(measure(model, size, rate, options.rounds, extra))
                print(_row(rows[-1]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
