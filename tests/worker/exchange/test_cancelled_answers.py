"""An answer that is being taken while its step is given up ends well: a receiver is not told of the abort."""

from __future__ import annotations

import numpy as np
from support.cluster import layout_of
from support.frames import initial_header

from taihu.core.planner.groups import Group
from taihu.core.planner.partition import Framing, Shard
from taihu.core.wire.frames.headers import At, ValueType
from taihu.worker.exchange.servers.answers import ByServers, ServerAnswers

LAYOUT = layout_of(8)


def test_a_fetch_that_is_being_received_when_the_step_is_given_up_is_taken_as_asked_for() -> None:
    parameters = np.zeros(8, dtype=np.float32)
    framing = Framing(Shard(LAYOUT, 1, 0), (Group(0, 0),), 8)
    answers = ServerAnswers("server 0", ByServers(parameters), ValueType.FP32, framing, 1)
    (frame,) = framing.by_group[0]
    answers.begin(At(1, 3, 0))
    answers.expect(frame, 2)
    # Parameters as they were after the step before.
    header = initial_header(1, 1, 2, 0, frame.offset, 8)
    assert answers.is_present(header)
    answers.cancel()
    (place,) = answers.places(header)
    place[:] = 1.0
    answers.received(header)
    assert parameters.tolist() == [1.0] * 8
    assert not answers.is_present(header)
