"""Asking a run how it is, and to stop: for who looks on, without what its members need."""

from __future__ import annotations

from taihu.core.coordination.membership.members import RunState
from taihu.core.coordination.membership.messages import plain, state_from_message
from taihu.core.security.security import Security
from taihu.core.wire.base.clock import SystemClock
from taihu.core.wire.base.retry import call_until_reachable
from taihu.core.wire.serving.channel import open_channel
from taihu.protos import coordinator_pb2 as pb
from taihu.protos.coordinator_pb2_grpc import CoordinatorServiceStub

__all__ = ["fetch_status", "stop_run"]


def fetch_status(address: str, timeout_s: float, security: Security | None = None) -> pb.GetStatusResponse:
    """Ask any run's coordinator for its status, as whoever `security` says.

    Raises:
        PeerUnreachableError: nothing answers at `address` within `timeout_s`.
        RefusedError: it does not let this process look.
    """
    with open_channel(address, security=security) as channel:
        stub = CoordinatorServiceStub(channel)
        return call_until_reachable(
            lambda remaining_s: plain(stub.GetStatus(pb.GetStatusRequest(), timeout=remaining_s)),
            peer=f"coordinator at {address}",
            timeout_s=timeout_s,
            clock=SystemClock(),
        )


def stop_run(address: str, job: str, reason: str, timeout_s: float, security: Security | None = None) -> RunState:
    """Ask the coordinator of `job` at `address` to end it in order, because of `reason`; returns the run's state.

    Raises:
        PeerUnreachableError: nothing answers within `timeout_s`.
        StaleError: it coordinates another job.
        RefusedError: it does not let this process stop it.
    """
    request = pb.StopRequest(job=job, reason=reason)
    with open_channel(address, security=security) as channel:
        stub = CoordinatorServiceStub(channel)
        response = call_until_reachable(
            lambda remaining_s: stub.Stop(request, timeout=remaining_s),
            peer=f"coordinator at {address}",
            timeout_s=timeout_s,
            clock=SystemClock(),
        )
    return state_from_message(response.state)
