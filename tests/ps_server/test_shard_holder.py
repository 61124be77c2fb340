"""Initial parameters on their way in, and those who wait for them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from support.cluster import layout_of
from support.frames import changed, initial_header, read
from support.shards import LAYOUT, Clock, Driven, Values, make_plan, shard_job

from taihu.core.base.errors import FrameError, ModelError, PeerUnreachableError, RunError, StaleError, TaihuError
from taihu.core.planner.partition import FrameSpec, Shard
from taihu.core.wire.frames.headers import FrameHeader
from taihu.core.wire.frames.kinds import Gradients, Summed
from taihu.ps_server.shard_holder import Initialization, ShardHolder


def make_holder(index: int = 0, servers: int = 1, transport: str = "tcp") -> ShardHolder:
    job = shard_job({"exchange": {"transport": transport}}, servers=servers)
    return ShardHolder(job, index, 7, make_plan, Clock())


def header_at(spec: FrameSpec) -> FrameHeader:
    return initial_header(70, 1, 0, spec.group, spec.offset, spec.count, 0)


def write_all(initial: Initialization, values: Values, partition: Shard) -> None:
    for spec in partition.state_frames(40):
        initial.write(header_at(spec), values[spec.offset : spec.offset + spec.count])


@pytest.mark.parametrize("index", [0, 1])
def test_the_shard_holds_what_was_brought(index: int) -> None:
    holder = make_holder(index, servers=2)
    initial = holder.begin(LAYOUT)
    partition = Shard(LAYOUT, 2, index)
    values = np.arange(partition.elements, dtype=np.float32)
    write_all(initial, values, partition)
    with pytest.raises(StaleError, match="no parameters yet; worker 0 initializes them first"):
        assert holder.shard
    shard = holder.adopt(initial)
    assert shard is holder.shard is holder.wait(0)
    assert (shard.elements, shard.step, shard.plan.version) == (partition.elements, 0, 1)
    frames = [read(message) for message in shard.read()]
    assert (np.concatenate([frame.values for frame in frames]) == values).all()
    assert {(frame.header.sender.incarnation, frame.header.address.at.step) for frame in frames} == {(0, 0)}


def test_of_two_initializations_at_once_the_first_complete_one_counts() -> None:
    holder = make_holder()
    first, second = holder.begin(LAYOUT), holder.begin(LAYOUT)
    partition = Shard(LAYOUT, 1, 0)
    write_all(second, np.ones(LAYOUT.elements, np.float32), partition)
    write_all(first, np.zeros(LAYOUT.elements, np.float32), partition)
    shard = holder.adopt(second)
    with pytest.raises(StaleError, match="initialized already; only worker 0 does so, once"):
        holder.adopt(first)
    with pytest.raises(StaleError, match="initialized already"):
        holder.begin(LAYOUT)
    assert holder.shard is shard
    assert all((read(message).values == 1.0).all() for message in shard.read())


def test_the_shard_has_the_life_and_the_clock_of_its_holder() -> None:
    holder = make_holder()
    initial = holder.begin(LAYOUT)
    write_all(initial, np.ones(LAYOUT.elements, np.float32), Shard(LAYOUT, 1, 0))
    workers = Driven(shard_job({}))
    workers.shard = holder.adopt(initial)
    for rank in range(2):
        workers.shard.admit(rank, 70 + rank)
    headers = [answer.header for answer in workers.step(1).values()]
    assert {(header.sender.incarnation, header.expect(Summed).completed_s) for header in headers} == {(7, 5.0)}


def test_parameters_of_another_model_are_refused() -> None:
    with pytest.raises(ModelError, match="initial parameters are of another model: layer layer0"):
        make_holder().begin(layout_of(31, 7, 1, 64, 21))


def test_frames_that_are_none_of_the_initial_ones_are_refused_and_write_nothing() -> None:
    initial = make_holder().begin(LAYOUT)
    initial.parameters[:] = 3.0
    spec = Shard(LAYOUT, 1, 0).state_frames(40)[1]
    right, values = header_at(spec), np.zeros(spec.count, np.float32)
    with pytest.raises(StaleError, match="initial frame of plan 2; expected plan 1"):
        initial.write(changed(right, plan=2), values)
    for wrong in ({"offset": 1}, {"elements": spec.count - 1}, {"step": 1}, {"rank": 1}, {"rank": None}):
        with pytest.raises(FrameError, match="expected each frame of the plan once, at step 0, of worker 0"):
            initial.write(changed(right, **wrong), values)
    with pytest.raises(FrameError, match="worker 0 sent gradients: expected parameters"):
        initial.write(replace(right, kind=Gradients()), values)
    assert (initial.parameters == 3.0).all()
    initial.write(right, values)
    with pytest.raises(FrameError, match=f"worker 0 at offset {spec.offset} with {spec.count} values"):
        initial.write(right, values)
    untouched = np.delete(initial.parameters, np.s_[spec.offset : spec.offset + spec.count])
    assert (untouched == 3.0).all()


def test_incomplete_parameters_make_no_shard() -> None:
    holder = make_holder()
    initial = holder.begin(LAYOUT)
    for spec in Shard(LAYOUT, 1, 0).state_frames(40)[1:]:
        initial.write(header_at(spec), np.zeros(spec.count, np.float32))
    with pytest.raises(FrameError, match="initial parameters: 1 of 4 frames did not come"):
        holder.adopt(initial)
    with pytest.raises(StaleError):
        assert holder.shard


def test_who_waits_gets_the_shard_or_is_told_why_not() -> None:
    holder = make_holder()
    with pytest.raises(PeerUnreachableError, match=r"worker 0 brought no initial parameters within 0.01 s"):
        holder.wait(0.01)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(holder.wait, 60) for _ in range(2)]
        initial = holder.begin(LAYOUT)
        write_all(initial, np.zeros(LAYOUT.elements, np.float32), Shard(LAYOUT, 1, 0))
        shard = holder.adopt(initial)
        assert [each.result(timeout=120) for each in waiting] == [shard, shard]
        empty = make_holder()
        failing = pool.submit(empty.wait, 60)
        for reason in ("out of paper", "later"):
            empty.fail(RunError(reason))
        with pytest.raises(TaihuError, match=r"^out of paper$"):
            failing.result(timeout=120)
    holder.fail(RunError("out of ink"))
    for each in (holder, empty):
        with pytest.raises(RunError):
            each.wait(3)


def test_parameters_lie_where_others_can_map_them_until_that_ends() -> None:
    holder = make_holder(transport="auto")
    holder.stop_sharing()
    initial = holder.begin(LAYOUT)
    assert initial.buffer is not None
    write_all(initial, np.ones(LAYOUT.elements, np.float32), Shard(LAYOUT, 1, 0))
    shard = holder.adopt(initial)
    mapped = Driven(shard_job({}), buffer=initial.buffer).shard.share(initial.buffer.descriptor)[0]
    assert (mapped == 1.0).all()
    assert shard.share(initial.buffer.descriptor)[1] == initial.buffer.descriptor
    holder.stop_sharing()
    with pytest.raises(TaihuError):
        shard.share(initial.buffer.descriptor)
    assert make_holder(transport="tcp").begin(LAYOUT).buffer is None
