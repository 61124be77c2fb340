"""The processes of a group find each other through the store that torch.distributed hands over."""

from __future__ import annotations

import math
import os
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from allreduce.communicator import Communicator
from allreduce.peer_service import PEER_SERVICE
from taihu.coordination.listener import Listener, ListenOptions, open_listener
from taihu.errors import ConfigError, PeerUnreachableError
from taihu.security.security import Security
from taihu.security.token import find_token
from taihu.wire.address import advertised_host, is_loopback, join_address
from taihu.wire.identity import WorkerIdentity
from taihu.wire.patience import Patience

__all__ = ["Meeting", "Place", "meet"]

_SPARE_THREADS = 4
_LONGEST_SILENCE_S = 15.0


@dataclass(frozen=True)
class Place:
    """A process's place in a group: `rank` of `size`; `name` is the group's, `timeout_s` that of its operations."""

    name: str
    rank: int
    size: int
    timeout_s: float


@dataclass(frozen=True)
class Meeting:
    """A connected group: its communicator, and what listens for the others, which a group of one has not."""

    communicator: Communicator
    listener: Listener | None

    def close(self) -> None:
        """Leave in good order."""
        self.communicator.close()
        if self.listener is not None:
            self.listener.close()


def meet(store: Any, place: Place) -> Meeting:
    """Connect the group's processes, all of which call this; `store` is the group's own part of torch's.

    Raises:
        PeerUnreachableError: a process has not come within the group's timeout; it is named.
        ConfigError: this machine has no address to listen on.
    """
    deadline = time.monotonic() + place.timeout_s
    if place.rank == 0:
        store.set("job", f"torch-{secrets.token_hex(8)}")
    patience = Patience(max(1.0, min(_LONGEST_SILENCE_S, place.timeout_s)))
    if place.size == 1:
        identity = WorkerIdentity(_get(store, "job", "rank 0", place, deadline), 0, 0)
        return Meeting(Communicator(identity, 1, timeout_s=place.timeout_s), None)
    listener = _listen(store, place, patience)
    try:
        communicator = _connect(store, place, listener, deadline)
    except BaseException:
        listener.close(grace_s=0.0)
        raise
    return Meeting(communicator, listener)


def _connect(store: Any, place: Place, listener: Listener, deadline: float) -> Communicator:
    job = _get(store, "job", "rank 0", place, deadline)
    identity = WorkerIdentity(job, place.rank, secrets.randbits(62))
    communicator = Communicator(
        identity,
        place.size,
        timeout_s=place.timeout_s,
        listener=listener.direct,
        security=listener.options.security,
    )
    communicator.register(listener.rpc.grpc_server)
    listener.rpc.start([PEER_SERVICE])
    store.set(f"incarnation/{place.rank}", str(identity.incarnation))
    store.set(f"address/{place.rank}", listener.address)
    ranks = range(place.size)
    addresses = [_get(store, f"address/{rank}", f"rank {rank}", place, deadline) for rank in ranks]
    _check_reach(addresses, place)
    lives = [int(_get(store, f"incarnation/{rank}", f"rank {rank}", place, deadline)) for rank in ranks]
    communicator.admit(lives, mesh=True)
    communicator.connect(addresses, mesh=True)
    # Nobody may leave, however little it has to do, while others are about to connect to it.
    store.set(f"connected/{place.rank}", "")
    for rank in ranks:
        _get(store, f"connected/{rank}", f"rank {rank}", place, deadline)
    return communicator


def _listen(store: Any, place: Place, patience: Patience) -> Listener:
    host = _own_host(store)
    threads = 3 * place.size + _SPARE_THREADS
    # Groups have no job, and no identities: where `taihu run` has given this process a token, that holds here, too.
    security = Security(token=find_token(os.environ, None))
    options = ListenOptions(join_address(host, 0), patience=patience, security=security)
    return open_listener(options, None, threads=threads)


def _own_host(store: Any) -> str:
    """The address by which this machine reaches the store, or its loopback where the store is a file."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, dist.TCPStore):
        return "127.0.0.1"
    return advertised_host("", join_address(store.host, store.port))


def _check_reach(addresses: list[str], place: Place) -> None:
    """Refuse addresses that only processes of one machine can mean beside others that all can."""
    local = [rank for rank, address in enumerate(addresses) if is_loopback(address)]
    if local and len(local) != len(addresses):
        raise ConfigError(
            f"group {place.name!r}: rank {local[0]} is reached at {addresses[local[0]]}, others at other machines' "
            "addresses; give MASTER_ADDR as an address that all machines reach"
        )


def _get(store: Any, key: str, owner: str, place: Place, deadline: float) -> str:
    """The store's value of `key`, which `owner` sets."""
    left_ms = max(1, math.ceil(1000.0 * (deadline - time.monotonic())))
    try:
        store.wait([key], timedelta(milliseconds=left_ms))
        return bytes(store.get(key)).decode()
    except dist.DistError as error:
        raise PeerUnreachableError(
            f"group {place.name!r}: {owner} has not come within {place.timeout_s:g} s; start all {place.size} "
            f"processes, or give a longer timeout ({error.__class__.__name__})"
        ) from None
