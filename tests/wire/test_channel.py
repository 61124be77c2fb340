"""Channels to hosts that are gone: a try to connect has a bound that follows from the job's patience."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import grpc
import pytest

from taihu.core.wire.base.patience import Patience
from taihu.core.wire.serving.channel import open_channel

# Five seconds for an answer, and 7.5 for acknowledgements, by which the system itself ends a try: a busy machine
# needs the time between the two.
PATIENCE = Patience(15.0)
CALL_S = 7.3


def test_who_does_not_answer_is_given_up_before_the_system_does() -> None:
    """As at an address whose host is gone, nothing answers here, and a name may lead to it for a while."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = listening.getsockname()[1]
        is_full = False
        while not is_full:
            # The system drops what asks for a connection while so many wait to be accepted.
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0.3)
            try:
                waiting.connect(("127.0.0.1", port))
            except TimeoutError:
                is_full = True
        channel = stack.enter_context(open_channel(f"127.0.0.1:{port}", PATIENCE))
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/nobody/Answers")
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            call(b"", timeout=CALL_S)
