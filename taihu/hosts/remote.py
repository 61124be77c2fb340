"""The end of a launch on one host: `python -m taihu.hosts.remote`, which the launcher starts by ssh.

It starts and ends processes as it is told, and tells what they write and how they end. When its orders end, by the
launcher's death or the connection's, or when nothing is heard for a minute, it ends all of them.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from taihu.core.base.errors import TaihuError
from taihu.core.base.whole_file import make_folder
from taihu.core.process.entry import InterruptedRunError, raise_on_terminate
from taihu.core.process.lives import passing_folder
from taihu.core.security.token import Token
from taihu.core.system.signals import Signals
from taihu.core.wire.base.address import free_port
from taihu.hosts.frames import FOLDER, SUPERVISOR
from taihu.hosts.leavings import Leavings
from taihu.hosts.looking import facts_of
from taihu.hosts.streams import LauncherGoneError, Streams
from taihu.local.processes.processes import LocalProcesses

_LOOK_S: Final = 0.05
_LAST_S: Final = 2.0


Orders = Mapping[str, Callable[..., object]]
"""Functions by the names of the orders that have them called."""

_ALWAYS: Final[Orders] = {
    "beat": lambda: None,
    "is_there": lambda path: Path(path).exists(),
    "port": free_port,
}


class _Host:
    """Processes of this host, and the orders about them; `answers` are those of orders that ask for one."""

    def __init__(self, streams: Streams, processes: LocalProcesses, folder: Path) -> None:
        self._streams = streams
        self._processes = processes
        self._folder = folder
        self._leavings = Leavings(folder, processes, streams)
        self.is_over = False
        self.orders: Orders = {
            **_ALWAYS,
            "file": self._file,
            "run": self._run,
            "start": self._start,
            "listen": self._listen,
            "signal": lambda name, number: self._processes.signal(name, Signals(number)),
            "settle": self._processes.settle,
            "dismiss": self._dismiss,
            "stop": self._stop,
        }

    def look(self) -> None:
        """Tell what has happened since the last look."""
        self._processes.end_stopped()
        self._leavings.tell()

    def _file(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)

    def _run(
        self, name: str, command: list[str], environment: dict[str, str], folder: str | None, *, is_shown: bool
    ) -> None:
        if folder is not None:
            make_folder(Path(folder))
        own = {"TAIHU_LOG": str(self._processes.log_of(name)), "PYTHONUNBUFFERED": "1"}
        environment = {**self._processes.environment(), **self._here(environment), **own}
        self._leavings.begin(name)
        self._processes.run(name, self._words(command), environment, is_shown=is_shown)

    def _start(self, name: str, module: str, arguments: list[str]) -> None:
        self._leavings.begin(name)
        self._processes.start(name, module, self._words(arguments))

    def _listen(self, name: str, module: str, arguments: list[str]) -> str:
        self._leavings.begin(name)
        return self._processes.start_listening(name, module, self._words(arguments))

    def _dismiss(self, name: str) -> None:
        if name in self._processes.names:
            self._processes.dismiss(name)
        self._leavings.forget(name)

    def _stop(self, grace_s: float) -> None:
        self._processes.stop(grace_s)
        self._leavings.tell()
        self.is_over = True

    def _words(self, words: list[str]) -> list[str]:
        return [word.replace(FOLDER, str(self._folder)).replace(SUPERVISOR, str(os.getpid())) for word in words]

    def _here(self, environment: Mapping[str, str]) -> dict[str, str]:
        return dict(zip(environment, self._words([*environment.values()]), strict=True))


def main() -> None:
    """Serve a launcher until it is done, or gone."""
    streams = Streams()
    try:
        raise_on_terminate()
        _serve(streams)
    except (LauncherGoneError, InterruptedRunError):
        sys.exit(1)
    except TaihuError as error:
        streams.complain(f"error: {error}\n")
        sys.exit(error.exit_code)
    except BaseException:
        streams.complain(traceback.format_exc())
        raise


def _serve(streams: Streams) -> None:
    look = _awaited(streams, "look")
    has_folder = False
    with suppress(OSError):
        os.chdir(look["folder"])
        has_folder = True
    streams.say(facts=asdict(facts_of(Path(look["script"]), has_folder=has_folder)))
    opening = _awaited(streams, "open")
    os.environ.update(opening["variables"])
    token = None if opening["token"] is None else Token(opening["token"])
    with passing_folder() as folder:
        logs = folder / "logs"
        logs.mkdir()
        with LocalProcesses(
            logs, fork=opening["fork"], lost_after_s=opening["lost_after_s"], token=token
        ) as processes:
            host = _Host(streams, processes, folder)
            while not host.is_over:
                if (order := streams.order(_LOOK_S)) is not None:
                    _carry_out(streams, host.orders, order)
                host.look()
    streams.end(_LAST_S)


def _awaited(streams: Streams, name: str) -> dict[str, Any]:
    """The order of this name, until which there is little to be done."""
    while True:
        order = streams.order(_LOOK_S)
        if order is not None and order["order"] == name:
            return order
        if order is not None:
            _carry_out(streams, _ALWAYS, order)


def _carry_out(streams: Streams, orders: Orders, order: dict[str, Any]) -> None:
    """Do as an order says; where the launcher waits for an answer it also gets what goes wrong."""
    number, name = order.pop("answer", None), order.pop("order")
    try:
        value = orders[name](**order)
    except (TaihuError, OSError) as error:
        if number is None:
            raise
        streams.say(answer=number, error=str(error))
        return
    if number is not None:
        streams.say(answer=number, value=value)


if __name__ == "__main__":
    main()
