"""A process that stands by to be forked: it has imported everything, and no other thread ever runs in it.

Who watches a run uses gRPC, and can fork no more. The spare process was forked before that. A daemon that it forks is
a child of the process that asked for it all the same: the one in between ends at once, and Linux gives its child to
the nearest ancestor that said it takes such (`PR_SET_CHILD_SUBREAPER`, prctl(2)).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NoReturn, Self

from taihu.core.process.forking import ForkedProcess, Streams, close_files_from, fork_command
from taihu.core.system.memory import c_library, freeze_objects
from taihu.core.system.processes import fork
from taihu.core.system.signals import SIG_DFL, SIGTERM, set_handler
from taihu.core.system.sockets import AF_UNIX, SOCK_SEQPACKET, Socket, recv_fds, send_fds, socketpair

_PR_SET_CHILD_SUBREAPER: Final = 36
_LARGEST_REQUEST: Final = 1 << 20


class SpareProcess:
    """Starts commands in forks of a process that was forked from this one, which had one thread then."""

    def __init__(self, pid: int, requests: Socket) -> None:
        self._pid = pid
        self._requests = requests

    @classmethod
    def stand_by(cls) -> Self | None:
        """Fork it; None where the system does not give its children to this process."""
        if c_library().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            return None
        ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        pid = fork()
        if pid == 0:
            ours.close()
            _serve(theirs)
        theirs.close()
        return cls(pid, ours)

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        stderr: int,
        environment: Mapping[str, str],
        *,
        stdout: int | None = None,
    ) -> ForkedProcess:
        """Run a command, as `ForkedProcess.start` does.

        Raises:
            OSError: the spare process is gone.
        """
        read, stdin = os.pipe()
        ours, write = os.pipe() if stdout is None else (None, os.dup(stdout))
        request = json.dumps([module, list(arguments), dict(environment)]).encode()
        try:
            send_fds(self._requests, [request], [read, write, stderr])
            answer = self._requests.recv(64)
        finally:
            os.close(read)
            os.close(write)
        if not answer:
            os.close(stdin)
            if ours is not None:
                os.close(ours)
            raise BrokenPipeError("the spare process has ended")
        return ForkedProcess(int(answer), os.fdopen(stdin, "wb"), None if ours is None else os.fdopen(ours, "rb"))

    def close(self) -> None:
        """End it; what it forked goes on."""
        self._requests.close()
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _serve(requests: Socket) -> NoReturn:
    """The whole life of the spare process; it ends when nobody can ask any more."""
    try:
        # Ctrl-C at a terminal is for the process that watches, as are the ends of pipes that it had opened.
        os.setsid()
        set_handler(SIGTERM, SIG_DFL)
        requests = _alone_with(requests)
        freeze_objects()
        while True:
            message, streams, _, _ = recv_fds(requests, _LARGEST_REQUEST, 3)
            if not message:
                break
            module, arguments, environment = json.loads(message)
            requests.send(str(_fork_orphan(module, arguments, Streams(*streams), environment)).encode())
            for each in streams:
                os.close(each)
    finally:
        os._exit(0)


def _alone_with(requests: Socket) -> Socket:
    """Close all files but the socket."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    kept = os.dup2(requests.detach(), 3)
    close_files_from(4)
    return Socket(fileno=kept)


def _fork_orphan(module: str, arguments: Sequence[str], streams: Streams, environment: Mapping[str, str]) -> int:
    """Fork a command whose parent has ended when this returns; its pid."""
    told, tell = os.pipe()
    between = fork()
    if between == 0:
        try:
            pid = fork_command(module, arguments, streams, environment=environment, new_session=True)
            os.write(tell, str(pid).encode())
        finally:
            os._exit(0)
    os.waitpid(between, 0)
    pid = int(os.read(told, 64))
    os.close(told)
    os.close(tell)
    return pid
