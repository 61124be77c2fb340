"""Errors as gRPC statuses, and back.

The class of an error travels as trailing metadata, so that the other side raises the same class with the same
one-line message; a peer that sends none is understood by its status code.
"""

from __future__ import annotations

from typing import NoReturn

import grpc

from taihu.core.base import errors
from taihu.core.base.errors import TaihuError
from taihu.core.base.words import told

_METADATA_KEY = "taihu-error"
_CODES: dict[type[TaihuError], grpc.StatusCode] = {
    errors.FrameError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.CheckpointError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ModelError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.StaleError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SharedMemoryError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.MemberLostError: grpc.StatusCode.ABORTED,
    errors.RunError: grpc.StatusCode.ABORTED,
    errors.PeerUnreachableError: grpc.StatusCode.UNAVAILABLE,
    errors.FinishedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.RefusedError: grpc.StatusCode.PERMISSION_DENIED,
}
_CLASSES: dict[str, type[TaihuError]] = {name: getattr(errors, name) for name in errors.__all__}
_BY_CODE: dict[grpc.StatusCode, type[TaihuError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.FrameError,
    grpc.StatusCode.FAILED_PRECONDITION: errors.StaleError,
    grpc.StatusCode.ABORTED: errors.RunError,
    grpc.StatusCode.UNAVAILABLE: errors.MemberLostError,
    # What a process that ends does to calls that it has not answered in time.
    grpc.StatusCode.CANCELLED: errors.MemberLostError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.PeerUnreachableError,
    grpc.StatusCode.UNAUTHENTICATED: errors.RefusedError,
    grpc.StatusCode.PERMISSION_DENIED: errors.RefusedError,
}
_UNANSWERED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)


def abort(context: grpc.ServicerContext, error: TaihuError) -> NoReturn:
    """End the call with the status of `error`."""
    code = next((_CODES[cls] for cls in type(error).__mro__ if cls in _CODES), grpc.StatusCode.INTERNAL)
    if isinstance(error, errors.RefusedError) and not error.is_known:
        code = grpc.StatusCode.UNAUTHENTICATED
    context.set_trailing_metadata(((_METADATA_KEY, type(error).__name__),))
    context.abort(code, told(str(error)))
    raise AssertionError("context.abort returned")


def error_from_rpc(error: grpc.RpcError, peer: str) -> TaihuError:
    """The error that `peer` (a description such as `server 1 at 10.0.0.2:7070`) meant; see `TaihuError.was_said`."""
    if not isinstance(error, grpc.Call):
        return errors.RunError(f"{peer}: {error}")
    details = told(str(error.details()))
    meant = error_class(error)
    if meant is not None:
        return meant(details)
    shown = f"{peer}: {error.code().name}: {details}"
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return errors.ConfigError(f"{shown}; what listens there is something else: check the address")
    made = _BY_CODE.get(error.code(), errors.RunError)(shown)
    made.was_said = error.code() not in _UNANSWERED
    return made


def error_class(error: grpc.RpcError) -> type[TaihuError] | None:
    """The class that taihu itself sent with this status; None when the network or gRPC made it."""
    if not isinstance(error, grpc.Call):
        return None
    trailing = {str(item[0]): str(item[1]) for item in error.trailing_metadata() or ()}
    return _CLASSES.get(trailing.get(_METADATA_KEY, ""))
