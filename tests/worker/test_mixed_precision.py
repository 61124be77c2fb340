"""Mixed precision: 16-bit values on workers and wires, an fp32 master with whoever owns it, steps skipped by all."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cluster import Cluster, Member, Values, initial_parameters, layout_of, make_job
from support.peers import Peers

from allreduce.communicator import Communicator
from taihu.coordination.plan import Plan
from taihu.errors import TaihuError
from taihu.job import Job
from taihu.planner.groups import cap_groups, group_bounds, plan_groups
from taihu.wire.codec import BYTES_PER_VALUE
from worker.exchange.making import between_workers
from worker.exchange.shell import Exchange
from worker.memory.arenas import Arenas, arenas_of

Precision = Literal["bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16")
LAYOUT = layout_of(1, 700, 3, 4096, 2500, 2, 3000)
STEPS = range(1, 5)
RATE = 0.01
LOSS_SCALE = 256.0


def gradients(rank: int, step: int) -> Values:
    return np.random.default_rng([rank, step]).standard_normal(LAYOUT.elements, dtype=np.float32)


def rounded(values: NDArray[np.float64], precision: Precision) -> NDArray[np.float64]:
    """To the nearest 16-bit value: by NumPy's own type, or by the upper half of the fp32's bits."""
    if precision == "fp16":
        return values.astype(np.float16).astype(np.float64)
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return upper.astype(np.uint32).view(np.float32).astype(np.float64)


def adam(precision: Precision, workers: int, skipped: tuple[int, ...] = ()) -> NDArray[np.float64]:
    """The parameters that workers see after `STEPS`, in float64 beside the roundings (Kingma & Ba, algorithm 1)."""
    master = initial_parameters(LAYOUT).astype(np.float64)
    first, second = np.zeros_like(master), np.zeros_like(master)
    scale = 1.0 if precision == "bf16" else LOSS_SCALE
    for step in STEPS:
        if step in skipped:
            scale /= 2
            continue
        pushed = [rounded(gradients(rank, step).astype(np.float64) * scale, precision) for rank in range(workers)]
        mean = np.mean(pushed, axis=0) / scale
        first, second = 0.9 * first + 0.1 * mean, 0.999 * second + 0.001 * mean**2
        master -= RATE * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return rounded(master, precision)


def job_of(precision: Precision, zero: int, servers: int, workers: int, **exchange: object) -> Job:
    return make_job(
        max(1, servers),
        workers,
        exchange={"kind": "server" if servers else "ring", "zero": zero, "bucket_bytes": 20000, **exchange},
        optimizer={"name": "adam", "learning_rate": RATE},
        train={"precision": precision, "loss_scale": LOSS_SCALE},
    )


def overflowing(own: Values, *, here: bool) -> Values:
    """With one gradient near the end of backward that no 16 bits of fp16 can hold."""
    own = own.copy()
    if here:
        own[-5] = np.float32(1e30)
    return own


def through_servers(
    job: Job, overflows: dict[int, int] | None = None
) -> tuple[list[Values], list[tuple[float, int]]]:
    """What each worker sees at the end, and its loss scale and number of skipped steps before that."""
    ends: dict[int, Values] = {}
    scales: dict[int, tuple[float, int]] = {}

    def work(member: Member) -> None:
        for step in STEPS:
            here = (overflows or {}).get(step) == member.rank
            ends[member.rank] = member.step(step, overflowing(gradients(member.rank, step), here=here))
        scales[member.rank] = member.exchange.loss_scale, member.exchange.skipped_steps

    with Cluster(job) as cluster:
        cluster.run(LAYOUT, work)
        cluster.join()
        assert cluster.outcomes == dict.fromkeys(range(job.servers))
    return [ends[rank] for rank in sorted(ends)], [scales[rank] for rank in sorted(scales)]


def around_a_ring(job: Job, overflows: dict[int, int] | None = None) -> tuple[list[Values], list[tuple[float, int]]]:
    """As `through_servers`; only worker 0 sees all parameters at once."""

    def work(communicator: Communicator) -> tuple[Values, tuple[float, int]]:
        exchange, seen = all_steps(communicator, job, overflows or {})
        return seen, (exchange.loss_scale, exchange.skipped_steps)

    with Peers(job.cluster.workers) as peers:
        results = peers.run(work)
    return [seen for seen, _ in results], [scale for _, scale in results]


def all_steps(
    communicator: Communicator, job: Job, overflows: dict[int, int], adopted: Plan | None = None
) -> tuple[Exchange, Values]:
    """One worker's part in `STEPS`, and the parameters that it sees at the end; `adopted` comes behind step 2."""
    rank = communicator.rank
    arenas = arenas_of(job, LAYOUT.elements)
    if rank == 0:
        arenas.parameters[:] = initial_parameters(LAYOUT)
    plan = ring_plan(job.exchange.plan, 1)
    exchange = between_workers(job, plan, communicator, arenas)
    exchange.start()
    seen = np.empty(LAYOUT.elements, dtype=np.float32)
    read(exchange, arenas, seen)
    for step in STEPS:
        own = overflowing(gradients(rank, step), here=overflows.get(step) == rank)
        one_step(exchange, arenas, step, own)
        if adopted is not None and step == 2:
            exchange.adopt(adopted)
        read(exchange, arenas, seen)
    return exchange, seen


def one_step(exchange: Exchange, arenas: Arenas, step: int, own: Values) -> None:
    exchange.begin(step)
    for group, (start, stop) in enumerate(group_bounds(LAYOUT, exchange.groups)):
        exchange.prepare(group)
        arenas.gradients[start:stop] = own[start:stop] * np.float32(exchange.loss_scale)
        exchange.push(group)
    for group in range(len(exchange.groups)):
        exchange.complete(group)


def read(exchange: Exchange, arenas: Arenas, seen: Values) -> None:
    bounds = group_bounds(LAYOUT, exchange.groups)
    for group in reversed(range(len(bounds))):
        exchange.wait(group)
        seen[slice(*bounds[group])] = arenas.parameters[slice(*bounds[group])]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("servers", "workers"), [(1, 1), (1, 3), (3, 2)])
def test_servers_keep_a_master_and_workers_see_it_rounded(precision: Precision, servers: int, workers: int) -> None:
    expected = adam(precision, workers)
    all_ends = []
    for zero in (2, 3):
        for plan in ("per-layer", "single"):
            job = job_of(precision, zero, servers, workers, plan=plan, frame_bytes=4096, window_frames=2)
            all_ends += through_servers(job)[0]
    np.testing.assert_allclose(all_ends[0], expected, rtol=2**-7 if precision == "bf16" else 2**-10, atol=1e-6)
    assert np.mean(all_ends[0] == expected) > 0.98
    assert len({end.tobytes() for end in all_ends}) == 1


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_ring_keeps_a_master_and_workers_see_it_rounded(precision: Precision, workers: int) -> None:
    """Sums are rounded once more at every hop, so a bound on the updates stands for equality."""
    expected = adam(precision, workers)
    all_ends = []
    for zero in (2, 3):
        for plan in ("per-layer", "single"):
            all_ends += around_a_ring(job_of(precision, zero, 0, workers, plan=plan))[0]
    np.testing.assert_allclose(all_ends[0], expected, rtol=2**-7 if precision == "bf16" else 2**-10, atol=0.01)
    assert len({end.tobytes() for end in all_ends}) == 1


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize(("transport", "precision"), [("grpc", "bf16"), ("grpc", "fp16"), ("tcp", "fp16")])
def test_every_transport_carries_16_bits(zero: int, transport: str, precision: Precision) -> None:
    ends, _ = through_servers(job_of(precision, zero, 2, 2, plan="per-layer", transport=transport))
    reference, _ = through_servers(job_of(precision, 2, 1, 2, plan="single"))
    assert {end.tobytes() for end in ends} == {reference[0].tobytes()}


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("servers", [0, 1, 3])
def test_a_step_that_overflows_on_one_worker_is_skipped_by_all(zero: int, servers: int) -> None:
    job = job_of("fp16", zero, servers, 2, plan="per-layer")
    ends, scales = (through_servers if servers else around_a_ring)(job, {2: 1})
    assert len({end.tobytes() for end in ends}) == 1
    expected = adam("fp16", 2, skipped=(2,))
    np.testing.assert_allclose(ends[0], expected, rtol=2**-10, atol=1e-6 if servers else 0.01)
    assert scales == [(LOSS_SCALE / 2, 1)] * 2


def test_a_step_skipped_at_the_end_changes_nothing() -> None:
    job = job_of("fp16", 2, 2, 2, plan="per-layer")
    ends, scales = through_servers(job, {4: 0})
    np.testing.assert_allclose(ends[1], adam("fp16", 2, skipped=(4,)), rtol=2**-10, atol=1e-6)
    assert scales == [(LOSS_SCALE, 1)] * 2


def test_bf16_gradients_that_are_not_finite_are_an_error_that_names_the_worker() -> None:
    def work(member: Member) -> None:
        own = gradients(member.rank, 1)
        own[7] = np.inf
        member.step(1, own)

    told = "worker 0 pushed 1 gradients that are not finite in layers layer1"
    with Cluster(job_of("bf16", 2, 1, 1, plan="per-layer")) as cluster, pytest.raises(TaihuError, match=told):
        cluster.run(LAYOUT, work)


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize(("precision", "overflows"), [("bf16", {}), ("fp16", {2: 1})])
def test_a_plan_is_adopted_between_steps_even_behind_a_skipped_one(
    zero: int, precision: Precision, overflows: dict[int, int]
) -> None:
    fetched: list[int] = []

    def work(communicator: Communicator) -> tuple[bytes, bytes]:
        job, ends = job_of(precision, zero, 0, 3, plan="per-layer"), []
        for adopted in (None, ring_plan("bucket:5kB", 2)):
            exchange, seen = all_steps(communicator, job, overflows, adopted)
            fetched.append(sum(times.fetch_bytes_down for times in exchange.group_times()))
            ends.append(seen.tobytes())
        return ends[0], ends[1]

    with Peers(3) as peers:
        results = peers.run(work)
    assert len({end for ends in results for end in ends}) == 1
    assert any(fetched) == (zero == 3)


def ring_plan(strategy: str, version: int) -> Plan:
    return Plan(version, 1, cap_groups(plan_groups(LAYOUT, strategy), LAYOUT, 5000), LAYOUT, 1000)


def test_parameters_that_stay_are_not_fetched_again_by_another_plan() -> None:
    received: list[int] = []

    def work(member: Member) -> None:
        exchange = member.exchange
        for step in STEPS:
            member.step(step, gradients(member.rank, step))
            if step == 2:
                exchange.adopt(replace(exchange.plan, predicted_seconds=1.0))
            received.append(exchange.totals().received_bytes)

    with Cluster(job_of("bf16", 2, 2, 1, plan="per-layer")) as cluster:
        cluster.run(LAYOUT, work)
    by_step = np.diff(received)
    assert by_step[0] == by_step[1] == by_step[2]


@pytest.mark.parametrize(("zero", "volume"), [(2, 1.0), (3, 1.5)])
def test_half_the_bytes_travel(zero: int, volume: float) -> None:
    layout = layout_of(*[8000] * 80)
    moved: list[int] = []

    def work(member: Member) -> None:
        exchange = member.exchange
        for step in (1, 2, 3):
            for group in reversed(range(len(exchange.groups))):
                exchange.wait(group)
            if step == 1 and zero == 2:
                # What stays is fetched once, by everybody.
                before = exchange.totals()
            exchange.begin(step)
            for group in range(len(exchange.groups)):
                exchange.prepare(group)
                exchange.push(group)
        for group in range(len(exchange.groups)):
            exchange.complete(group)
        totals = exchange.totals()
        moved.append(totals.sent_bytes + totals.received_bytes)
        if zero == 2:
            moved[-1] -= before.sent_bytes + before.received_bytes

    job = job_of("bf16", zero, 2, 1, plan="per-layer", bucket_bytes=32000)
    with Cluster(job) as cluster:
        cluster.run(layout, work)
    assert moved[0] / 3 == pytest.approx(volume * layout.elements * BYTES_PER_VALUE, rel=0.03)


@pytest.mark.parametrize("zero", [2, 3])
def test_windows_hold_what_is_computed_with_and_no_more(zero: int) -> None:
    layout = layout_of(*[4096] * 8)

    def work(member: Member) -> None:
        exchange, parameters = member.exchange, member.arenas.parameters
        bounds = group_bounds(layout, exchange.groups)
        member.arenas.parameters[:] = 0
        for _ in range(2):
            for group in reversed(range(8)):
                exchange.wait(group)
                present = [index for index, (start, stop) in enumerate(bounds) if parameters[start:stop].any()]
                assert group in present
                # Behind group 0 comes the backward of group 1, if any.
                assert set(present) <= {group, group - 1 if group else 1}
        exchange.begin(1)
        for group, (start, stop) in enumerate(bounds):
            exchange.prepare(group)
            member.arenas.gradients[start:stop] = 1.0
            exchange.push(group)
            assert not parameters[start:stop].any()
            assert not member.arenas.gradients[start:stop].any()
        for group in range(8):
            exchange.complete(group)
        assert not member.arenas.sent.any()
        assert member.arenas.received.any() == (zero == 2)

    with Cluster(job_of("bf16", zero, 2, 2, plan="per-layer")) as cluster:
        cluster.run(layout, work)


def test_workers_with_different_loss_scales_are_told_so() -> None:
    reasons: list[str] = []

    def work(member: Member) -> None:
        scale = member.exchange._protocol._scale
        assert scale is not None
        scale.value *= 1 + member.rank
        try:
            member.step(1, gradients(member.rank, 1))
        except TaihuError as error:
            reasons.append(str(error))
            raise

    with Cluster(job_of("fp16", 2, 1, 2, plan="per-layer")) as cluster, suppress(TaihuError):
        cluster.run(LAYOUT, work)
    assert any("workers scaled their losses by [256.0, 512.0]; expected one scale" in reason for reason in reasons)
