"""Frames of what has not begun: they wait within a bound, and then nothing more is read."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.daemons import wait_for
from support.peers import Peers

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.order.fence import EarlyFrames, Held, waiting_bytes
from taihu.allreduce.order.operation import OperationKey
from taihu.allreduce.parts.messages import Receive
from taihu.core.wire.frames.headers import Address, At, FrameHeader, ValueType
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import ActivationPart, RingSegment

FRAME = 1 << 20
BUDGET = 4 * FRAME
KEYS = st.builds(lambda group, attempt: OperationKey(At(1, 1, attempt), group), st.integers(0, 2), st.integers(0, 2))


@given(st.lists(st.tuples(st.sampled_from(["put", "pop", "abort"]), KEYS, st.integers(0, 2), st.integers(0, 9))))
def test_what_waits_is_counted_by_sender(acts: list[tuple[str, OperationKey, int, int]]) -> None:
    held = Held()
    early, kept = EarlyFrames[int](held), list[tuple[OperationKey, int, int, int]]()
    for number, (act, key, sender, size) in enumerate(acts):
        if act == "put":
            early.put(key, sender, size, number)
            kept.append((key, sender, size, number))
        elif act == "pop":
            assert early.pop(key) == [each[3] for each in kept if each[0] == key]
            kept = [each for each in kept if each[0] != key]
        else:
            early.abort(key.at.attempt)
            kept = [each for each in kept if each[0].at.attempt >= key.at.attempt]
        for rank in range(3):
            assert held[rank] == sum(waiting_bytes(size) for _, of, size, _ in kept if of == rank)


def held(communicator: Communicator, sender: int) -> int:
    return communicator._operations._held[sender]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("kind", [RingSegment(0), ActivationPart(1)])
def test_who_is_too_far_ahead_is_not_read_until_others_begin(
    kind: RingSegment | ActivationPart, direct: bool
) -> None:
    """Segments of operations that never begin made a process grow as long as they came."""
    values = np.ones(FRAME // 4, dtype=np.float32)
    with Peers(2, mesh=True, direct=direct, early_bytes=BUDGET) as peers:
        sender, receiver = peers.communicators
        link, me = sender._links[1], Sender(1000, 0)
        for number in range(100, 140):
            at = Address(At(0, 0), number, 0, len(values))
            link.send(FrameHeader(me, at, kind, value_type=ValueType.FP32), [values])
        wait_for(lambda: held(receiver, 0) >= BUDGET, "nothing comes", 20)
        # The reader stands in the frame that there is no room for.
        wait_for(lambda: any(map(_stands, threading.enumerate())), "all is read", 20)
        assert BUDGET <= held(receiver, 0) <= BUDGET + 2 * waiting_bytes(FRAME)


def _stands(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "_await_room":
            return True
        frame = frame.f_back
    return False


@pytest.mark.parametrize("direct", [True, False])
def test_messages_that_nobody_asks_for_wait_within_the_bound_and_arrive(direct: bool) -> None:
    count = 12
    sent: list[int] = []
    with Peers(2, mesh=True, direct=direct, early_bytes=BUDGET) as peers:
        sender, receiver = peers.communicators
        for tag in range(count):
            values = np.full(FRAME // 2, tag, dtype=np.uint16)
            sender.send(1, tag, values, lambda tag=tag: sent.append(tag))  # type: ignore[misc]
        wait_for(lambda: any(map(_stands, threading.enumerate())), "all is read", 20)
        assert held(receiver, 0) <= BUDGET + 2 * waiting_bytes(FRAME)
        for tag in range(count):
            done = threading.Event()
            receive = Receive(np.zeros(FRAME // 2, dtype=np.uint16), 0, tag, done.set)
            receiver.receive(receive)
            assert done.wait(120)
            assert (receive.values == tag).all()
        assert held(receiver, 0) == 0


def test_who_stands_is_let_go_by_the_end() -> None:
    values = np.ones(FRAME // 4, dtype=np.float32)
    with ThreadPoolExecutor(1) as pool:
        peers = Peers(2, mesh=True, early_bytes=BUDGET)
        with peers:
            sender, _ = peers.communicators
            for number in range(100, 110):
                header = FrameHeader(Sender(1000, 0), Address(At(0, 0), number, 0, len(values)), RingSegment(0))
                sender._links[1].send(header, [values])
            wait_for(lambda: any(map(_stands, threading.enumerate())), "all is read", 20)
            ended = pool.submit(peers.communicators[1].close)
            ended.result(timeout=120)
        assert not any(map(_stands, threading.enumerate()))
