"""A worker believes no answer that it did not ask for: what is not of its plan, step or group changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.answers import AnswerProxy
from support.cluster import Cluster, Member, layout_of, make_job
from support.frames import changed

from taihu.core.base.errors import FrameError
from taihu.core.job import Job
from taihu.core.wire.frames.format import message_of
from taihu.core.wire.frames.headers import Frame, FrameHeader, ValueType
from taihu.core.wire.frames.kinds import Gradients, Parameters
from taihu.worker.exchange.making import through_servers

LAYOUT = layout_of(8, 8)

CHANGES: dict[str, tuple[Callable[[FrameHeader], FrameHeader], str]] = {
    "plan": (lambda header: changed(header, plan=2), "plan 2, group 0, offset 0, 8 values: not a frame of plan 1"),
    "step": (lambda header: changed(header, step=2), "answered step 2 during step 1"),
    "group": (lambda header: changed(header, group=1), "group 1, offset 0, 8 values: not a frame of plan 1"),
    "offset": (lambda header: changed(header, offset=8), "group 0, offset 8, 8 values: not a frame of plan 1"),
    "count": (lambda header: changed(header, elements=7), "group 0, offset 0, 7 values: not a frame of plan 1"),
    "kind": (lambda header: replace(header, kind=Gradients()), "sent gradients: expected an answer or parameters"),
    "not asked": (
        lambda header: replace(header, kind=Parameters()),
        "brought parameters of group 0, offset 0 after step 1: not asked for",
    ),
    "type": (
        lambda header: changed(header, value_type=ValueType.BF16),
        "expected a dense one with float32 values",
    ),
}


def first_step(job: Job, member: Member, change: Callable[[Frame], bytes]) -> None:
    """A step whose answers of group 0 are changed on their way; returns when it has been completed."""
    with AnswerProxy(member.addresses[0], change) as proxy:
        exchange = through_servers(job, member.plan, [proxy.address], member.identity, member.arenas)
        with exchange:
            exchange.start()
            exchange.begin(1)
            member.arenas.gradients[:] = 1.0
            exchange.push(0)
            exchange.complete(0)


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("zero", [0, 1])
def test_an_answer_that_was_not_asked_for_is_an_error_and_changes_nothing(kind: str, zero: int) -> None:
    change, told = CHANGES[kind]

    def changed(answer: Frame) -> bytes:
        header = change(answer.header)
        values = answer.values.astype(header.value_type.dtype)[: header.address.elements]
        return message_of(header, [values])

    job = make_job(1, 1, exchange={"plan": "per-layer", "transport": "grpc", "zero": zero})
    with Cluster(job) as cluster, cluster.member(0, LAYOUT) as member:
        before = member.arenas.parameters.copy()
        with pytest.raises(FrameError, match=told):
            first_step(cluster.job, member, changed)
        assert member.arenas.parameters.tobytes() == before.tobytes()


def test_positions_beyond_the_group_are_an_error_and_change_nothing() -> None:
    def changed(answer: Frame) -> bytes:
        # The frame's sections say where its values belong.
        return message_of(answer.header, [answer.values, np.full_like(answer.sections, 255)])

    job = make_job(
        1,
        1,
        exchange={"plan": "per-layer", "transport": "grpc"},
        compression={"method": "dlgs", "density": 0.5},
        optimizer={"momentum": 0.0},
    )
    with Cluster(job) as cluster, cluster.member(0, LAYOUT) as member:
        before = member.arenas.parameters.copy()
        with pytest.raises(FrameError, match="answered group 0"):
            first_step(cluster.job, member, changed)
        assert member.arenas.parameters.tobytes() == before.tobytes()
