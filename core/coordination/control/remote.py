"""The way to a coordinator over gRPC."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import grpc

from taihu.core.base.errors import StaleError
from taihu.core.coordination.control.control import Ask
from taihu.core.coordination.control.looking_ways import LOOKING, Ways
from taihu.core.security.security import Security
from taihu.core.wire.base.address import split_address
from taihu.core.wire.base.clock import SystemClock
from taihu.core.wire.base.host_names import is_known
from taihu.core.wire.base.retry import until_answered
from taihu.core.wire.base.status import error_from_rpc
from taihu.core.wire.serving.channel import open_channel

A = TypeVar("A")

_ONLOOKER: Final = "this process"


class RemoteControl:
    """A `Control` of the coordinator at `address`; a context manager that closes it.

    Args:
        address: `host:port`.
        connect: opens a channel there.
        ways: the calls that are made.
        host: the member that hosts it, where that is known: it is named as whoever is lost with it.
        caller: who calls, in words.
    """

    def __init__(
        self,
        address: str,
        connect: Callable[[], grpc.Channel],
        ways: Ways,
        *,
        host: str = "",
        caller: str = _ONLOOKER,
    ) -> None:
        self.peer = f"coordinator at {address}"
        self._address = address
        self._shown = f"{host}, {self.peer}" if host else self.peer
        self._caller = caller
        self._connect = connect
        self._ways = ways
        self._channel = connect()
        # Others may still call over one that is silent: it is closed at the end.
        self._former: list[grpc.Channel] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def sought(self) -> str:
        """The coordinator, or its name where that is not known yet."""
        host = split_address(self._address)[0]
        return f"the {self.peer}" if is_known(host) else f"the name {host} of the {self.peer} to be known"

    def call(self, ask: Ask[A], timeout_s: float | None) -> A:
        """Ask once, see `Control.call`."""
        way = self._ways[type(ask)]
        request = way.asked.to(ask)
        try:
            method: grpc.UnaryUnaryMultiCallable[Any, Any] = self._channel.unary_unary(
                way.path, way.request.SerializeToString, way.response.FromString
            )
            response = method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self._shown) from None
        except ValueError:  # the channel has been closed: a thread that calls may come late
            raise StaleError(f"{self._caller} takes no part any more") from None
        answer: A = way.answered.of(response)
        return answer

    def renew(self, *, cuts: bool = False) -> None:
        """Go on over a new connection, see `Control.renew`."""
        if cuts:
            self._channel.close()
        else:
            self._former.append(self._channel)
        self._channel = self._connect()

    def close(self) -> None:
        """End all connections."""
        for channel in (*self._former, self._channel):
            channel.close()


def ask_from_outside(
    address: str, ask: Ask[A], timeout_s: float, security: Security | None = None, ways: Ways = LOOKING
) -> A:
    """Ask the coordinator at `address` over a connection of its own, as whoever `security` says, until it answers.

    Raises:
        PeerUnreachableError: nothing answers there within `timeout_s`.
        RefusedError: it does not let this process ask.
        TaihuError: it refuses otherwise.
    """
    with RemoteControl(address, partial(open_channel, address, security=security), ways) as control:
        return until_answered(
            lambda remaining_s: control.call(ask, remaining_s),
            peer=control.peer,
            timeout_s=timeout_s,
            clock=SystemClock(),
        )
