"""A parameter server by torch.distributed.rpc, and its workers, by the pattern of PyTorch's tutorial on batches.

The server answers all calls of a step together, when the last worker's gradient has come. `python -P
torch_rpc_server.py RANK RANKS HOST PORT SIZES ROUNDS`: rank 0 is the server, and rank 1 prints the seconds of each
round as JSON. SIZES are numbers of values, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from functools import cache
from threading import Lock
from typing import Any

import torch
from torch.distributed import rpc

_WARM_UP = 2
_LONGEST_S = 600.0
_MAKING = Lock()


class Server:
    """Parameters, and the sums of the gradients of a step."""

    def __init__(self, sizes: list[int], workers: int) -> None:
        self._workers, self._lock = workers, Lock()
        self._parameters = [torch.zeros(size) for size in sizes]
        self._sums = [torch.zeros(size) for size in sizes]
        self._there = 0
        self._step: Any = torch.futures.Future()

    @staticmethod
    @rpc.functions.async_execution  # type: ignore[untyped-decorator, unused-ignore]
    def update(server: Any, gradients: list[torch.Tensor]) -> Any:
        """Add a worker's gradients; all workers have the parameters when each has."""
        self = server.local_value()
        with self._lock:
            for total, gradient in zip(self._sums, gradients, strict=True):
                total.add_(gradient)
            self._there += 1
            step = self._step
            if self._there == self._workers:
                for parameter, total in zip(self._parameters, self._sums, strict=True):
                    parameter.sub_(total, alpha=1e-3)
                    total.zero_()
                self._there, self._step = 0, torch.futures.Future()
                step.set_result(self._parameters)
        return step


def main(arguments: list[str]) -> None:
    """Be what the command line says."""
    rank, ranks = int(arguments[0]), int(arguments[1])
    host, port, sizes, rounds = arguments[2], arguments[3], json.loads(arguments[4]), int(arguments[5])
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://{host}:{port}", rpc_timeout=_LONGEST_S, _transports=["uv"], _channels=["basic"]
    )
    rpc.init_rpc(f"rank-{rank}", rank=rank, world_size=ranks, rpc_backend_options=options)
    if rank:
        gradients = [torch.ones(size) for size in sizes]
        # One server for all: the first worker makes it, the others find it there.
        server = rpc.rpc_sync("rank-0", _server, args=(tuple(sizes), ranks - 1))
        seconds = []
        for _ in range(_WARM_UP + rounds):
            begin_s = time.monotonic()
            rpc.rpc_sync("rank-0", Server.update, args=(server, gradients))
            seconds.append(time.monotonic() - begin_s)
        if rank == 1:
            print(json.dumps(seconds[_WARM_UP:]))
    rpc.shutdown()


@cache
def _made(sizes: tuple[int, ...], workers: int) -> Any:
    return rpc.RRef(Server(list(sizes), workers))


def _server(sizes: tuple[int, ...], workers: int) -> Any:
    """The server of this process, on whichever worker's call."""
    with _MAKING:
        return _made(sizes, workers)


if __name__ == "__main__":
    main(sys.argv[1:])
