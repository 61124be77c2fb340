"""An error crosses a real connection as what it was; a foreign status becomes the nearest error of ours."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.loopback import Loopback
from support.strategies import CHARACTERS

from taihu.core.base import errors
from taihu.core.base.errors import RunError, TaihuError
from taihu.core.base.words import told
from taihu.core.wire.base.status import abort, error_class, error_from_rpc

EXPORTED = [getattr(errors, name) for name in errors.__all__]
CLASSES: list[type[TaihuError]] = [exported for exported in EXPORTED if isinstance(exported, type)]
FAILURES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
EXPECTED_CODES = {
    "CheckpointError": "FAILED_PRECONDITION",
    "ConfigError": "INVALID_ARGUMENT",
    "DataError": "INVALID_ARGUMENT",
    "ExchangeError": "ABORTED",
    "FinishedError": "FAILED_PRECONDITION",
    "FrameError": "INVALID_ARGUMENT",
    "DamagedFrameError": "INVALID_ARGUMENT",
    "GivenUpError": "FAILED_PRECONDITION",
    "MemberLostError": "ABORTED",
    "ModelError": "FAILED_PRECONDITION",
    "PeerUnreachableError": "UNAVAILABLE",
    "RecoveringError": "ABORTED",
    "RefusedError": "PERMISSION_DENIED",
    "RunError": "ABORTED",
    "SharedMemoryError": "FAILED_PRECONDITION",
    "StaleError": "FAILED_PRECONDITION",
    "TaihuError": "INTERNAL",
    "WriteError": "INTERNAL",
}
# What a status means that the network, a proxy or gRPC itself made.
FOREIGN_CLASSES = {
    "INVALID_ARGUMENT": "FrameError",
    "FAILED_PRECONDITION": "StaleError",
    "UNAVAILABLE": "MemberLostError",
    "CANCELLED": "MemberLostError",
    "DEADLINE_EXCEEDED": "PeerUnreachableError",
    "UNIMPLEMENTED": "ConfigError",
    "UNAUTHENTICATED": "RefusedError",
    "PERMISSION_DENIED": "RefusedError",
}


@pytest.fixture(scope="module")
def loopback() -> Iterator[Loopback]:
    with Loopback() as running:
        yield running


def received(loopback: Loopback, sent: TaihuError) -> tuple[grpc.RpcError, TaihuError]:
    error = loopback.failed_call(lambda _, context: abort(context, sent))
    return error, error_from_rpc(error, "server 1")


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_of_error_survives_the_call(loopback: Loopback, cls: type[TaihuError]) -> None:
    rpc_error, error = received(loopback, cls("frame 3: expected 4 values, got 5"))
    assert type(error) is cls
    assert str(error) == "frame 3: expected 4 values, got 5"
    assert error.exit_code == cls.exit_code
    assert error_class(rpc_error) is cls
    assert isinstance(rpc_error, grpc.Call)
    assert rpc_error.code().name == EXPECTED_CODES[cls.__name__]


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(CLASSES), st.text(CHARACTERS, max_size=300))
def test_any_message_arrives_as_one_line_that_prints(loopback: Loopback, cls: type[TaihuError], message: str) -> None:
    _, error = received(loopback, cls(message))
    assert type(error) is cls
    assert str(error) == told(message)


def test_a_class_that_the_other_side_does_not_know_arrives_as_its_kind(loopback: Loopback) -> None:
    class InterruptedRunError(RunError):
        exit_code = 130

    _, error = received(loopback, InterruptedRunError("interrupted by SIGTERM"))
    assert type(error) is RunError
    assert "server 1" in str(error)
    assert "interrupted by SIGTERM" in str(error)


@pytest.mark.parametrize("code", FAILURES, ids=lambda code: code.name)
def test_a_foreign_status_names_the_peer_and_the_code(loopback: Loopback, code: grpc.StatusCode) -> None:
    rpc_error = loopback.failed_call(lambda _, context: context.abort(code, "something else"))
    error = error_from_rpc(rpc_error, "server 1")
    assert error_class(rpc_error) is None
    assert type(error).__name__ == FOREIGN_CLASSES.get(code.name, "RunError")
    remedy = "; what listens there is something else: check the address" if code.name == "UNIMPLEMENTED" else ""
    assert str(error) == f"server 1: {code.name}: something else{remedy}"


@pytest.mark.parametrize("name", ["", "Exception", "KeyboardInterrupt", "taihu_error", "__name__"])
def test_a_peer_cannot_choose_a_class_that_is_not_ours(loopback: Loopback, name: str) -> None:
    def behave(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata((("taihu-error", name),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "odd")

    rpc_error = loopback.failed_call(behave)
    assert error_class(rpc_error) is None
    assert type(error_from_rpc(rpc_error, "server 1")) is errors.StaleError


def test_an_error_that_is_no_status_becomes_a_run_error() -> None:
    error = error_from_rpc(grpc.RpcError("the channel is closed"), "server 1")
    assert type(error) is RunError
    assert str(error) == "server 1: the channel is closed"
    assert error_class(grpc.RpcError()) is None
