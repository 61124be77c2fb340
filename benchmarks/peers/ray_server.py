"""A parameter server as an actor of Ray, and workers as others, by the pattern of Ray's example of one.

`python -P ray_server.py RANK RANKS HOST PORT SIZES ROUNDS`: each rank is a node of its own; rank 0 has the server,
drives the rounds, and prints the seconds of each as JSON. SIZES are numbers of values, as JSON.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray

_WARM_UP = 2
_MEMORY_BYTES = 1_500_000_000
_LONGEST_S = 120.0


class Server:
    """The parameters."""

    def __init__(self, sizes: list[int]) -> None:
        self._parameters = [np.zeros(size, dtype=np.float32) for size in sizes]

    def update(self, *gradients: list[Any]) -> list[Any]:
        """Apply the gradients of all workers; the parameters."""
        for parameter, *of_workers in zip(self._parameters, *gradients, strict=True):
            np.subtract(parameter, 1e-3 * np.sum(of_workers, axis=0), out=parameter)
        return self._parameters


class Worker:
    """Gradients for parameters."""

    def __init__(self, sizes: list[int]) -> None:
        self._gradients = [np.ones(size, dtype=np.float32) for size in sizes]

    def gradients(self, parameters: list[Any]) -> list[Any]:
        """Those for the parameters, which have come here with the call."""
        assert len(parameters) == len(self._gradients)  # noqa: S101
        return self._gradients

    def has(self, parameters: list[Any]) -> int:
        """The number of parameters, when they are here."""
        return len(parameters)


def main(arguments: list[str]) -> None:
    """Be a node; the first one drives."""
    rank, ranks = int(arguments[0]), int(arguments[1])
    host, port, sizes, rounds = arguments[2], arguments[3], json.loads(arguments[4]), int(arguments[5])
    own = f"{host.rpartition('.')[0]}.{int(host.rpartition('.')[2]) + rank}"
    where = ["--head", f"--port={port}", "--include-dashboard=false"] if rank == 0 else [f"--address={host}:{port}"]
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        where += [f"--temp-dir={folder}"] if rank == 0 else []
        command = [str(Path(sys.executable).parent / "ray"), "start", "--block", f"--node-ip-address={own}", *where]
        command += ["--num-cpus=2", f"--object-store-memory={_MEMORY_BYTES}", "--disable-usage-stats"]
        command += [f"--resources={json.dumps({f'rank {rank}': 1})}"]
        # The nodes of the other ranks are ended by this signal, with all processes that they have.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        until_s = time.monotonic() + _LONGEST_S
        while True:
            node = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                if not rank:
                    print(json.dumps(_drive(own, port, ranks, sizes, rounds)), flush=True)
                    return
                node.wait()  # which ends where the first node is not there yet
            finally:
                node.terminate()
                node.wait()
            if time.monotonic() > until_s:
                raise TimeoutError(f"no node at {host}:{port} within {_LONGEST_S:g} s")


def _actor(kind: type, rank: int) -> Any:
    """An actor on the node of a rank."""
    return ray.remote(num_cpus=0, resources={f"rank {rank}": 0.1})(kind)


def _drive(host: str, port: str, ranks: int, sizes: list[int], rounds: int) -> list[float]:
    """The seconds of each round."""
    until_s = time.monotonic() + _LONGEST_S
    while True:
        try:
            ray.init(f"{host}:{port}", _node_ip_address=host, log_to_driver=False, logging_level="ERROR")
            break
        except ConnectionError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.5)
    while sum(node["Alive"] for node in ray.nodes()) < ranks:
        if time.monotonic() > until_s:
            raise TimeoutError(f"{ranks} nodes did not come within {_LONGEST_S:g} s")
        time.sleep(0.2)
    server = _actor(Server, 0).remote(sizes)
    workers = [_actor(Worker, rank).remote(sizes) for rank in range(1, ranks)]
    parameters, seconds = server.update.remote(), []
    ray.get([worker.has.remote(parameters) for worker in workers])
    for _ in range(_WARM_UP + rounds):
        begin_s = time.monotonic()
        parameters = server.update.remote(*(worker.gradients.remote(parameters) for worker in workers))
        ray.get([worker.has.remote(parameters) for worker in workers])
        seconds.append(time.monotonic() - begin_s)
    ray.shutdown()
    return seconds[_WARM_UP:]


if __name__ == "__main__":
    main(sys.argv[1:])
