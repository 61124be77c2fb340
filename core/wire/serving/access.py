"""Both ends of authentication in gRPC: a server lets calls in or refuses them, a client says the run's token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import grpc
from typing_extensions import override

from taihu.core.base.errors import FrameError, RefusedError
from taihu.core.security.access import Access, Claim
from taihu.core.security.identity import Identity
from taihu.core.security.roles import Rule, Speaks
from taihu.core.security.security import Refusals
from taihu.core.security.token import Token
from taihu.core.wire.base.status import abort
from taihu.core.wire.frames.identity import identity_from_metadata
from taihu.core.wire.serving.handlers import answered_by, behaviour_of
from taihu.core.wire.serving.refusal_log import RefusalLog
from taihu.protos import coordinator_pb2 as pb

_TOKEN: Final = "taihu-token"  # noqa: S105 - a name
_UNKNOWN: Final = "other"

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]


@dataclass(frozen=True)
class CallerCheck:
    """Lets calls in as `access` says, or refuses them; `refusals` count that, `log` tells of it."""

    access: Access
    refusals: Refusals
    log: RefusalLog

    def let_in(self, method: str, claimed: Callable[[], Claim | None], context: grpc.ServicerContext) -> None:
        """Return if the caller may go on, also as the member that it has `claimed` to be; else end the call."""
        identity: Identity | None = None
        try:
            metadata = {str(key): value for key, value in context.invocation_metadata()}
            identity = self.access.identify(_uris(context), _text(metadata.get(_TOKEN)))
            self.access.allow(method, identity, claimed() if identity is not None else None)
        except RefusedError as error:
            self._refuse(method, identity, error, context)
        except FrameError as error:
            self._refuse(method, identity, RefusedError(str(error), "rank"), context)

    def _refuse(
        self, method: str, identity: Identity | None, error: RefusedError, context: grpc.ServicerContext
    ) -> None:
        self.refusals.add(method if method in self.access.rules else _UNKNOWN, error.reason)
        self.log.tell(
            "call refused",
            error.reason,
            method=method,
            caller="unknown" if identity is None else identity.uri,
            peer=context.peer(),
            reason=str(error),
        )
        abort(context, error)


@dataclass(frozen=True)
class AccessInterceptor(grpc.ServerInterceptor):
    """Lets each call in or refuses it, before its first message is waited for; `called` is told of whom it is."""

    check: CallerCheck
    called: Callable[[str], None] = lambda _: None

    @override
    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Handler | None], details: grpc.HandlerCallDetails
    ) -> Handler | None:
        method = details.method
        try:
            rule = self.check.access.rule(method)
        except RefusedError:
            return grpc.stream_stream_rpc_method_handler(lambda _, context: self._let_in(method, None, context))
        handler = continuation(details)
        if handler is None:
            return None
        if rule.open_to_all:
            return _before(handler, lambda _, context: self.called(context.peer()))
        return _before(handler, lambda _, context: self._let_in(method, rule, context))

    def _let_in(self, method: str, rule: Rule | None, context: grpc.ServicerContext) -> None:
        self.called(context.peer())
        self.check.let_in(method, lambda: None if rule is None else _claim_of_stream(rule, context), context)


@dataclass(frozen=True)
class ClaimInterceptor(grpc.ServerInterceptor):
    """Compares the member that a request tells with the caller's certificate; what is called has let it in."""

    check: CallerCheck

    @override
    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Handler | None], details: grpc.HandlerCallDetails
    ) -> Handler | None:
        method, let_in = details.method, self.check.let_in
        handler = continuation(details)
        speaks = self.check.access.rule(method).speaks
        if handler is None or speaks not in ("member", "rank"):
            return handler
        return _before(
            handler, lambda request, context: let_in(method, partial(_claim_of_request, speaks, request), context)
        )


def _before(handler: Handler, check: Callable[[Any, grpc.ServicerContext], None]) -> Handler:
    """`handler` with `check` before it, which raises where the call is not to be answered."""
    answer = behaviour_of(handler)

    def checked(request: Any, context: grpc.ServicerContext, *more: Any) -> Any:
        check(request, context)
        return answer(request, context, *more)

    return answered_by(handler, checked, request_deserializer=handler.request_deserializer)


def _uris(context: grpc.ServicerContext) -> tuple[str, ...]:
    shown: Mapping[str, Any] = context.auth_context()
    return tuple(uri.decode(errors="replace") for uri in shown.get("peer_uri", ()))


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _claim_of_stream(rule: Rule, context: grpc.ServicerContext) -> Claim | None:
    """The worker that a stream says it is of; raises FrameError where it should say so and does not."""
    if rule.speaks != "stream":
        return None
    return ("worker", identity_from_metadata(context.invocation_metadata()).rank)


def _claim_of_request(speaks: Speaks, request: Any) -> Claim:
    """The member that a request says it is made by."""
    if speaks == "member":
        return ("server" if request.member.role == pb.ROLE_SERVER else "worker", request.member.rank)
    return ("worker", request.rank)


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class _SayingToken(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the token to the metadata of every call."""

    def __init__(self, token: Token) -> None:
        self._token = token

    def _saying(self, details: grpc.ClientCallDetails) -> Any:
        given = cast("Any", details)
        metadata = (*(given.metadata or ()), (_TOKEN, self._token.reveal()))
        return _Details(
            given.method, given.timeout, metadata, given.credentials, given.wait_for_ready, given.compression
        )

    @override
    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: grpc.ClientCallDetails, request: Any
    ) -> Any:
        return continuation(self._saying(client_call_details), request)

    @override
    def intercept_unary_stream(
        self, continuation: Callable[..., Any], client_call_details: grpc.ClientCallDetails, request: Any
    ) -> Any:
        return continuation(self._saying(client_call_details), request)

    @override
    def intercept_stream_unary(
        self, continuation: Callable[..., Any], client_call_details: grpc.ClientCallDetails, request_iterator: Any
    ) -> Any:
        return continuation(self._saying(client_call_details), request_iterator)

    @override
    def intercept_stream_stream(
        self, continuation: Callable[..., Any], client_call_details: grpc.ClientCallDetails, request_iterator: Any
    ) -> Any:
        return continuation(self._saying(client_call_details), request_iterator)


def saying_token(channel: grpc.Channel, token: Token) -> grpc.Channel:
    """`channel`, with the token in the metadata of every call."""
    return grpc.intercept_channel(channel, _SayingToken(token))
