"""The processes of a group find each other through the store that torch.distributed hands over."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final

import torch.distributed as dist

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.peer_service import PEER_SERVICE
from taihu.core.base.errors import ConfigError, MemberLostError, PeerUnreachableError
from taihu.core.base.words import said_by
from taihu.core.coordination.listener import Listener, ListenOptions, open_listener
from taihu.core.security.security import Security
from taihu.core.security.token import find_token
from taihu.core.system.chance import random_bits, random_hex
from taihu.core.wire.base.address import advertised_host, is_loopback, join_address
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.torch.group.meeting.agreement import Life, Roster
from taihu.torch.group.meeting.board import Board
from taihu.torch.group.meeting.place import GroupPlace
from taihu.torch.group.meeting.vigil import Vigil

_SPARE_THREADS: Final = 4
_LONGEST_SILENCE_S: Final = 15.0
_LAST_WORD_S: Final = 1.0


@dataclass(frozen=True)
class Meeting:
    """A connected group: its communicator, what listens for the others, which a group of one has not, and its word.

    `word` is the same on all ranks, and no other group's, whatever their names are.
    """

    communicator: Communicator
    listener: Listener | None
    word: str

    def close(self) -> None:
        """Leave in good order."""
        self.communicator.close()
        if self.listener is not None:
            self.listener.close()

    def cut(self) -> None:
        """Leave at once; others have been told why, and have a moment to hear of it."""
        self.communicator.close(within_s=_LAST_WORD_S)
        if self.listener is not None:
            self.listener.close(grace_s=0.0)


def meet(store: Any, place: GroupPlace) -> Meeting:
    """Connect the group's processes, all of which call this; `store` is the group's own part of torch's.

    Raises:
        PeerUnreachableError: a process has not come within the group's timeout, and is named; or the store has gone.
        MemberLostError: a process that had come has gone, or has failed in this; it is named.
        ConfigError: this machine has no address to listen on.
    """
    if place.size == 1:
        return _alone(place)
    listener = listen(store, place)
    with Vigil() as vigil:
        board = Board(store, place, vigil)
        try:
            return _meet(board, place, listener, vigil)
        except dist.DistError as error:
            listener.close(grace_s=0.0)
            raise PeerUnreachableError(
                f"the store that the processes meet at has gone ({error.__class__.__name__}); see what rank 0, or "
                "who has started the processes, does"
            ) from None
        except BaseException as error:
            # Before others find that this rank listens no more.
            board.give_up(said_by(f"worker {place.rank}", str(error) or repr(error)))
            listener.close(grace_s=0.0)
            raise


def meet_by_roster(roster: Roster, place: GroupPlace, listener: Listener) -> Meeting:
    """Connect with all processes of a roster, whose own one listens there; they may be about to connect yet.

    Raises:
        MemberLostError: one of them has gone; it is named.
    """
    if place.size == 1:
        listener.close(grace_s=0.0)
        return _alone(place)
    meeting = Meeting(_communicator(roster, place, listener), listener, roster.word)
    communicator = meeting.communicator
    failures: list[BaseException] = []
    communicator.on_failure(failures.append)

    def lose(rank: int) -> None:
        communicator.fail(MemberLostError(f"worker {rank} was lost while the group was made"))

    try:
        with Vigil() as vigil:
            for rank, life in enumerate(roster.lives):
                if life is not None and rank != place.rank:
                    vigil.watch(rank, life.address)
            with vigil.telling(lose):
                _connect(communicator, roster, place, listener)
        if failures:
            raise failures[0]
    except BaseException as error:
        communicator.fail(error)
        meeting.cut()
        raise
    return meeting


def _alone(place: GroupPlace) -> Meeting:
    word = _new_word()
    return Meeting(Communicator(WorkerIdentity(word, 0, 0), 1, timeout_s=place.timeout_s), None, word)


def _meet(board: Board, place: GroupPlace, listener: Listener, vigil: Vigil) -> Meeting:
    life = Life(random_bits(62), listener.address)
    roster = board.join(life) if place.rank else board.host(life, _new_word)
    meeting = Meeting(_communicator(roster, place, listener), listener, roster.word)
    communicator = meeting.communicator
    try:
        # Until all have connected nobody leaves in good order.
        with vigil.telling(lambda rank: communicator.fail(board.lost(rank))):
            _connect(communicator, roster, place, listener)
        # Nobody may leave, however little it has to do, while others are about to connect to it.
        board.wait_for_all("connected", roster)
    except BaseException as error:
        communicator.fail(error)
        meeting.cut()
        raise
    return meeting


def _new_word() -> str:
    return f"torch-{random_hex(8)}"


def _communicator(roster: Roster, place: GroupPlace, listener: Listener) -> Communicator:
    lives = [life for life in roster.lives if life is not None]
    identity = WorkerIdentity(roster.word, place.rank, lives[place.rank].incarnation)
    return Communicator(
        identity,
        place.size,
        timeout_s=place.timeout_s,
        listener=listener.direct,
        security=listener.options.security,
    )


def _connect(communicator: Communicator, roster: Roster, place: GroupPlace, listener: Listener) -> None:
    lives = [life for life in roster.lives if life is not None]
    communicator.register(listener.rpc.grpc_server)
    listener.rpc.start([PEER_SERVICE])
    addresses = [life.address for life in lives]
    _check_reach(addresses, place)
    communicator.admit([life.incarnation for life in lives], mesh=True)
    communicator.connect(addresses, mesh=True)


def listen(store: Any, place: GroupPlace) -> Listener:
    """Listen for a group's processes, at the address by which this machine reaches torch's store.

    Raises:
        ConfigError: this machine has no address to listen on.
    """
    patience = Patience(max(1.0, min(_LONGEST_SILENCE_S, place.timeout_s)))
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


def _check_reach(addresses: list[str], place: GroupPlace) -> None:
    """Refuse addresses that only processes of one machine can mean beside others that all can."""
    local = [rank for rank, address in enumerate(addresses) if is_loopback(address)]
    if local and len(local) != len(addresses):
        raise ConfigError(
            f"group {place.name!r}: rank {local[0]} is reached at {addresses[local[0]]}, others at other machines' "
            "addresses; give MASTER_ADDR as an address that all machines reach"
        )
