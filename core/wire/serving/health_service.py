"""gRPC's health service, such as strangers may ask it for anything.

The servicer of grpcio-health-checking remembers every name that was ever watched, and sends while it holds the lock
that all its calls need: one watcher that takes nothing keeps all others, and the end of the process, waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import grpc
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from taihu.core.system.threads import Condition
from taihu.core.wire.base.room import Room

WATCH_PLACES: Final = 16
"""The most streams that watch the health of one process; each has a thread."""
_LONGEST_WATCH_S: Final = 86_400.0


class HealthService:
    """The health of the services of a process; any thread may call.

    One watcher more than there is room for takes the place of the oldest one.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._serving = {"": True}
        self._watchers = Room(WATCH_PLACES, _LONGEST_WATCH_S)

    def register(self, server: grpc.Server) -> None:
        """Add the service to `server`."""
        read, write = HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check, read, write),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch, read, write),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(health.SERVICE_NAME, handlers),))

    def tell(self, services: Iterable[str], *, serving: bool) -> None:
        """Say of `services` whether they serve, also to those who watch them."""
        with self._changed:
            self._serving |= dict.fromkeys(services, serving)
            self._changed.notify_all()

    def end(self) -> None:
        """Say of all that they serve no longer."""
        self.tell(list(self._serving), serving=False)

    def close(self) -> None:
        """Watch over the watchers no more."""
        self._watchers.close()

    def _status(self, service: str) -> int:
        serving = self._serving.get(service)
        if serving is None:
            return HealthCheckResponse.SERVICE_UNKNOWN
        return HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING

    def _check(self, request: HealthCheckRequest, context: grpc.ServicerContext) -> HealthCheckResponse:
        status = self._status(request.service)
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            return HealthCheckResponse()
        return HealthCheckResponse(status=status)

    def _watch(self, request: HealthCheckRequest, context: grpc.ServicerContext) -> Iterator[HealthCheckResponse]:
        service, told = request.service, None
        if not context.add_callback(self._look_again):
            return
        with self._watchers.place(context.cancel):
            while (told := self._other_than(told, service, context)) is not None:
                yield HealthCheckResponse(status=told)

    def _other_than(self, told: int | None, service: str, context: grpc.ServicerContext) -> int | None:
        """Wait for another status of `service` than was `told`; None when the call is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._status(service) != told or not context.is_active())
            return self._status(service) if context.is_active() else None

    def _look_again(self) -> None:
        with self._changed:
            self._changed.notify_all()
