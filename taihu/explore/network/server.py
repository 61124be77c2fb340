"""Servers of gRPC in memory."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import grpc
from typing_extensions import override

from taihu.explore.network.calls import DEFAULT_MOST_BYTES, Metadata, Status, address_of
from taihu.explore.network.connections import End, Kind, Loss
from taihu.explore.network.network import Network
from taihu.explore.network.server_call import ServerCall
from taihu.explore.scheduler import RUNNING
from taihu.explore.stand_ins.futures import ThreadPoolExecutor
from taihu.explore.stand_ins.locks import Event
from taihu.explore.stand_ins.waiting import Waiting

if TYPE_CHECKING:
    from taihu.explore.network.client_call import ClientCall
    from taihu.explore.network.subchannel import Link

__all__ = ["Server", "Transport", "server"]

_LOG: Final = logging.getLogger(__name__)


class _Details(NamedTuple):
    """The part of a call that interceptors and generic handlers know."""

    method: str
    invocation_metadata: Metadata


_Find = Callable[[Any], Any]


class Transport:
    """The server's side of a connection, and the calls on it."""

    def __init__(self, server: Server, end: End) -> None:
        self._server = server
        self._calls: dict[ServerCall, None] = {}
        self.end = end
        self.send = end.out.send
        self.chance = end.out.network.chance
        self.peer_port = end.connection.own_port
        self.most_sent_bytes = server.most_sent_bytes
        self.most_received_bytes = server.most_received_bytes
        end.handler = self
        end.needs_process = True
        end.silence_s = server.silence_s

    def begin(self, call: ClientCall) -> None:
        """A call has come."""
        if call.done():
            return
        if self._server.is_stopping:
            self.send(lambda: None if call.goes_again() else call.fail_unavailable("Server shutdown"))
            return
        mine = call.server_call = ServerCall(self, call)
        self._calls[mine] = None
        self._server.take(mine)

    def forget(self, call: ServerCall, callbacks: Sequence[Callable[[], object]]) -> None:
        """`call` has ended."""
        self._calls.pop(call, None)
        self._server.ended(call, callbacks)

    def closed(self) -> None:
        """Take in that the other side has closed it."""
        self.end.leave()
        self.lost(Loss.CLOSED)

    def lost(self, loss: Loss) -> None:
        """Take in that the connection is lost."""
        self._server.forget(self)
        for call in list(self._calls):
            call.lost()

    def retire(self) -> None:
        """Tell the client that no more calls are taken."""
        self.send(self._arrive_retired)

    def _arrive_retired(self) -> None:
        # A server's connections are those of channels.
        cast("Link", self.end.peer.handler).retired()

    def cancel_all(self) -> None:
        """End all calls."""
        for call in list(self._calls):
            call.cut(Status(grpc.StatusCode.UNAVAILABLE, "Cancelling all calls", ()))

    def close(self) -> None:
        """End the connection."""
        self.end.close()


class Server(grpc.Server):
    """`grpc.Server`: a task takes calls in, and has the threads of `pool` answer them.

    Args:
        pool: whose threads answer.
        handlers: generic ones.
        interceptors: are asked in this order before a handler is.
        most_calls: that are answered, or wait for a thread, at a time.
        options: by their names.
    """

    kind: Kind = "grpc"

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        handlers: Iterable[Any],
        interceptors: Sequence[Any],
        most_calls: int | None,
        options: Mapping[str, Any],
    ) -> None:
        scheduler = RUNNING()
        self.process = scheduler.current.process
        self.most_sent_bytes: int = options.get("grpc.max_send_message_length", -1)
        self.most_received_bytes: int = options.get("grpc.max_receive_message_length", DEFAULT_MOST_BYTES)
        keepalive_ms = options.get("grpc.keepalive_time_ms")
        timeout_ms = options.get("grpc.keepalive_timeout_ms", 20_000)
        self.silence_s = None if keepalive_ms is None else (keepalive_ms + timeout_ms) / 1000.0
        self._network = scheduler.find(Network)
        self._pool = pool
        self._most_calls = most_calls
        self._generic = list(handlers)
        self._registered: dict[str, Any] = {}
        find: _Find = self._handler
        for interceptor in reversed(interceptors):
            find = partial(interceptor.intercept_service, find)
        self._find = find
        self._ports: list[tuple[str, int]] = []
        self._transports: dict[Transport, None] = {}
        self._calls: dict[ServerCall, None] = {}
        self._answering = 0
        self._come: deque[Callable[[], None]] = deque()
        self._serving = Waiting("calls")
        self._is_started = self.is_stopping = False
        self._all_down = Event()

    # -- told between tasks

    def accept(self, end: End) -> bool:
        """Take a connection in."""
        self._transports[Transport(self, end)] = None
        return True

    def forget(self, transport: Transport) -> None:
        """Its connection has ended."""
        self._transports.pop(transport, None)

    def take(self, call: ServerCall) -> None:
        """A call has come."""
        self._calls[call] = None
        self._do(partial(self._begin, call))

    def ended(self, call: ServerCall, callbacks: Sequence[Callable[[], object]]) -> None:
        """A call has ended; the task that takes calls in calls back."""
        if callbacks or self.is_stopping:
            self._do(partial(self._finish, call, callbacks))
        else:
            self._calls.pop(call, None)

    def _do(self, act: Callable[[], None]) -> None:
        self._come.append(act)
        self._serving.wake()

    # -- the task that takes calls in

    def _serve(self) -> None:
        while not (self.is_stopping and not self._calls):
            if self._come:
                self._come.popleft()()
            else:
                self._serving.wait()
        for transport in list(self._transports):
            transport.close()
        self._transports.clear()
        self._all_down.set()

    def _begin(self, call: ServerCall) -> None:
        details = _Details(call.method.path, call.metadata)
        try:
            handler = self._find(details)
        except Exception:
            _LOG.exception("Exception servicing handler")
            call.reject(grpc.StatusCode.UNKNOWN, "Error in service handler!")
            return
        if handler is None:
            call.reject(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        elif self._most_calls is not None and self._answering >= self._most_calls:
            call.reject(grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")
        else:
            self._answering += 1
            answered = _pool_of(handler, self._pool).submit(call.answer, handler)
            answered.add_done_callback(self._answered)

    def _answered(self, _: object) -> None:
        self._answering -= 1

    def _finish(self, call: ServerCall, callbacks: Sequence[Callable[[], object]]) -> None:
        for callback in callbacks:
            try:
                callback()
            except Exception:
                _LOG.exception("Exception calling callback!")
        self._calls.pop(call, None)

    def _handler(self, details: _Details) -> Any:
        registered = self._registered.get(details.method)
        if registered is not None:
            return registered
        for each in self._generic:
            handler = each.service(details)
            if handler is not None:
                return handler
        return None

    # -- grpc.Server

    @override
    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[Any]) -> None:
        self._generic.extend(generic_rpc_handlers)

    @override
    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        self._registered.update({f"/{service_name}/{name}": each for name, each in method_handlers.items()})

    @override
    def add_insecure_port(self, address: str) -> int:
        host, port = address_of(address)
        try:
            port = self._network.listen(host, port, self)
        except OSError as error:
            raise RuntimeError(f"Failed to bind to address {address}") from error
        self._ports.append((host, port))
        return port

    @override
    def add_secure_port(self, address: str, server_credentials: Any) -> int:
        raise NotImplementedError("nothing simulated speaks TLS")

    @override
    def start(self) -> None:
        if self._is_started:
            raise ValueError("Cannot start already-started server!")
        self._is_started = True
        scheduler = RUNNING()
        scheduler.add(self._serve, "grpc serve")
        scheduler.point("start a server")

    @override
    def stop(self, grace: float | None) -> Any:
        scheduler = RUNNING()
        if not self._is_started:
            self._all_down.set()
        if not self.is_stopping:
            self.is_stopping = True
            self._network.stop_listening(self)
            for transport in self._transports:
                transport.retire()
            self._serving.wake()
        if grace is None:
            self._cancel_all()
            self._all_down.wait()
        else:
            scheduler.add(partial(self._cancel_after, grace), "grpc stop")
            scheduler.point("stop a server")
        return self._all_down

    def _cancel_after(self, grace_s: float) -> None:
        self._all_down.wait(grace_s)
        self._cancel_all()

    def _cancel_all(self) -> None:
        for transport in list(self._transports):
            transport.cancel_all()

    @override
    def wait_for_termination(self, timeout: float | None = None) -> bool:
        return not self._all_down.wait(timeout)


def _pool_of(handler: Any, default: ThreadPoolExecutor) -> ThreadPoolExecutor:
    """The threads by which `handler` is to be run."""
    behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    own: ThreadPoolExecutor | None = getattr(behaviour, "experimental_thread_pool", None)
    return default if own is None else own


def server(
    thread_pool: ThreadPoolExecutor,
    handlers: Iterable[Any] | None = None,
    interceptors: Sequence[Any] | None = None,
    options: Iterable[tuple[str, Any]] | None = None,
    *,
    maximum_concurrent_rpcs: int | None = None,
    compression: Any = None,
    xds: bool = False,
) -> Server:
    """`grpc.server`."""
    return Server(
        thread_pool, handlers or (), tuple(interceptors or ()), maximum_concurrent_rpcs, dict(options or ())
    )
