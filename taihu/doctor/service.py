"""`DoctorService`: a machine that waits to be examined, one measurement at a time."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import grpc

from taihu.core.base.errors import ConfigError, RunError, StaleError, TaihuError
from taihu.core.system.threads import Lock, Timer
from taihu.core.wire.base.address import host_of_peer, split_address
from taihu.core.wire.base.clock import WallClock
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.base.status import abort
from taihu.core.wire.frames.identity import WorkerIdentity, identity_from_metadata
from taihu.core.wire.links.direct_connection import DirectListener
from taihu.core.wire.serving.server import RpcServer
from taihu.doctor.answering import AnsweredExchange
from taihu.doctor.collecting import interface_towards, machine_facts
from taihu.doctor.facts import MachineFacts
from taihu.doctor.link import DOCTOR_SERVICE
from taihu.doctor.messages import facts_to_message, interface_to_message, link_to_message
from taihu.doctor.remote import RemoteDoctor
from taihu.protos import connection_pb2
from taihu.protos import doctor_pb2 as pb

_MOST_NAMES: Final = 4
_MOST_LETTERS: Final = 253
_EXCHANGE_S: Final = 60.0
_THREADS: Final = 8

Facts = Callable[[Sequence[str]], MachineFacts]


class ListeningDoctor:
    """Answers at `address` until it is closed; a context manager.

    Args:
        bind: `host:port`; port 0 takes a free one.
        facts: of this machine, with names to be resolved.
        clock: tells the time of day.

    Raises:
        ConfigError: it cannot listen there.
    """

    def __init__(self, bind: str, facts: Facts = machine_facts, clock: WallClock | None = None) -> None:
        host, _ = split_address(bind)
        self._facts = facts
        self._clock = clock or WallClock()
        self._patience = Patience()
        self._measuring = Lock()
        self._exchange: AnsweredExchange | None = None
        self._rpc = RpcServer.create(threads=_THREADS, patience=self._patience)
        self.port = self._rpc.listen(bind)
        """The port that it listens on."""
        self._direct = DirectListener(host, 0, self._patience)
        self._rpc.grpc_server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(DOCTOR_SERVICE, self._handlers()),)
        )

    def __enter__(self) -> ListeningDoctor:
        self._rpc.start((DOCTOR_SERVICE,))
        return self

    def __exit__(self, *_: object) -> None:
        if (exchange := self._exchange) is not None:
            exchange.end(StaleError("this doctor has ended"))
        self._direct.close()
        self._rpc.stop(0.2)

    def _handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        unary = grpc.unary_unary_rpc_method_handler
        opened = connection_pb2.OpenConnectionRequest.FromString
        port = connection_pb2.OpenConnectionResponse.SerializeToString
        return {
            "GetFacts": unary(self._get_facts, pb.GetFactsRequest.FromString, pb.GetFactsResponse.SerializeToString),
            "GetTime": unary(self._get_time, pb.GetTimeRequest.FromString, pb.GetTimeResponse.SerializeToString),
            "Exchange": grpc.stream_stream_rpc_method_handler(self._exchange_frames),
            "OpenConnection": unary(self._open_connection, opened, port),
            "MeasureLink": unary(
                self._measure_link, pb.MeasureLinkRequest.FromString, pb.MeasureLinkResponse.SerializeToString
            ),
        }

    def _get_facts(self, request: pb.GetFactsRequest, context: grpc.ServicerContext) -> pb.GetFactsResponse:
        if len(request.names) > _MOST_NAMES or any(len(name) > _MOST_LETTERS for name in request.names):
            abort(context, ConfigError(f"expected at most {_MOST_NAMES} names of hosts"))
        back = interface_towards(host_of_peer(context.peer()))
        facts = facts_to_message(self._facts(request.names))
        return pb.GetFactsResponse(facts=facts, back=interface_to_message(back))

    def _get_time(self, request: pb.GetTimeRequest, context: grpc.ServicerContext) -> pb.GetTimeResponse:
        return pb.GetTimeResponse(seconds=self._clock.now())

    def _exchange_frames(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            exchange = AnsweredExchange(identity_from_metadata(context.invocation_metadata()), self._patience)
            self._begin()
        except TaihuError as error:
            abort(context, error)
        late = RunError(f"a measurement of more than {_EXCHANGE_S:g} s: a doctor answers no longer")
        alarm = Timer(_EXCHANGE_S, exchange.end, (late,))
        alarm.daemon = True
        self._exchange = exchange
        context.add_callback(exchange.end)
        alarm.start()
        try:
            yield from exchange.messages(requests)
        except TaihuError as error:
            abort(context, error)
        finally:
            alarm.cancel()
            self._exchange = None
            self._measuring.release()

    def _open_connection(
        self, request: connection_pb2.OpenConnectionRequest, context: grpc.ServicerContext
    ) -> connection_pb2.OpenConnectionResponse:
        exchange = self._exchange
        if exchange is None or exchange.identity != WorkerIdentity(request.job, request.rank, request.incarnation):
            abort(context, StaleError("a connection without an exchange: a doctor takes none"))
        try:
            port, token = self._direct.expect(0, exchange.connect)
        except TaihuError as error:
            abort(context, error)
        return connection_pb2.OpenConnectionResponse(port=port, token=token)

    def _measure_link(self, request: pb.MeasureLinkRequest, context: grpc.ServicerContext) -> pb.MeasureLinkResponse:
        try:
            _check_reachable_by_others(request.address)
            self._begin()
        except TaihuError as error:
            abort(context, error)
        try:
            with RemoteDoctor(request.address) as other:
                return pb.MeasureLinkResponse(link=link_to_message(other.measure("", "")))
        except TaihuError as error:
            abort(context, error)
        finally:
            self._measuring.release()

    def _begin(self) -> None:
        if not self._measuring.acquire(blocking=False):
            raise StaleError("this doctor is being measured by somebody else: try again in a minute")


def _check_reachable_by_others(address: str) -> None:
    """Raise ConfigError for an address that could only be some service of this machine's own."""
    host, port = split_address(address)
    try:
        own = ipaddress.ip_address(host)
    except ValueError:
        raise ConfigError(f"address {address}: expected one in numbers") from None
    mapped = own.ipv4_mapped if isinstance(own, ipaddress.IPv6Address) else None
    own = mapped or own
    if own.is_loopback or own.is_unspecified or own.is_link_local or own.is_multicast or not port:
        raise ConfigError(f"address {address}: a doctor measures links to other machines alone")
