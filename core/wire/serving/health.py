"""The health of a process: what its gRPC health service says, for the page that says it over HTTP as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, Final

from taihu.core.system.threads import Lock

ALIVE: Final = "/healthz"
"""The path that tells whether the process as a whole is well."""
READY: Final = "/readyz"
"""The path that tells whether its services are to be had, too."""

_Answer = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Health:
    """Whether a process is alive, and its services ready; thread-safe. At first it is neither."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._alive = self._ready = False

    def serve(self) -> None:
        """All is served from now on."""
        self._set(alive=True, ready=True)

    def retire(self) -> None:
        """The services are over; the process goes on to be as it is."""
        with self._lock:
            self._ready = False

    def stop(self) -> None:
        """The process serves nothing any more, until it serves again."""
        self._set(alive=False, ready=False)

    def _set(self, *, alive: bool, ready: bool) -> None:
        with self._lock:
            self._alive, self._ready = alive, ready

    def answers(self, path: str) -> bool | None:
        """Whether the answer to `ALIVE` or `READY` is yes; None for any other path."""
        with self._lock:
            return {ALIVE: self._alive, READY: self._ready}.get(path)


def with_health(page: _Answer, health: Health) -> _Answer:
    """`page`, a WSGI application, which tells `health` at its paths: 200 for yes, 503 for no."""

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        well = health.answers(environ.get("PATH_INFO", ""))
        if well is None:
            return page(environ, start_response)
        status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
        start_response(f"{status.value} {status.phrase}", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"ok\n" if well else b"not now\n"]

    return answer
