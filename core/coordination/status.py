"""Asking a run how it is, and to stop: for who looks on, without what its members need."""

from __future__ import annotations

from taihu.core.coordination.control.looking import GetStatus, RunStatus, Stop
from taihu.core.coordination.control.remote import ask_from_outside
from taihu.core.coordination.membership.members import RunState
from taihu.core.security.security import Security


def fetch_status(address: str, timeout_s: float, security: Security | None = None) -> RunStatus:
    """Ask any run's coordinator for its status, as whoever `security` says.

    Raises:
        PeerUnreachableError: nothing answers at `address` within `timeout_s`.
        RefusedError: it does not let this process look.
    """
    return ask_from_outside(address, GetStatus(), timeout_s, security)


def stop_run(address: str, job: str, reason: str, timeout_s: float, security: Security | None = None) -> RunState:
    """Ask the coordinator of `job` at `address` to end it in order, because of `reason`; returns the run's state.

    Raises:
        PeerUnreachableError: nothing answers within `timeout_s`.
        StaleError: it coordinates another job.
        RefusedError: it does not let this process stop it.
    """
    return ask_from_outside(address, Stop(job, reason), timeout_s, security)
