"""The process whose forks the tests start; a program, see `support/commands.py`.

It imports everything once, and starts no thread.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import socket
import sys
from contextlib import suppress
from pathlib import Path

from taihu.core.job import Job
from taihu.core.process.forking import Streams, fork_command
from taihu.core.process.programs.preparation import importing_much, prepare_process
from taihu.kernels import group_search
from taihu.local.processes.processes import prepare_to_fork
from taihu.worker.first_step import load_first_step

_COMMANDS = (
    *("taihu.__main__", "taihu.cli.main", "taihu.cli.train", "taihu.local.run", "taihu.local.training"),
    *("taihu.ps_server.__main__", "taihu.worker.__main__", "taihu.core.job.reference", "taihu.worker.preflight"),
)
_LARGEST_REQUEST = 1 << 18


def main() -> None:
    """Serve the socket that is this program's stdin until its other end is closed."""
    prepare_process(os.environ)
    sys.path.append(str(Path(__file__).parents[1]))  # for programs of the tests
    with importing_much():
        prepare_to_fork()
        for module in _COMMANDS:
            importlib.import_module(module)
    # What nearly every run needs is compiled or loaded once.
    load_first_step(Job())
    group_search.warm_up()
    gc.freeze()
    with socket.socket(fileno=os.dup(0)) as requests, selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is not None:
                    selector.unregister(key.fileobj)
                    _tell_end(*key.data)
                elif not _take_request(requests, selector):
                    return


def _take_request(requests: socket.socket, selector: selectors.BaseSelector) -> bool:
    """Fork what is asked for and tell its pid; false when nobody is there any more."""
    message, descriptors, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 4)
    if not message:
        return False
    *streams, told = descriptors
    request = json.loads(message)
    pid = fork_command(
        request["module"],
        request["arguments"],
        Streams(*streams),
        environment=request["environment"],
        folder=Path(request["folder"]),
    )
    for each in streams:
        os.close(each)
    _tell(told, pid)
    ended = os.pidfd_open(pid)
    selector.register(ended, selectors.EVENT_READ, (pid, ended, told))
    return True


def _tell_end(pid: int, ended: int, told: int) -> None:
    _tell(told, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os.close(ended)
    os.close(told)


def _tell(told: int, number: int) -> None:
    with suppress(BrokenPipeError):  # who asked does not want to know
        os.write(told, f"{number}\n".encode())


if __name__ == "__main__":
    main()
