"""A job beside connections that say nothing: `python -m benchmarks idle_connections`.

Half of the connections say nothing, the others a byte a second; they go to every port of a run's server and worker
on this machine, and come again when they are cut, twenty a second at most. Rounds of the same job without and
beside them take turns. Prints for each kind of round the median of its step times and the hash that it ends with;
exits with 1 where a hash differs or steps take more than 1.1 times as long. About two minutes.

Example:
  python -m benchmarks idle_connections --connections 1000 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.base.rows import save_rows
from taihu.core.process.programs.preparation import allow_open_files
from taihu.core.wire.base.address import free_port

__all__ = ["Strangers", "main"]

_HOST: Final = "127.0.0.1"
_TICK_S: Final = 0.05
_PER_TICK: Final = 1
_MOST_RATIO: Final = 1.1
_LONGEST_S: Final = 300.0
_JOB: Final = ("--servers", "1", "--workers", "1", "--set", "cluster.threads=1", "--set", "train.evaluate=false")


class Strangers:
    """Connections to some ports of 127.0.0.1, of which every second one says a byte a second.

    A context manager: the first ones are there when it is entered. Whoever is cut comes again. `cuts` counts that.
    """

    def __init__(self, ports: Sequence[int], connections: int) -> None:
        self.cuts = 0
        self._ports = ports
        self._most = connections
        self._opened = 0
        self._selector = selectors.DefaultSelector()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strangers", daemon=True)

    def __enter__(self) -> Self:
        for _ in range(self._most):
            self._open()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            self._close(key)
        self._selector.close()

    @property
    def connected(self) -> int:
        """The number of them now."""
        return len(self._selector.get_map())

    def _open(self) -> None:
        port = self._ports[self._opened % len(self._ports)]
        speaks = self._opened // len(self._ports) % 2 == 1
        self._opened += 1
        with suppress(OSError):  # nobody listens yet, or any more
            connection = socket.create_connection((_HOST, port), timeout=1.0)
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, speaks)

    def _close(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fileobj)
        assert isinstance(key.fileobj, socket.socket)  # noqa: S101
        key.fileobj.close()

    def _run(self) -> None:
        speak_s = time.monotonic()
        while not self._over.wait(_TICK_S):
            for key, _ in self._selector.select(0):
                self._hear(key)
            for _ in range(min(_PER_TICK, self._most - self.connected)):
                self._open()
            if time.monotonic() >= speak_s:
                speak_s += 1.0
                self._speak()

    def _hear(self, key: selectors.SelectorKey) -> None:
        assert isinstance(key.fileobj, socket.socket)  # noqa: S101
        try:
            if key.fileobj.recv(4096):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._close(key)
        self.cuts += 1

    def _speak(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data and isinstance(key.fileobj, socket.socket):
                with suppress(OSError):
                    key.fileobj.send(b"P")


@contextmanager
def _daemons(folder: Path, steps: int) -> Iterator[tuple[list[int], subprocess.Popen[str]]]:
    """A server, and a worker that trains beside it: their ports, and the worker."""
    ports = [free_port(_HOST) for _ in range(4)]
    coordinator, direct, server_page, worker_page = ports
    job = (*_JOB, "--set", f"train.steps={steps}", "--set", "exchange.transport=tcp")
    where = ("--bind", f"{_HOST}:{coordinator}", "--direct-port", str(direct), "--metrics-port", str(server_page))
    started = [_start("taihu.ps_server", folder, *job, *where)]
    found = ("--rank", "0", "--coordinator", f"{_HOST}:{coordinator}", "--metrics-port", str(worker_page))
    try:
        started.append(_start("taihu.worker", folder, *job, *found, "--json", "result.json"))
        yield ports, started[-1]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _start(module: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    with (folder / f"{module}.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=log,
            text=True,
        )


def measure(connections: int, steps: int) -> dict[str, Any]:
    """One round: the median of its step times in seconds, the hash, and how often strangers were cut."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _daemons(folder, steps) as (ports, worker), Strangers(ports, connections) as strangers:
            code = worker.wait(timeout=_LONGEST_S)
            connected, cuts = strangers.connected, strangers.cuts
        if code:
            raise RuntimeError((folder / "worker.log").read_text().splitlines()[-1])
        results = json.loads((folder / "result.json").read_text())
    return {
        "connections": connections,
        "connected": connected,
        "cuts": cuts,
        "seconds_per_step": results["seconds_per_step"]["median"],
        "parameters_sha256": results["parameters_sha256"],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 0 where all is as it should be."""
    text = __doc__ or ""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    allow_open_files()
    rows = []
    for _ in range(options.rounds):
        for connections in (0, options.connections):
            rows.append(measure(connections, options.steps))
            print(json.dumps(rows[-1]), flush=True)
    save_rows(options.json, rows)
    alone, beside = (
        median(row["seconds_per_step"] for row in rows if bool(row["connections"]) is busy) for busy in (False, True)
    )
    is_same = len({row["parameters_sha256"] for row in rows}) == 1
    print(f"step time beside them {beside / alone:.3f} of that alone; {'one hash' if is_same else 'HASHES DIFFER'}")
    return 0 if is_same and beside <= _MOST_RATIO * alone else 1


if __name__ == "__main__":
    sys.exit(main())
