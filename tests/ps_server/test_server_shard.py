"""A server's shard, frame by frame, against the update rules in plain NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from support.frames import changed, header_of, read
from support.shards import GROUPS, KINDS, LAYOUT, Driven, Step, all_told, bits, driven, make_plan, shard_job, told

from taihu.core.base.errors import FrameError, MemberLostError, ModelError, SharedMemoryError, StaleError
from taihu.core.wire.frames.headers import At, Frame, FrameHeader, ValueType
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Encoding, Parameters, Summed
from taihu.core.wire.links.shared_memory import SharedBuffer
from taihu.kernels.base.half import from_half, to_half
from taihu.kernels.packing import packed_bound
from taihu.ps_server.aggregator import Outcome
from taihu.ps_server.updating import Answer

Wide = NDArray[np.float64]

RATE = 0.1


def mean(run: Driven, gradients: Step) -> Wide:
    """The sum of what the workers pushed, over the whole arena."""
    whole = np.zeros(run.partition.elements)
    for frame in run.frames:
        whole[frame.offset : frame.offset + frame.count] = np.mean(gradients[frame.offset], axis=0, dtype=np.float64)
    return whole


def pushed(run: Driven, gradients: Step) -> NDArray[np.bool_]:
    """The positions at which any worker pushed something."""
    return np.concatenate([np.any(np.array(gradients[frame.offset]) != 0, axis=0) for frame in run.frames])


SELECTED = {"method": "lags", "density": 0.2, "downlink": "dense", "momentum_at": "servers"}


@pytest.mark.parametrize("kind", ["sgd", "momentum", "bf16", "fp16", "selected"])
def test_parameters_follow_the_mean_and_all_come_back(kind: str) -> None:
    run = Driven(shard_job({"compression": SELECTED})) if kind == "selected" else driven(kind)
    rule = run.job.optimizer
    expected, velocity = run.parameters.astype(np.float64), np.zeros(run.partition.elements)
    for step in range(1, 5):
        gradients = run.gradients(step)
        answers = run.step(step, gradients, loss_scale=2.0**step if run.kind else 1.0)
        velocity = rule.momentum * velocity + mean(run, gradients) + rule.weight_decay * expected
        expected -= RATE * velocity
        np.testing.assert_allclose(run.parameters, expected, rtol=1e-5, atol=1e-6)
        present = run.parameters.copy()
        if run.kind is not None:
            codes = np.empty(len(present), np.uint16)
            to_half(run.parameters, run.kind, codes)
            from_half(codes, run.kind, present)
        assert all_told(run, answers) == dict(enumerate(present.tolist()))
        assert run.shard.step == step


def test_any_optimizer_follows_what_was_selected_and_all_parameters_come_back() -> None:
    run = driven("sparse push")
    rule = run.job.optimizer
    expected = run.parameters.astype(np.float64)
    first, second = np.zeros_like(expected), np.zeros_like(expected)
    for step in range(1, 5):
        gradients = run.gradients(step)
        answers = run.step(step, gradients)
        gradient = mean(run, gradients)
        first = rule.beta1 * first + (1 - rule.beta1) * gradient
        second = rule.beta2 * second + (1 - rule.beta2) * gradient**2
        root = np.sqrt(second / (1 - rule.beta2**step)) + rule.epsilon
        expected -= RATE * first / (1 - rule.beta1**step) / root
        np.testing.assert_allclose(run.parameters, expected, rtol=1e-4, atol=1e-5)
        assert all_told(run, answers) == dict(enumerate(run.parameters.tolist()))


def test_an_exact_pull_brings_what_any_worker_pushed() -> None:
    run = driven("sparse pull")
    expected = run.parameters.astype(np.float64)
    for step in range(1, 4):
        gradients = run.gradients(step)
        answers = run.step(step, gradients)
        expected -= RATE * mean(run, gradients)
        np.testing.assert_allclose(run.parameters, expected, rtol=1e-5, atol=1e-6)
        assert all_told(run, answers) == {at: run.parameters[at] for at in np.flatnonzero(pushed(run, gradients))}


def test_a_squeezed_pull_brings_the_largest_and_holds_the_rest_back() -> None:
    settings = {"method": "topk", "density": 0.1, "downlink": "doublesqueeze"}
    run = Driven(shard_job({"compression": settings, "exchange": {"plan": "single"}}))
    expected, owed = run.parameters.astype(np.float64), np.zeros(run.partition.elements)
    for step in range(1, 6):
        gradients = run.gradients(step)
        answers = run.step(step, gradients)
        owed += 2 * mean(run, gradients)
        sent = np.zeros(len(owed), dtype=bool)
        for frame in run.frames:
            part = np.abs(owed[frame.offset : frame.offset + frame.count])
            least = np.sort(part)[-max(1, -(-frame.count // 10))]
            sent[frame.offset : frame.offset + frame.count] = (part >= least) & (part > 0)
        room = {f.offset: max(1, -(-f.count // 10)) for f in run.frames}
        for frame in run.frames:  # Of equal ones only the first few have room.
            chosen = np.flatnonzero(sent[frame.offset : frame.offset + frame.count]) + frame.offset
            sent[chosen[room[frame.offset] + max(1, room[frame.offset] // 4) :]] = False
        expected[sent] -= RATE * owed[sent] / 2
        owed[sent] = 0.0
        np.testing.assert_allclose(run.parameters, expected, rtol=1e-5, atol=1e-6)
        assert all_told(run, answers) == {at: run.parameters[at] for at in np.flatnonzero(sent)}


def test_where_workers_update_for_themselves_the_sum_comes_back() -> None:
    run = driven("sums")
    for step in (1, 2):
        gradients = run.gradients(step)
        assert all_told(run, run.step(step, gradients)) == dict(enumerate((2 * mean(run, gradients)).tolist()))


def test_a_squeezed_pull_sends_more_while_the_density_falls() -> None:
    settings = {**KINDS["squeezed"]["compression"], "density": 0.05, "density_warmup_steps": 2}
    run = Driven(shard_job({"compression": settings}))
    ones = {spec.offset: [np.linspace(1.0, 2.0, spec.count, dtype=np.float32)] * 2 for spec in run.frames}
    sent = [len(all_told(run, run.step(step, ones))) for step in range(1, 5)]
    assert sent[0] == LAYOUT.elements > sent[1] > sent[2]
    assert sent[2] < LAYOUT.elements // 8


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_says_what_it_answers(kind: str) -> None:
    run = driven(kind)
    for step in (1, 2):
        answers = run.step(step, attempt=3)
        for spec in run.frames:
            answer = answers[spec.offset]
            encoding = {"zero 3": Encoding.NONE, "sparse pull": Encoding.SPARSE, "squeezed": Encoding.SPARSE}
            assert answer.header == FrameHeader(
                Sender(7),
                At(1, step, 3).range(spec),
                Summed(5.0),
                encoding.get(kind, Encoding.DENSE),
                ValueType.named(run.job.train.precision),
                selected=len(told(answer, spec)) if kind in encoding and kind != "zero 3" else 0,
            )
            if answer.header.encoding is not Encoding.SPARSE:
                assert answer.shared.header == replace(answer.header, encoding=Encoding.SHARED)
                assert answer.shared.moved_bytes == spec.count * answer.header.value_type.dtype.itemsize
            assert answer.shared.pieces == ()
            sent = read(answer.message(0), answer.header.sender)
            assert (sent.header, sent.size_bytes) == (answer.header, answer.moved_bytes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_that_comes_again_is_answered_again(kind: str) -> None:
    run = driven(kind)
    gradients = run.gradients(1)
    spec = run.frames[1]
    again = run.frame(spec, 0, 1, gradients[spec.offset][0])
    assert run.shard.push(again) is Outcome.PENDING
    assert run.shard.push(again) is Outcome.DUPLICATE
    answers = run.step(1, gradients)
    before = bits(answers)
    assert run.shard.push(again) is Outcome.ANSWERED
    assert bits({spec.offset: run.shard.answer_again(again.header)}) == {spec.offset: before[spec.offset]}
    with pytest.raises(StaleError, match="step 2 was not the last one"):
        run.shard.answer_again(changed(again.header, step=2))
    run.step(2)
    with pytest.raises(StaleError, match="step 1, expected 3"):
        run.shard.push(again)


@pytest.mark.parametrize("kind", KINDS)
def test_how_frames_are_cut_changes_no_bit_where_every_value_stands_for_itself(kind: str) -> None:
    if kind == "squeezed":
        return  # Its frames share thresholds.
    coarse, fine = driven(kind), driven(kind)
    fine.plans[0] = make_plan(2, frame=9)
    fine.plans.append(make_plan(2, frame=9))
    for step in range(1, 4):
        gradients = coarse.gradients(step)
        whole = [np.concatenate([gradients[f.offset][rank] for f in coarse.frames]) for rank in range(2)]
        coarse.step(step, gradients)
        fine.step(step, {f.offset: [each[f.offset : f.offset + f.count] for each in whole] for f in fine.frames})
    assert len(fine.frames) > 2 * len(coarse.frames)
    assert fine.parameters.tobytes() == coarse.parameters.tobytes()


def test_a_step_whose_gradients_do_not_fit_changes_nothing() -> None:
    run = driven("fp16")
    run.step(1, loss_scale=4.0)
    before = run.parameters.copy()
    for spec in run.frames:
        values = np.full(spec.count, 3.0, np.float32)
        values[0] = np.inf
        codes = np.empty(spec.count, np.uint16)
        to_half(values, "fp16", codes)
        codes[0] = 0x7C00  # infinity, which `to_half` does not write
        frame = replace(run.frame(spec, 0, 2, values, loss_scale=4.0, skipped=True), values=codes)
        assert run.shard.push(frame) is Outcome.PENDING
        answer = run.shard.push(run.frame(spec, 1, 2, np.ones(spec.count, np.float32), loss_scale=4.0))
        assert isinstance(answer, Answer)
        assert answer.header.expect(Summed).skipped
        again = run.shard.answer_again(frame.header)
        assert again.header.expect(Summed).skipped
    assert (run.parameters == before).all()
    assert run.shard.step == 2
    answers = run.step(3, loss_scale=2.0)
    assert not any(answer.header.expect(Summed).skipped for answer in answers.values())
    assert not (run.parameters == before).all()


def test_workers_scale_their_losses_alike() -> None:
    run = driven("fp16")
    before = run.parameters.copy()
    spec = run.frames[0]
    run.shard.push(run.frame(spec, 0, 1, np.ones(spec.count, np.float32), loss_scale=4.0))
    with pytest.raises(FrameError, match=r"group 0 of step 1: workers scaled their losses by \[2.0, 4.0\]"):
        run.shard.push(run.frame(spec, 1, 1, np.ones(spec.count, np.float32), loss_scale=2.0))
    assert (run.parameters == before).all()
    with pytest.raises(StaleError, match="none before the answer to step 1"):
        run.shard.push(run.frame(spec, 1, 2, np.ones(spec.count, np.float32)))


def dense_frame(run: Driven) -> Frame:
    spec = run.frames[0]
    header = header_of(70, 1, 1, spec.group, spec.offset, spec.count, 0)
    return Frame(header, np.ones(spec.count, np.float32), np.zeros(0, np.uint8))


def test_a_frame_of_another_kind_is_an_error_and_changes_nothing() -> None:
    sparse, dense, half = driven("sparse pull"), driven("sgd"), driven("bf16")
    selected = sparse.frame(sparse.frames[0], 0, 1, np.eye(1, sparse.frames[0].count, dtype=np.float32)[0])
    fp32 = dense_frame(dense)
    shared = Frame(replace(fp32.header, encoding=Encoding.SHARED), fp32.values[:0], fp32.sections)
    codes = half.frame(half.frames[0], 0, 1, fp32.values)
    everything = np.ones(LAYOUT.elements, np.float32)
    for run, frame, memory, words in (
        (sparse, fp32, None, "expected a sparse one, got a dense one"),
        (sparse, shared, everything, "expected a sparse one, got a shared one"),
        (sparse, codes, None, "expected a sparse one, got a dense one"),
        (dense, selected, None, "is sparse with float32 values: expected a dense one"),
        (dense, shared, None, "worker 0 shares no gradients"),
        (dense, codes, None, "dense with bfloat16 values: expected a dense one with float32 values"),
        (half, fp32, None, "dense with float32 values: expected a dense one with bfloat16 values"),
        (half, shared, everything, "is shared with float32 values: expected a dense one with bfloat16 values"),
        (half, selected, None, "is sparse with float32 values: expected a dense one with bfloat16 values"),
    ):
        with pytest.raises(FrameError, match=words):
            run.shard.push(frame, memory)
    for run in (sparse, dense, half):
        run.step(1)


def test_places_that_are_none_of_the_frames_are_an_error() -> None:
    run = driven("sparse pull")
    spec = run.frames[1]
    frame = run.frame(spec, 0, 1, np.eye(1, spec.count, dtype=np.float32)[0])
    for sections in (frame.sections[:0], np.full(packed_bound(9, 1), 255, np.uint8)):
        with pytest.raises(FrameError, match="frame of worker 0, group 1"):
            run.shard.push(replace(frame, sections=sections))
    for wide in (ValueType.FP64,):
        header = replace(frame.header, value_type=wide)
        with pytest.raises(FrameError, match="worker 0 has float64 values: expected at most 32 bits"):
            run.shard.push(Frame(header, frame.values.astype(np.float64), frame.sections))


def test_selected_values_of_16_bits_count_as_what_they_stand_for() -> None:
    run, exact = driven("sparse pull"), driven("sparse pull")
    for spec in run.frames:
        values = run.gradients(1)[spec.offset][0]
        for rank in range(2):
            frame = run.frame(spec, rank, 1, values)
            codes = np.empty(len(frame.values), np.uint16)
            to_half(frame.values, "bf16", codes)
            run.shard.push(Frame(replace(frame.header, value_type=ValueType.BF16), codes, frame.sections))
            exact.shard.push(frame)
    assert run.parameters.tobytes() == exact.parameters.tobytes()


@pytest.mark.parametrize("kind", [ValueType.INT8, ValueType.INT4, ValueType.INT2])
def test_selected_values_of_few_bits_count_as_multiples_of_their_steps(kind: ValueType) -> None:
    run, exact = driven("sparse pull"), driven("sparse pull")
    zero = 2 ** (kind.few_bits - 1) - 1
    random = np.random.default_rng(kind.value)
    for spec in run.frames:
        for rank in range(2):
            multiples = random.integers(-zero, zero + 1, spec.count)
            steps = [0.5 * (1 + place) for place in range(len(spec.pieces))]
            values = multiples.astype(np.float32)
            for step, (start, stop) in zip(steps, spec.shard_bounds - spec.offset, strict=True):
                values[start:stop] *= np.float32(step)
            frame = run.frame(spec, rank, 1, values)
            codes = (multiples[multiples != 0] + zero).tolist()
            run.shard.push(few_bits_frame(frame, kind, codes, steps))
            exact.shard.push(frame)
    assert run.parameters.tobytes() == exact.parameters.tobytes()


def few_bits_frame(frame: Frame, kind: ValueType, codes: list[int], steps: list[float]) -> Frame:
    """The frame with other values: the codes of its selected ones, and a step for each of its sections."""
    joined = sum(code << (place * kind.few_bits) for place, code in enumerate(codes))
    packed = np.frombuffer(joined.to_bytes(kind.bytes_of(len(codes)), "little"), dtype=np.uint8)
    upper = (np.array(steps, dtype=np.float32).view(np.uint32) >> 16).astype("<u2")
    sections = np.concatenate([upper.view(np.uint8), frame.sections])
    return Frame(replace(frame.header, value_type=kind), packed, sections)


@pytest.mark.parametrize("odd", ["a code of no value", "too few steps", "too few codes"])
def test_values_of_few_bits_that_are_none_are_an_error(odd: str) -> None:
    run = driven("sparse pull")
    spec = run.frames[1]
    frame = run.frame(spec, 0, 1, np.eye(1, spec.count, dtype=np.float32)[0])
    good = few_bits_frame(frame, ValueType.INT4, [14], [1.0] * len(spec.pieces))
    bad = {
        "a code of no value": replace(good, values=np.array([15], dtype=np.uint8)),
        "too few steps": replace(good, sections=good.sections[:1]),
        "too few codes": replace(good, values=good.values[:0]),
    }[odd]
    with pytest.raises(FrameError, match="frame of worker 0, group 1"):
        run.shard.push(bad)
    run.shard.push(good)


@pytest.mark.parametrize("kind", ["sgd", "sparse pull", "fp16"])
def test_gradients_that_are_not_finite_end_the_run_unless_they_are_allowed(kind: str) -> None:
    run = driven(kind)
    spec = run.frames[-1]
    values = np.ones(spec.count, np.float32)
    values[3:5] = np.nan, np.inf
    bad = run.frame(spec, 1, 1, values)
    if run.kind is not None:
        codes = bad.values.copy()
        codes[3:5] = 0x7E00, 0x7C00
        bad = replace(bad, values=codes)
    with pytest.raises(
        FrameError,
        match=r"worker 1 pushed 2 gradients that are not finite in layers layer3 to layer4 at step 1; lower",
    ):
        run.shard.push(bad)
    run.step(1)
    allowing = Driven(shard_job({**KINDS[kind], "exchange": {"non_finite": "allow"}}))
    assert allowing.shard.push(bad) is Outcome.PENDING


def test_shared_gradients_are_read_where_they_lie() -> None:
    run = driven("sgd")
    arenas = [np.random.default_rng(rank).standard_normal(LAYOUT.elements, dtype=np.float32) for rank in range(2)]
    expected = run.parameters - np.float32(RATE / 2) * (arenas[0] + arenas[1])
    for spec in run.frames:
        for rank, arena in enumerate(arenas):
            header = run.frame(spec, rank, 1, arena[: spec.count], encoding=Encoding.SHARED).header
            outcome = run.shard.push(Frame(header, arena[:0], np.zeros(0, np.uint8)), arena)
        assert not isinstance(outcome, Outcome)
    np.testing.assert_allclose(run.parameters, expected, rtol=1e-5, atol=1e-6)


def test_shared_gradients_of_a_server_that_owns_a_part_are_gathered_from_their_pieces() -> None:
    runs = [Driven(shard_job({}, workers=1, servers=2), index=index) for index in range(2)]
    arena = np.arange(LAYOUT.elements, dtype=np.float32)
    for run in runs:
        before = run.parameters.copy()
        for spec in run.frames:
            header = run.frame(spec, 0, 1, arena[: spec.count], encoding=Encoding.SHARED).header
            run.shard.push(Frame(header, arena[:0], np.zeros(0, np.uint8)), arena)
            own = np.concatenate([arena[piece.start : piece.stop] for piece in spec.pieces])
            moved = before[spec.offset : spec.offset + spec.count] - np.float32(0.1) * own
            np.testing.assert_allclose(run.parameters[spec.offset : spec.offset + spec.count], moved, rtol=1e-5)


def test_memory_is_shared_with_workers_of_the_same_model_alone() -> None:
    with SharedBuffer.create(4) as alien, pytest.raises(SharedMemoryError, match="this server shares no memory"):
        driven("sgd").shard.share(alien.descriptor)
    size = 4 * LAYOUT.elements
    with SharedBuffer.create(size) as own, SharedBuffer.create(size) as right, SharedBuffer.create(size + 4) as wrong:
        run = driven("sgd", buffer=own)
        right.array(np.float32, LAYOUT.elements)[:] = 3.0
        gradients, where = run.shard.share(right.descriptor)
        assert (gradients == 3.0).all()
        assert gradients.shape == (LAYOUT.elements,)
        assert where == own.descriptor
        with pytest.raises(FrameError, match=rf"shared gradients of {size + 4} bytes: expected {size}, for the 123"):
            run.shard.share(wrong.descriptor)
        run.shard.stop_sharing()
        run.shard.stop_sharing()
        with pytest.raises(SharedMemoryError):
            run.shard.share(own.descriptor)


def test_nobody_waits_for_a_worker_that_has_left() -> None:
    run = driven("sgd")
    spec = run.frames[0]
    values = np.ones(spec.count, np.float32)
    run.shard.push(run.frame(spec, 0, 1, values))
    with pytest.raises(MemberLostError, match="worker 1 has left the run while worker 0 goes on"):
        run.shard.leave(1)
    with pytest.raises(MemberLostError, match="worker 1 has left the run while worker 0 goes on"):
        run.shard.push(run.frame(run.frames[1], 0, 1, np.ones(run.frames[1].count, np.float32)))


@pytest.mark.parametrize("kind", ["zero 3", "bf16", "fp16"])
def test_parameters_are_told_to_who_asks(kind: str) -> None:
    run = driven(kind)
    for spec in run.frames:
        initial = run.parameters[spec.offset : spec.offset + spec.count]
        np.testing.assert_allclose(
            list(told(run.shard.ask(run.question(spec, 0, 0)), spec).values()), initial, rtol=1e-2, atol=1e-3
        )
    answers = run.step(1)
    for spec in run.frames:
        asked = run.shard.ask(run.question(spec, 1, 1, attempt=2))
        given = changed(answers[spec.offset].header, encoding=Encoding.DENSE, attempt=2)
        assert asked.header == replace(given, kind=Parameters())
        present = run.parameters[spec.offset : spec.offset + spec.count]
        np.testing.assert_allclose(list(told(asked, spec).values()), present, rtol=1e-2)
        with pytest.raises(StaleError, match="after step 2: expected step 1"):
            run.shard.ask(run.question(spec, 1, 2))


@pytest.mark.parametrize("kind", ["sgd", "sparse pull", "sums"])
def test_nobody_asks_for_what_comes_unasked(kind: str) -> None:
    run = driven(kind)
    with pytest.raises(FrameError, match=r"worker 1 asks for what zero [01] answers unasked"):
        run.shard.ask(run.question(run.frames[0], 1, 0))


@pytest.mark.parametrize("kind", ["momentum", "fp16"])
def test_parameters_are_read_as_they_are(kind: str) -> None:
    run = driven(kind)
    run.step(1)
    frames = [read(message) for message in run.shard.read()]
    assert np.concatenate([frame.values for frame in frames]).tobytes() == run.parameters.tobytes()
    assert [
        (frame.header.address.at.step, frame.header.address.at.plan, frame.header.address.offset) for frame in frames
    ] == [(1, 1, spec.offset) for spec in run.partition.state_frames(40)]
    assert all(frame.header.value_type is ValueType.FP32 and frame.header.sender.rank is None for frame in frames)


def test_what_a_shard_says_of_itself() -> None:
    sizes = {kind: driven(kind).shard.state_bytes for kind in KINDS}
    n = LAYOUT.elements
    assert (sizes["sgd"], sizes["momentum"], sizes["adam"], sizes["fp16"]) == (4 * n, 8 * n, 12 * n, 10 * n)
    assert sizes["sums"] == 4 * n
    shard = driven("sgd").shard
    shard.warm_up()
    assert (shard.elements, shard.step, shard.plan.version) == (n, 0, 1)
    shard.check_layout(LAYOUT.digest)
    with pytest.raises(ModelError, match="the worker's model differs from the server's"):
        shard.check_layout("other")


def test_buffers_come_back_when_their_values_have_been_summed() -> None:
    run = driven("sgd")
    spec = run.frames[0]
    lent = [run.shard.buffers.lend(spec.count, np.float32) for _ in range(2)]
    for rank, buffer in enumerate(lent):
        buffer[:] = 1.0
        run.shard.push(replace(run.frame(spec, rank, 1, buffer), values=buffer))
    again = [run.shard.buffers.lend(spec.count, np.float32) for _ in range(2)]
    assert {id(buffer) for buffer in again} == {id(buffer) for buffer in lent}


def test_the_layout_has_groups_of_several_frames() -> None:
    """The premises of the tests here."""
    frames = driven("sgd").frames
    assert len(frames) > len(GROUPS)
    assert any(len(frame.pieces) > 1 for frame in frames)
