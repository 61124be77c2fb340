"""Calls to services that a process does not serve at this time, and serves at others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import grpc
from typing_extensions import override

from taihu.core.base.errors import TaihuError
from taihu.core.wire.base.status import abort

_OWN: Final = "/taihu."

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]


class AbsentServices(grpc.GenericRpcHandler):
    """Answers every call to a service of taihu's that nothing else on the server answers with `error`.

    Without it the caller would take the process for something else that listens there.
    """

    def __init__(self, error: TaihuError) -> None:
        self._error = error

    @override
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        if not handler_call_details.method.startswith(_OWN):
            return None
        return grpc.stream_stream_rpc_method_handler(self._refuse, request_deserializer=bytes)

    def _refuse(self, _: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        abort(context, self._error)
        yield b""
