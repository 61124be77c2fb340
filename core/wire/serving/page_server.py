"""The HTTP server of the page of metrics and health: a bounded number of connections, each for a bounded time."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from typing_extensions import override

from taihu.core.security.security import Refusals
from taihu.core.system.sockets import (
    AF_INET6,
    IPPROTO_IPV6,
    IPV6_V6ONLY,
    MSG_PEEK,
    SHUT_RDWR,
    SO_REUSEADDR,
    SOL_SOCKET,
    family_of,
)
from taihu.core.system.threads import Thread, spawn
from taihu.core.wire.base.room import Room
from taihu.core.wire.serving.health import Health, with_health
from taihu.core.wire.serving.refusal_log import RefusalLog

_PLACES: Final = 16
_LONGEST_S: Final = 10.0
# The first byte of whoever begins a handshake; no line of HTTP begins so.
_TLS: Final = b"\x16"


class PageServer(ThreadingMixIn, WSGIServer):
    """Answers each connection in a thread of its own; one more than there is room for ends the oldest one.

    Whoever speaks TLS is sent away, and `refusals` are told.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: Any, handler: type[WSGIRequestHandler], refusals: Refusals) -> None:
        self.refusals = refusals
        self.refusal_log = RefusalLog()
        self.address_family = family_of(address[0])
        self._room = Room(_PLACES, _LONGEST_S)
        super().__init__(address, handler)

    @override
    def server_bind(self) -> None:
        if self.address_family == AF_INET6:
            self.socket.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 0)
        # WSGIServer asks for the host's name, which may take seconds, and needs it for nothing here.
        with suppress(OSError):
            self.socket.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    @override
    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._room.place(partial(request.shutdown, SHUT_RDWR)):
            super().process_request_thread(request, client_address)

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked has gone, or was sent away: that is its own affair."""

    @override
    def server_close(self) -> None:
        self._room.close()
        super().server_close()


class _Handler(WSGIRequestHandler):
    server: PageServer
    timeout = _LONGEST_S

    @override
    def handle(self) -> None:
        # A handshake has no end of a line, for which a request would be waited for.
        if self.connection.recv(1, MSG_PEEK) != _TLS:
            super().handle()
            return
        self.server.refusals.add("metrics", "tls")
        self.server.refusal_log.tell(
            "call refused",
            "tls",
            method="metrics",
            reason="tls",
            caller=self.address_string(),
            remedy="ask by http://",
        )

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def serve_page(
    registry: CollectorRegistry, health: Health, host: str, port: int, refusals: Refusals
) -> tuple[PageServer, Thread]:
    """Serve `registry` and `health` at `host`, an address, from now on; raises OSError where it cannot listen."""
    server = PageServer((host, port), _Handler, refusals)
    server.set_app(with_health(make_wsgi_app(registry), health))
    thread = spawn("metrics", server.serve_forever)
    return server, thread
