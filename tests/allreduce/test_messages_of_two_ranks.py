"""Messages of two ranks: frames in any order of asking and arriving find their receive, or are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.allreduce.order.fence import Held
from taihu.allreduce.parts.messages import MessagesMesh, Receive
from taihu.core.base.errors import FrameError
from taihu.core.wire.frames.headers import FrameHeader
from taihu.core.wire.frames.identity import WorkerIdentity

FRAME = 1 << 19
"""Values of 16 bits in a frame."""


class Network:
    """Messages of each of `size` ranks to rank 0; frames arrive when they are let through."""

    def __init__(self, size: int = 3) -> None:
        self.frames: dict[int, list[tuple[FrameHeader, NDArray[Any]]]] = {rank: [] for rank in range(size)}
        self.senders = [self._mesh(rank) for rank in range(size)]
        self.receiver = self.senders[0]
        self.done: list[Receive] = []

    def _mesh(self, rank: int) -> MessagesMesh:
        sender = rank

        def send(rank: int, header: FrameHeader, pieces: Sequence[NDArray[Any]]) -> None:
            assert rank == 0
            self.frames[sender].append((header, pieces[0].copy()))

        def after(rank: int, callback: Callable[[], None]) -> None:
            assert rank == 0
            callback()

        return MessagesMesh(WorkerIdentity("job", sender, 7), send, after, Held())

    def send(self, rank: int, tag: int, values: NDArray[np.uint16]) -> None:
        sent: list[bool] = []
        self.senders[rank].send(0, tag, values, lambda: sent.append(True))
        assert sent

    def let_through(self, rank: int) -> None:
        """The next frame of a rank arrives, in its place if it has one."""
        header, values = self.frames[rank].pop(0)
        places = self.receiver.places(header)
        if places is not None:
            places[0][:] = values
        done = self.receiver.take(header, None if places is not None else values)
        if done is not None:
            self.done.append(done)

    def receive(self, size: int, sender: int | None, tag: int) -> Receive:
        receive = Receive(np.zeros(size, dtype=np.uint16), sender, tag)
        if self.receiver.post(receive):
            self.done.append(receive)
        return receive


def values(size: int, seed: int) -> NDArray[np.uint16]:
    return np.random.default_rng(seed).integers(0, 1 << 16, size, dtype=np.uint16)


@given(st.data())
def test_each_receive_gets_the_first_message_that_it_means(data: st.DataObject) -> None:
    network = Network()
    sizes = st.sampled_from([0, 1, 7, FRAME, 2 * FRAME + 3])
    sent = data.draw(st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(0, 1), sizes), max_size=6))
    messages = [(sender, tag, values(size, seed)) for seed, (sender, tag, size) in enumerate(sent)]
    for sender, tag, each in messages:
        network.send(sender, tag, each)
    waiting = list(messages)
    receives: list[tuple[Receive, NDArray[np.uint16]]] = []
    while waiting or any(network.frames.values()):
        moves = [f"frame {rank}" for rank in (1, 2) if network.frames[rank]] + ["receive"] * bool(waiting)
        move = data.draw(st.sampled_from(moves))
        if move == "receive":
            meant = data.draw(st.sampled_from([(sender, tag) for sender, tag, _ in waiting]))
            sender, tag, expected = next(each for each in waiting if each[:2] == meant)
            waiting = [each for each in waiting if each[2] is not expected]
            receives.append((network.receive(len(expected), sender, tag), expected))
        else:
            network.let_through(int(move.removeprefix("frame ")))
    assert len(network.done) == len(receives) == len(messages)
    for receive, expected in receives:
        np.testing.assert_array_equal(receive.values, expected)


def test_any_sender_is_who_comes_first() -> None:
    network = Network()
    first, second = network.receive(3, None, 5), network.receive(3, None, 5)
    network.send(1, 5, values(3, 1))
    network.send(2, 5, values(3, 2))
    network.let_through(2)
    network.let_through(1)
    assert (first.sender, second.sender) == (2, 1)
    np.testing.assert_array_equal(first.values, values(3, 2))


def test_a_receive_of_another_tag_or_sender_waits() -> None:
    network = Network()
    network.receive(3, 1, 6)
    network.receive(3, 2, 5)
    network.send(1, 5, values(3, 1))
    network.let_through(1)
    assert not network.done
    assert network.receiver.awaits(1)
    assert network.receiver.awaits(2)
    taken = network.receive(3, 1, 5)
    assert network.done == [taken]


@pytest.mark.parametrize("size", [0, FRAME, FRAME + 2, 3 * FRAME])
@pytest.mark.parametrize("early", [False, True])
def test_a_message_of_another_size_is_refused(size: int, early: bool) -> None:
    network = Network()
    network.send(1, 5, values(FRAME + 1, 1))

    def meet() -> None:
        if not early:
            network.receive(size, 1, 5)
        while network.frames[1]:
            network.let_through(1)
        network.receive(size, 1, 5)

    with pytest.raises(FrameError, match=rf"worker 1 sent a message with tag 5: .* the receive expects {size}"):
        meet()


def test_a_frame_out_of_turn_is_refused() -> None:
    network = Network()
    network.send(1, 5, values(2 * FRAME, 1))
    network.frames[1].reverse()
    with pytest.raises(FrameError, match="expected 0"):
        network.let_through(1)
