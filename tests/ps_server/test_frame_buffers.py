"""Buffers of frames: never lent twice at a time, used again, and nobody else's memory is taken for one."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.typing import NDArray

from taihu.ps_server.summing import FrameBuffers

KINDS = st.tuples(st.integers(1, 3), st.sampled_from([np.float32, np.uint16]))


class Lending(RuleBasedStateMachine):
    """Whoever has a buffer writes his own number into it, and finds it until he gives it back."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers = FrameBuffers()
        self.lent: list[tuple[int, NDArray[Any]]] = []
        self.number = 0

    @rule(kind=KINDS)
    def lend(self, kind: tuple[int, type]) -> None:
        array = self.buffers.lend(*kind)
        assert (array.shape, array.dtype) == ((kind[0],), np.dtype(kind[1]))
        self.number += 1
        array[...] = self.number
        self.lent.append((self.number, array))

    @precondition(lambda self: self.lent)
    @rule(data=st.data(), through_view=st.booleans(), twice=st.booleans())
    def give_back(self, data: st.DataObject, through_view: bool, twice: bool) -> None:
        _, array = self.lent.pop(data.draw(st.integers(0, len(self.lent) - 1)))
        values = array.view(np.uint8)[: array.nbytes].view(array.dtype) if through_view else array
        for _ in range(1 + twice):
            self.buffers.give_back([values])

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        self.lent.pop(data.draw(st.integers(0, len(self.lent) - 1)))

    @rule()
    def give_what_was_not_lent(self) -> None:
        strange = np.zeros(2, dtype=np.float32)
        self.buffers.give_back([strange])
        self.buffers.give_back([strange[:1]])
        self.buffers.give_back([np.frombuffer(bytes(8), dtype=np.float32)])
        assert self.buffers.lend(2, np.float32) is not strange

    @rule()
    def free_all(self) -> None:
        self.buffers.free_all()

    @invariant()
    def nobody_else_writes(self) -> None:
        for number, array in self.lent:
            assert (array == number).all()


TestLending = Lending.TestCase
TestLending.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)


def test_what_was_given_back_is_lent_again() -> None:
    buffers = FrameBuffers()
    first, second = buffers.lend(10, np.float32), buffers.lend(10, np.float32)
    buffers.give_back([first[2:5]])
    assert buffers.lend(10, np.uint16) is not first
    assert buffers.lend(10, np.float32) is first
    assert buffers.lend(10, np.float32) is not second


def test_a_buffer_that_is_lost_is_freed() -> None:
    buffers = FrameBuffers()
    lost = weakref.ref(buffers.lend(10, np.float32))
    assert lost() is None
