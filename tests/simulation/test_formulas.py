"""Steps of jobs whose time is a formula."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulations import ALPHA_S, PLAIN, RATE, job_of, simulated

from taihu.core.base.errors import ConfigError
from taihu.core.wire.frames.format import HEADER_BYTES
from taihu.simulation.halving_doubling import halving_doubling_seconds
from taihu.simulation.machines import Machines

ELEMENTS = 840_000  # divides by 1 to 8 and is one frame
BYTES = HEADER_BYTES + 4 * ELEMENTS


@pytest.mark.parametrize("workers", [1, 2, 5, 64])
def test_workers_share_the_port_of_one_server(workers: int) -> None:
    step = simulated(job_of(workers), [ELEMENTS])
    each_way = ALPHA_S + workers * BYTES / RATE
    assert step.seconds == pytest.approx(2 * each_way)
    assert step.worker_bytes == (BYTES, BYTES)
    assert step.server_bytes == (workers * BYTES, workers * BYTES)


@pytest.mark.parametrize("servers", [1, 2, 3, 6])
def test_servers_divide_the_bytes_of_a_worker(servers: int) -> None:
    step = simulated(job_of(1, servers), [ELEMENTS])
    part = HEADER_BYTES + 4 * ELEMENTS // servers
    # The first part's answer begins while others go up; the last one's way back is all that follows.
    last_up = ALPHA_S + servers * part / RATE
    assert step.seconds == pytest.approx(last_up + ALPHA_S + servers * part / RATE)


@pytest.mark.parametrize("workers", [2, 3, 6, 7])
@pytest.mark.parametrize("distinct", [False, True])
def test_a_ring_hops_twice_to_all_others(workers: int, distinct: bool) -> None:
    step = simulated(job_of(workers, 0), [ELEMENTS // 10], distinct=distinct)
    chunk = HEADER_BYTES + 4 * ELEMENTS // 10 // workers
    assert step.seconds == pytest.approx(2 * (workers - 1) * (ALPHA_S + chunk / RATE))
    assert step.worker_bytes == (2 * (workers - 1) * chunk,) * 2


def test_a_ring_of_one_waits_for_nobody() -> None:
    step = simulated(job_of(1, 0), [ELEMENTS], each=0.5)
    assert (step.seconds, step.worker_bytes, step.efficiency) == (1.0, (0, 0), 1.0)


def test_half_duplex_ports_take_a_ring_twice_as_long() -> None:
    job = job_of(4, 0)
    slow = replace(PLAIN, full_duplex=False, alpha_seconds=0.0)
    fast = replace(PLAIN, alpha_seconds=0.0)
    assert simulated(job, [ELEMENTS // 10], slow).seconds == pytest.approx(
        2 * simulated(job, [ELEMENTS // 10], fast).seconds
    )


def test_additions_take_their_time() -> None:
    adds = Machines(add_bytes_per_second=1e9)
    free = simulated(job_of(3), [ELEMENTS]).seconds
    # Three contributions, and what an update reads and writes beside their sum.
    assert simulated(job_of(3), [ELEMENTS], machines=adds).seconds == pytest.approx(
        free + (3 + 3) * 4 * ELEMENTS / 1e9
    )


def test_hosts_of_one_machine_share_its_cores() -> None:
    """The work of two cores for both ends of every message, where links are no limit; each worker's up and down.

    Both ends of one message are two threads, so that all of them have both cores always.
    """
    free = replace(PLAIN, bytes_per_second=1e15, alpha_seconds=0.0)
    for workers, servers, messages in ((3, 1, 2 * 3), (1, 1, 2), (2, 0, 2 * 2)):
        size = BYTES if servers else HEADER_BYTES + 4 * ELEMENTS // 20
        machines = Machines(shared_cores=2, core_bytes_per_second=1e9)
        elements = ELEMENTS if servers else ELEMENTS // 10
        for distinct in (False, True):
            step = simulated(job_of(workers, servers), [elements], free, machines, distinct=distinct)
            assert step.seconds == pytest.approx(2 * messages * size / 2e9, rel=1e-6)
    with pytest.raises(ConfigError, match=r"machines.shared_cores 2: how fast is one\?"):
        Machines(shared_cores=2)


def test_compute_that_is_longer_than_the_exchange_hides_all_but_the_first_layer() -> None:
    job = job_of(2, 1, exchange={"plan": "per-layer"})
    sizes = [100_000] * 4
    step = simulated(job, sizes, each=1.0)
    last = 2 * (ALPHA_S + 2 * (HEADER_BYTES + 400_000) / RATE)
    assert step.seconds == pytest.approx(8.0 + last)
    assert step.wait_seconds == pytest.approx(last)
    assert step.efficiency == pytest.approx(8.0 / (8.0 + last))


def test_a_straggler_holds_up_all() -> None:
    slow = Machines(stragglers=1, straggler_slowdown=3.0)
    for servers in (1, 0):
        even, held = (simulated(job_of(4, servers), [1000], machines=m, each=1.0).seconds for m in (Machines(), slow))
        assert held == pytest.approx(even + 4.0, rel=1e-3)


def test_a_server_beside_a_worker_takes_its_part_without_the_network() -> None:
    job = job_of(4, 4)
    apart, beside = (simulated(job, [ELEMENTS], servers_beside=each) for each in (False, True))
    part = HEADER_BYTES + ELEMENTS
    assert apart.worker_bytes == (4 * part, 4 * part)
    # It sends 3 parts as a worker, and answers 3 others as a server.
    assert beside.worker_bytes == (6 * part, 6 * part)


SIZES = st.lists(st.integers(1, 50_000), min_size=1, max_size=6)


@settings(max_examples=40)
@given(
    sizes=SIZES,
    workers=st.integers(1, 5),
    servers=st.integers(0, 3),
    each=st.floats(0, 1e-3),
    zero=st.sampled_from([None, 2, 3]),
    faster=st.floats(1.0, 10.0),
)
def test_more_bandwidth_is_never_slower_for_one_group(  # noqa: PLR0917
    sizes: list[int], workers: int, servers: int, each: float, zero: int | None, faster: float
) -> None:
    """Of several groups one may come to a port before another then, and the step end later for it."""
    job = job_of(workers, servers, exchange={} if zero is None else {"zero": zero})
    slow, fast = (
        simulated(job, sizes, replace(PLAIN, bytes_per_second=rate), each=each).seconds
        for rate in (RATE, RATE * faster)
    )
    assert fast <= slow * (1 + 1e-9)


@settings(max_examples=40)
@given(
    sizes=SIZES,
    workers=st.integers(1, 5),
    servers=st.integers(0, 3),
    each=st.floats(0, 1e-3),
    plan=st.sampled_from(["per-layer", "single"]),
    zero=st.sampled_from([None, 2, 3]),
)
def test_a_step_takes_as_long_as_its_compute_and_as_the_bytes_of_every_port(  # noqa: PLR0917
    sizes: list[int], workers: int, servers: int, each: float, plan: str, zero: int | None
) -> None:
    job = job_of(workers, servers, exchange={"plan": plan, **({} if zero is None else {"zero": zero})})
    step = simulated(job, sizes, replace(PLAIN, alpha_seconds=0.0), each=each)
    busiest = max(*step.worker_bytes, *(step.server_bytes or (0, 0)))
    assert step.seconds >= max(2 * each * len(sizes), busiest / RATE) * (1 - 1e-9)


@settings(max_examples=25)
@given(sizes=SIZES, workers=st.integers(2, 5), servers=st.integers(0, 3), each=st.floats(0, 1e-3))
def test_one_stands_for_all_that_are_alike(sizes: list[int], workers: int, servers: int, each: float) -> None:
    """To within what parts differ by, an element of every layer, and the order of messages at a port."""
    job = job_of(workers, servers, exchange={"plan": "per-layer"})
    alike, distinct = (simulated(job, sizes, each=each, distinct=by) for by in (False, True))
    parts = max(1, servers)
    differ = len(sizes) * (HEADER_BYTES + 4) * workers * parts / RATE
    burst = (workers + parts) * (HEADER_BYTES + 4 * max(sizes) / parts) / RATE if servers else 0.0
    assert alike.seconds == pytest.approx(distinct.seconds, abs=differ + burst)


@pytest.mark.parametrize("servers", [2, 0])
def test_the_same_seed_gives_the_same_events(servers: int) -> None:
    network = replace(PLAIN, jitter=0.5, loss_ratio=0.01)
    machines = Machines(jitter=0.2)
    job = job_of(4, servers, exchange={"plan": "per-layer"})

    def once(seed: int) -> object:
        step = simulated(job, [30_000, 5_000, 70_000], network, machines, each=1e-3, traced=True, seed=seed)
        return step.seconds, step.parts

    assert once(1) == once(1)
    assert once(1) != once(2)
    assert math.isfinite(simulated(job, [10], network, machines).seconds)


def test_halving_and_doubling_is_its_sum_of_rounds() -> None:
    machines = Machines(add_bytes_per_second=1e9)
    one = halving_doubling_seconds(8, 8_000_000, PLAIN, machines)
    assert one == pytest.approx(2 * 3 * ALPHA_S + 2 * 7 / 8 * 8e6 / RATE + 7 / 8 * 8e6 / 1e9)
    # The first and the last round, of half the buffer, cross to the other supernode, whose link four ports share.
    joined = replace(PLAIN, supernode=4, oversubscription=4.0)
    assert halving_doubling_seconds(8, 8_000_000, joined, machines) == pytest.approx(one + 2 * 3 * 4e6 / RATE)
    with pytest.raises(ConfigError, match="a power of two"):
        halving_doubling_seconds(6, 100, PLAIN, machines)
