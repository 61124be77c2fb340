"""A parameter server and its workers by plain sockets: what a hundred lines without faults, plans or checks take.

Each worker sends its gradient in frames of 512 KiB over one connection. The server adds each frame up as soon as all
have sent it, and sends the sum back. `python -P plain_sockets.py server|worker HOST PORT WORKERS BYTES ROUNDS`; the
first worker prints the seconds of each round as JSON.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from queue import SimpleQueue
from threading import Lock, Thread

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]

_FRAME_VALUES = (512 << 10) // 4
_WARM_UP = 2
_LONGEST_S = 60.0


def _frames(values: int) -> list[slice]:
    return [slice(begin, min(begin + _FRAME_VALUES, values)) for begin in range(0, values, _FRAME_VALUES)]


def _receive(connection: socket.socket, place: Values) -> None:
    view = place.data.cast("B")
    while view:
        count = connection.recv_into(view, 0, socket.MSG_WAITALL)
        if not count:
            raise ConnectionError("the other side has ended")
        view = view[count:]


def _send_all(connection: socket.socket, sums: Values, frames: list[slice], due: SimpleQueue[int]) -> None:
    while (frame := due.get()) >= 0:
        connection.sendall(sums[frames[frame]].data.cast("B"))


class Server:
    """Sums of the frames of all workers, whose connections have a thread for each direction."""

    def __init__(self, connections: list[socket.socket], values: int, rounds: int) -> None:
        self._connections, self._rounds, self._frames = connections, rounds, _frames(values)
        self._gradients = np.zeros((len(connections), values), dtype=np.float32)
        self._sums = np.zeros(values, dtype=np.float32)
        self._there = [0] * len(self._frames)
        self._adding = Lock()
        self._due: list[SimpleQueue[int]] = [SimpleQueue() for _ in connections]

    def run(self) -> None:
        """Serve all rounds."""
        threads = [Thread(target=self._take, args=(rank,)) for rank in range(len(self._connections))]
        for connection, due in zip(self._connections, self._due, strict=True):
            threads.append(Thread(target=_send_all, args=(connection, self._sums, self._frames, due)))
        for thread in threads:
            thread.start()
        for thread in threads[: len(self._connections)]:
            thread.join()
        for due in self._due:
            due.put(-1)
        for thread in threads:
            thread.join()

    def _take(self, rank: int) -> None:
        for _ in range(self._rounds):
            for number, frame in enumerate(self._frames):
                _receive(self._connections[rank], self._gradients[rank, frame])
                with self._adding:
                    self._there[number] += 1
                    if self._there[number] == len(self._connections):
                        self._there[number] = 0
                        np.sum(self._gradients[:, frame], axis=0, out=self._sums[frame])
                        for due in self._due:
                            due.put(number)


def serve(host: str, port: int, workers: int, values: int, rounds: int) -> None:
    """Be the server."""
    with socket.create_server((host, port)) as listener:
        connections = [listener.accept()[0] for _ in range(workers)]
    Server(connections, values, rounds).run()
    for connection in connections:
        connection.close()


def work(host: str, port: int, values: int, rounds: int) -> list[float]:
    """Be a worker; the seconds of each round."""
    frames, seconds = _frames(values), []
    gradient, parameters = np.ones(values, dtype=np.float32), np.zeros(values, dtype=np.float32)
    with _connected(host, port) as connection:
        for _ in range(rounds):
            begin_s = time.monotonic()
            sending = Thread(target=connection.sendall, args=(gradient.data.cast("B"),))
            sending.start()
            for frame in frames:
                _receive(connection, parameters[frame])
            sending.join()
            seconds.append(time.monotonic() - begin_s)
    return seconds


def _connected(host: str, port: int) -> socket.socket:
    until_s = time.monotonic() + _LONGEST_S
    while True:
        try:
            return socket.create_connection((host, port), timeout=None)
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.05)


def main(arguments: list[str]) -> None:
    """Be what the command line says."""
    role, host, *numbers = arguments
    port, workers, size, rounds = map(int, numbers)
    if role == "server":
        serve(host, port, workers, size // 4, rounds + _WARM_UP)
    else:
        print(json.dumps(work(host, port, size // 4, rounds + _WARM_UP)[_WARM_UP:]))


if __name__ == "__main__":
    main(sys.argv[1:])
