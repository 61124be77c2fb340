"""`CoordinatorService`: calls of gRPC to the desk that answers them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from taihu.core.base.errors import TaihuError
from taihu.core.coordination.control.control import Answering
from taihu.core.coordination.control.looking_ways import COORDINATOR_SERVICE, Way
from taihu.core.coordination.control.ways import WAYS
from taihu.core.system.chance import random_bits
from taihu.core.wire.base.address import host_of_peer
from taihu.core.wire.base.status import abort
from taihu.core.wire.serving.server import remaining_s

__all__ = ["COORDINATOR_SERVICE", "CoordinatorServicer", "new_incarnation"]

_BY_NAME: Final = MappingProxyType({way.name: way for way in WAYS.values()})


def new_incarnation() -> int:
    """A number for this life of a process; 63 bits, never 0."""
    return random_bits(62) + 1


class _RemoteCall:
    """A `Call` of somebody on a network."""

    def __init__(self, context: grpc.ServicerContext) -> None:
        self._context = context

    @property
    def peer(self) -> str:
        """As gRPC names it."""
        return self._context.peer()

    def host(self) -> str:
        """As this side sees it."""
        return host_of_peer(self._context.peer())

    def left_s(self) -> float:
        """Until the deadline, less the way back."""
        return remaining_s(self._context)

    def when_ended(self, tell: Callable[[], None]) -> None:
        """Have `tell` called when the call has ended, at once where it has."""
        if not self._context.add_callback(tell):
            tell()


class CoordinatorServicer:
    """Makes asks of messages, has `desk` answer them, and makes messages, or statuses, of what that says."""

    def __init__(self, desk: Answering) -> None:
        self._desk = desk

    def register(self, server: grpc.Server) -> None:
        """Add the service to `server`."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            way.name: grpc.unary_unary_rpc_method_handler(
                partial(self._answer, way), way.request.FromString, way.response.SerializeToString
            )
            for way in WAYS.values()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(COORDINATOR_SERVICE, handlers),))

    def answer(self, name: str, request: Message, context: grpc.ServicerContext) -> Message:
        """The response of the method `name`; a refusal ends the call with its status."""
        return self._answer(_BY_NAME[name], request, context)

    def _answer(self, way: Way[Any], request: Message, context: grpc.ServicerContext) -> Message:
        try:
            answer = self._desk.answer(way.asked.of(request), _RemoteCall(context))
        except TaihuError as error:
            abort(context, error)
        response: Message = way.answered.to(answer)
        return response
