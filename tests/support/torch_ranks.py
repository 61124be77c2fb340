"""Processes that are the ranks of a torch.distributed run: forks of one that has imported what takes long."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import taihu.torch.backend  # noqa: F401 - registers the backend

__all__ = ["RANKS", "on_ranks"]

RANKS = multiprocessing.get_context("forkserver")
RANKS.set_forkserver_preload(["taihu.torch.backend", "torch.nn.parallel", "torch.distributed.optim", "pytest"])

_LIMIT_S = 100.0


def on_ranks(size: int, folder: Path, work: Callable[..., Any], *args: Any, timeout_s: float = 60.0) -> list[Any]:
    """The answers of `work(rank, *args)` on all ranks of a run with the backend `taihu`; None of one that dies.

    Raises:
        AssertionError: with the text of what a rank raised.
    """
    store = f"file://{folder / 'store'}"
    pipes = [RANKS.Pipe(duplex=False) for _ in range(size)]
    ranks = [
        RANKS.Process(target=_run, args=(_Place(rank, size, store, timeout_s), pipe, work, args))
        for rank, (_, pipe) in enumerate(pipes)
    ]
    for rank in ranks:
        rank.start()
    for _, pipe in pipes:
        pipe.close()
    try:
        answers = [_answer(pipe) for pipe, _ in pipes]
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    failed = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(answers) if text]
    assert not failed, "\n".join(failed)
    return [result for _, result in answers]


def _answer(pipe: Connection) -> tuple[str, Any]:
    if not pipe.poll(_LIMIT_S):
        return "no answer", None
    try:
        text, result = pipe.recv()
        return text, result
    except EOFError:
        return "", None


class _Place(NamedTuple):
    rank: int
    size: int
    store: str
    timeout_s: float


def _run(place: _Place, pipe: Connection, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    limit = timedelta(seconds=place.timeout_s)
    try:
        dist.init_process_group(
            "taihu", init_method=place.store, rank=place.rank, world_size=place.size, timeout=limit
        )
        result = work(place.rank, *args)
        pipe.send(("", result))
        dist.destroy_process_group()
    except BaseException:
        pipe.send((traceback.format_exc(), None))
        raise
