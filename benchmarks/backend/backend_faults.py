"""A rank is killed at different moments: `taihu` and Gloo, whether and when the others hear of it, and go on.

    python -m benchmarks backend_faults [--kills 5] [--gloo-kills 1] [--json FILE] [--docs PAGE]

Three ranks on this machine. The survivors' errors are timed from the kill, or from the call where they were in none;
then they make a group of two in the same processes and train in it, to losses that one process computes. Gloo's
default timeout is 30 minutes; here it is 20 s. Needs torch.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch.distributed as dist

from benchmarks.backend.ranks_with_faults import MOMENTS, RANKS, Fault, losses_of_one_process, run_rank
from benchmarks.base.rows import load_rows, publish, save_rows

__all__ = ["main", "run_fault", "table"]

_PAGE: Final = "measured by benchmarks.backend.backend_faults"
_WAYS: Final[tuple[tuple[str, bool], ...]] = (("taihu", False), ("taihu", True), ("gloo", False))
_LONGEST_S: Final = 60.0
_NOTHING: Final = "nothing"
_OF_STORE: Final = "barrier, rank 0 with its TCPStore"
_STOPPED: Final = "barrier, stopped (SIGSTOP), timeout 3 s"
_CONTEXT: Final = multiprocessing.get_context("forkserver")


def _fault(backend: str, by_ring: bool, moment: str, port: int) -> Fault:
    if moment == _OF_STORE:
        return Fault(backend, by_ring, "barrier", port, own_store=True, killed=0)
    if moment == _STOPPED:
        return Fault(backend, by_ring, "barrier", port, is_stopped=True, timeout_s=3.0)
    return Fault(backend, by_ring, moment, port)


def _next(pipe: Connection, what: str, limit_s: float = _LONGEST_S) -> Any:
    """The next word of a rank, which is of the kind `what`."""
    if not pipe.poll(limit_s):
        raise TimeoutError(f"no {what} within {limit_s:g} s")
    kind, value = pipe.recv()
    if kind != what:
        raise SystemExit(f"error: {kind} instead of {what}: {value}")
    return value


def run_fault(fault: Fault, wait_s: float) -> dict[str, Any]:
    """The errors and losses of the others, when a rank is killed `wait_s` after all have come to the moment."""
    pipes = [_CONTEXT.Pipe() for _ in range(RANKS)]
    ranks = [_CONTEXT.Process(target=run_rank, args=(rank, fault, pipe)) for rank, (_, pipe) in enumerate(pipes)]
    for rank in ranks:
        rank.start()
    for _, pipe in pipes:
        pipe.close()
    own = [pipe for pipe, _ in pipes]
    try:
        return _watched(fault, ranks, own, wait_s)
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def _watched(fault: Fault, ranks: Sequence[Any], pipes: Sequence[Connection], wait_s: float) -> dict[str, Any]:
    for pipe in pipes:
        _next(pipe, "ready")
    if fault.moment == "init_process_group":
        killed_s = _next(pipes[fault.killed], "dies")
    else:
        time.sleep(wait_s)
        os.kill(ranks[fault.killed].pid, signal.SIGSTOP if fault.is_stopped else signal.SIGKILL)
        killed_s = time.monotonic()
    if fault.moment == "no operation":
        time.sleep(1.0)
        killed_s = time.monotonic()
        for rank in fault.left:
            pipes[rank].send("killed")
    told: dict[str, list[Any]] = {"waits_s": [], "errors": [], "leaves_s": [], "losses": []}
    try:
        for rank in fault.left:
            at_s, error = _next(pipes[rank], "error")
            told["waits_s"].append(at_s - killed_s)
            told["errors"].append(error)
        told["leaves_s"] = [_next(pipes[rank], "left") for rank in fault.left]
        told["losses"] = [_next(pipes[rank], "losses") for rank in fault.left]
    except (EOFError, TimeoutError) as error:
        if len(told["waits_s"]) < len(fault.left):
            told["waits_s"].append(_LONGEST_S)
        told["errors"].append(f"{_NOTHING}: {error!r}")
    return told


def _goes_on(fault: Fault, told: dict[str, Any]) -> bool:
    return bool(told["losses"]) and np.allclose(told["losses"], losses_of_one_process(fault.left), rtol=1e-5)


def _measure(way: tuple[str, bool], moment: str, kills: int, seed: int) -> dict[str, Any]:
    drawn = random.Random(seed)  # noqa: S311 - no secret
    waits, leaves, errors, gone_on, named = [], [], [], 0, 0
    for _ in range(kills):
        # The benchmark hosts the store, as torchrun does, unless rank 0 is to.
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=_LONGEST_S))
        fault = _fault(*way, moment, store.port)
        if fault.own_store:
            del store
        told = run_fault(fault, drawn.uniform(0.1, 0.3))
        waits.append(max(told["waits_s"]))
        leaves += told["leaves_s"]
        errors += told["errors"]
        gone_on += _goes_on(fault, told)
        named += all(f"rank {fault.killed}" in error for error in told["errors"])
    return {
        "backend": way[0],
        "by_ring": way[1],
        "moment": moment,
        "waits_s": waits,
        "leaves_s": leaves,
        "errors": sorted(set(errors)),
        "named": named,
        "gone_on": gone_on,
    }


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    kills = len(row["waits_s"])
    median, most = statistics.median(row["waits_s"]), max(row["waits_s"])
    if median >= _LONGEST_S:
        return f"no error in {_LONGEST_S:.0f} s"
    words = [f"{median:.2f} s, {most:.2f} s"]
    if all(error == "no error" for error in row["errors"]):
        words.append("no error")
    elif row["named"] < kills:
        words.append("not named" if not row["named"] else f"named in {row['named']} of {kills}")
    if row["gone_on"] < kills:
        words.append(f"goes on in {row['gone_on']} of {kills}")
    return ", ".join(words)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a page shows them: the median and the longest of the last survivor's waits."""
    columns = ("the rank is killed in", "taihu, shared memory", "taihu, TCP ring", "Gloo")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    by_way = {(row["moment"], row["backend"], row["by_ring"]): row for row in rows}
    for moment in dict.fromkeys(row["moment"] for row in rows):
        cells = [_cell(by_way.get((moment, *way))) for way in _WAYS]
        lines.append(f"| {moment} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure the rows that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    moments = (*MOMENTS, _OF_STORE, _STOPPED)
    parser.add_argument("--moments", nargs="+", choices=moments, default=list(moments), metavar="MOMENT")
    parser.add_argument("--kills", type=int, default=5, help="of each moment, over taihu, on each of its ways")
    parser.add_argument(
        "--gloo-kills", type=int, default=1, help="of each moment, over Gloo, whose timeouts take long"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the rows, and measure those that it lacks")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    _CONTEXT.set_forkserver_preload(["benchmarks.backend.ranks_with_faults"])
    rows = load_rows(options.json)
    known = {(row["moment"], row["backend"], row["by_ring"]) for row in rows}
    for moment in options.moments:
        for way in _WAYS:
            if (moment, *way) in known:
                continue
            kills = options.gloo_kills if way[0] == "gloo" else options.kills
            rows.append(_measure(way, moment, kills, options.seed))
            save_rows(options.json, rows)
            print(f"{moment}, {way}: {_cell(rows[-1])}", rows[-1]["errors"], file=sys.stderr, flush=True)
    publish(table(rows), _PAGE, options.docs)


if __name__ == "__main__":
    main()
