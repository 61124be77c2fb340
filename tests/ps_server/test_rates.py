"""Learning rates that workers bring a server's shard: before their gradients, for each attempt, all alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.frames import header_of
from support.shards import LAYOUT, NOTHING, Clock, Values, make_plan, shard_job

from taihu.core.base.errors import FrameError, GivenUpError, StaleError
from taihu.core.job.update_rules import UpdateRules
from taihu.core.planner.partition import Shard
from taihu.core.settings import OptimizerSettings
from taihu.core.wire.frames.headers import Frame, FrameHeader, ValueType
from taihu.core.wire.frames.kinds import Encoding, Rates
from taihu.ps_server.server_shard import ServerShard
from taihu.ps_server.updating import Answer

RULES = UpdateRules((OptimizerSettings(momentum=0.0),), (0.0, 0.1), (0, 1, 1, 0, 1), (0, 0))
PLAN = replace(make_plan(), updates=RULES)


def shard_of(parameters: Values) -> ServerShard:
    shard = ServerShard(
        shard_job({}), Shard(LAYOUT, 1, 0), PLAN, parameters, incarnation=7, get_plan=lambda: PLAN, clock=Clock()
    )
    for rank in range(2):
        shard.admit(rank, 70 + rank)
    return shard


def header(rank: int, step: int, attempt: int, **fields: object) -> FrameHeader:
    place = {"group": 0, "offset": 0, "elements": 0, **fields}
    return header_of(70 + rank, 1, step, rank=rank, attempt=attempt, **place)  # type: ignore[arg-type]


def rates(rank: int, step: int, *values: float, attempt: int = 0) -> Frame:
    encoding = Encoding.DENSE if values else Encoding.NONE
    own = header(
        rank, step, attempt, elements=len(values), kind=Rates(), encoding=encoding, value_type=ValueType.FP64
    )
    return Frame(own, np.array(values), NOTHING)


def push(shard: ServerShard, rank: int, step: int, *, attempt: int = 0) -> list[object]:
    """Push gradients of ones."""
    frames = Shard(LAYOUT, 1, 0).frames(PLAN.groups, PLAN.frame_elements)
    return [
        shard.push(
            Frame(
                header(rank, step, attempt, group=frame.group, offset=frame.offset, elements=frame.count),
                np.ones(frame.count, dtype=np.float32),
                NOTHING,
            )
        )
        for frame in frames
    ]


def test_each_step_goes_by_the_rates_that_came_with_it() -> None:
    parameters = np.ones(LAYOUT.elements, dtype=np.float32)
    shard = shard_of(parameters)
    expected = np.ones(LAYOUT.elements)
    in_first = np.repeat(
        [group == 0 for group in RULES.parameter_groups], [layer.elements for layer in LAYOUT.layers]
    )
    for step, (first, second) in enumerate([(0.5, 0.1), (0.25, 0.0), (0.0, 1.0)], 1):
        shard.take_rates(rates(1, step, first, second))
        shard.take_rates(rates(0, step, *((first, second) if step < 3 else ())))
        push(shard, 0, step)
        assert all(isinstance(answer, Answer) for answer in push(shard, 1, step))
        expected -= np.where(in_first, first, second * (1 + 0.1 * expected))
    np.testing.assert_allclose(parameters, expected, rtol=1e-6)


def test_gradients_without_rates_change_nothing() -> None:
    parameters = np.ones(LAYOUT.elements, dtype=np.float32)
    shard = shard_of(parameters)
    shard.take_rates(rates(0, 1, 0.5, 0.5))
    push(shard, 0, 1)
    with pytest.raises(FrameError, match="worker 1 pushed gradients of step 1 before their learning rates"):
        push(shard, 1, 1)
    assert (parameters == 1.0).all()


def test_an_attempt_brings_its_rates_again() -> None:
    parameters = np.ones(LAYOUT.elements, dtype=np.float32)
    shard = shard_of(parameters)
    shard.take_rates(rates(0, 1, 0.5, 0.5))
    push(shard, 0, 1)
    shard.take_rates(rates(1, 1, 0.25, 0.0, attempt=1))
    push(shard, 1, 1, attempt=1)
    with pytest.raises(GivenUpError):
        shard.take_rates(rates(0, 1, 0.5, 0.5))
    shard.take_rates(rates(0, 1, 0.25, 0.0, attempt=1))
    push(shard, 0, 1, attempt=1)
    assert set(parameters.tolist()) == {0.75, 1.0}


def test_rates_out_of_turn_are_refused() -> None:
    shard = shard_of(np.ones(LAYOUT.elements, dtype=np.float32))
    with pytest.raises(StaleError, match="worker 0 brings learning rates of step 2 out of turn"):
        shard.take_rates(rates(0, 2, 0.5, 0.5))
    plain = ServerShard(
        shard_job({}),
        Shard(LAYOUT, 1, 0),
        make_plan(),
        np.ones(LAYOUT.elements, dtype=np.float32),
        incarnation=7,
        get_plan=make_plan,
    )
    with pytest.raises(FrameError, match="this job has its own"):
        plain.take_rates(rates(0, 1, 0.5))
