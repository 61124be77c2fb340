"""The rules of an exchange that does not go well: what is skipped, what ends it, and that nobody is left waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from support.cluster import layout_of
from support.exchanges import exchange_steps, try_workers
from support.oracle import expected_parameters
from support.ways import DENSE, Way
from support.worker import Values, Worker

from taihu.core.base.errors import ConfigError, ExchangeError, FrameError, MemberLostError, RunError, TaihuError
from taihu.core.planner.sparse_route import SparseAlgorithm
from taihu.worker.memory.arenas import allocate_arenas

LAYOUT = layout_of(1, 700, 3, 4096, 2500, 2, 3000)

FP16 = [way for way in DENSE if way.precision == "fp16"]
SOME = [
    Way("server", 1),
    Way("server", 1, transport="same-host"),
    Way("server", 3, transport="grpc"),
    Way("server", 1, method="dlgs", downlink="exact"),
    Way("ring", 0),
    Way("ring", 0, transport="same-host"),
    Way("ring", 3, transport="grpc"),
    Way("ring", 2, "bf16"),
    Way("ring", 0, method="dlgs", downlink="exact", route=SparseAlgorithm.ALLGATHER),
]
"""Of every kind of exchange one, and of every transport."""

some_ways = pytest.mark.parametrize("way", SOME, ids=str)


def gradients(rank: int, step: int) -> Values:
    return np.random.default_rng([rank, step]).standard_normal(LAYOUT.elements, dtype=np.float32)


def with_value(at_rank: int, at_step: int, value: float, place: int = -5) -> Callable[[int, int], Values]:
    """The gradients, with one value in its place, which is near the end of backward."""

    def given_by(rank: int, step: int) -> Values:
        given = gradients(rank, step)
        if (rank, step) == (at_rank, at_step):
            given[place] = np.float32(value)
        return given

    return given_by


DO_NOT_FIT = {2: (1e30, 0), 3: (np.inf, -5), 4: (np.nan, -5), 6: (1e30, -5)}
"""By step, the value that does not fit into fp16, and its place: in the group that is pushed first, or last."""


@pytest.mark.parametrize("way", FP16, ids=str)
def test_steps_that_do_not_fit_into_fp16_on_one_worker_are_skipped_by_all(way: Way) -> None:
    """One after another, before a change of the plan and after it, and the last one, which changes nothing more."""

    def given_by(rank: int, step: int) -> Values:
        given = gradients(rank, step)
        value, place = DO_NOT_FIT.get(step, (given[0], 0))
        if rank == step % 2:
            given[place] = np.float32(value)
        return given

    job = way.job()
    run = exchange_steps(job, LAYOUT, given_by, steps=6, plans={3: "single"} if way.is_planned else {})
    exact = expected_parameters(job, LAYOUT, given_by, ["single"] * 6)
    for step, (seen, expected) in enumerate(zip(run.parameters, exact, strict=True), 1):
        assert len({values.tobytes() for values in seen}) == 1
        np.testing.assert_allclose(seen[0], expected, rtol=2**-10, atol=1e-6 if way.kind == "server" else 0.01)
        if step in DO_NOT_FIT:
            assert seen[0].tobytes() == run.parameters[step - 2][0].tobytes()
    # The next step would have halved the scale once more.
    assert run.scales == [(32.0, 4)] * 3


@pytest.mark.parametrize("way", FP16, ids=str)
def test_gradients_that_fit_but_whose_sum_does_not_are_skipped_where_sums_are_of_16_bits(way: Way) -> None:
    """Three times 128 * 256 is more than 65504: a ring must skip it, servers sum in fp32."""

    def given_by(rank: int, step: int) -> Values:
        given = gradients(rank, step)
        given[-5] = 128.0
        return given

    job = way.job()
    run = exchange_steps(job, LAYOUT, given_by, steps=2)
    exact = expected_parameters(job, LAYOUT, given_by, ["single"] * 2)[-1]
    assert len(run.ends) == 1
    np.testing.assert_allclose(run.parameters[-1][0], exact, rtol=2**-10, atol=1e-6 if way.kind == "server" else 0.01)
    assert run.scales == [(256.0, 0) if way.kind == "server" else (128.0, 1)] * 3


def _is_farewell(outcome: object) -> bool:
    return isinstance(outcome, MemberLostError) and "has left the run" in str(outcome)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("way", [way for way in SOME if way.precision != "fp16"], ids=str)
def test_a_gradient_that_is_not_finite_ends_the_exchange_of_all(way: Way, value: float) -> None:
    job = way.job()
    given_by = with_value(1, 1, value)
    outcomes = try_workers(job, LAYOUT, lambda worker: worker.step(1, given_by(worker.rank, 1)))
    assert all(isinstance(outcome, TaihuError) for outcome in outcomes), outcomes
    # A server tells the worker that it is. In a ring whoever completes the sum sees it, and may have left before its
    # neighbours do: between exchanges alone, a farewell says no more than who that was; the coordinator tells why.
    told = [outcomes[1]] if way.kind == "server" else [each for each in outcomes if not _is_farewell(each)]
    assert told
    assert all("not finite" in str(outcome) for outcome in told), outcomes
    assert all("not finite" in str(outcome) or "worker " in str(outcome) for outcome in outcomes), outcomes


@pytest.mark.parametrize("way", [Way("server", 1), Way("server", 2), Way("ring", 0), Way("ring", 3)], ids=str)
def test_values_that_are_not_finite_pass_where_they_are_allowed(way: Way) -> None:
    job = way.job(exchange={"non_finite": "allow"})
    run = exchange_steps(job, LAYOUT, with_value(1, 1, np.nan), steps=2)
    for step in (0, 1):
        assert np.flatnonzero(np.isnan(run.parameters[step][2])).tolist() == [LAYOUT.elements - 5]
    assert len(run.ends) == 1


@some_ways
def test_a_worker_that_fails_amid_a_step_ends_every_wait_with_its_reason(way: Way) -> None:
    def work(worker: Worker) -> None:
        worker.step(1, gradients(worker.rank, 1))
        if worker.rank == 1:
            worker.exchange.begin(2)
            worker.push(0, gradients(1, 2))
            raise FrameError("out of paper")
        worker.step(2, gradients(worker.rank, 2))

    first, failed, last = (str(outcome) for outcome in try_workers(way.job(), LAYOUT, work))
    assert failed == "out of paper"
    assert "out of paper" in first
    assert "out of paper" in last


def whole_step(worker: Worker, known: Values) -> None:
    worker.backward(2, gradients(worker.rank, 2), known=known)
    worker.complete()


@some_ways
def test_what_fails_an_exchange_is_what_every_later_wait_raises(way: Way) -> None:
    stepped = threading.Barrier(3)

    def work(worker: Worker) -> None:
        known = worker.step(1, gradients(worker.rank, 1))
        stepped.wait(120)
        if worker.rank == 0:
            worker.exchange.fail(FrameError("out of paper"))
            worker.exchange.fail(FrameError("another reason"))
        with pytest.raises(TaihuError, match=r"^out of paper$" if worker.rank == 0 else None):
            whole_step(worker, known)
        raise FrameError("out of paper")

    assert all(isinstance(outcome, FrameError) for outcome in try_workers(way.job(), LAYOUT, work))


@pytest.mark.parametrize("first", ["the others push", "the worker leaves"])
@some_ways
def test_a_worker_that_leaves_is_not_waited_for(way: Way, first: str) -> None:
    """In good order: it is told by name or place, whether others wait for it already or begin to later."""
    pushed, left = threading.Barrier(3), threading.Event()

    def work(worker: Worker) -> None:
        known = worker.step(1, gradients(worker.rank, 1))
        worker.complete()
        if worker.rank == 1:
            if first == "the others push":
                pushed.wait(120)
            left.set()
            return
        if first == "the worker leaves":
            assert left.wait(120)
        worker.exchange.begin(2)
        for group in range(len(worker.bounds)):
            # In stage 3 nobody pushes before parameters have been gathered.
            if group == (way.zero < 3) and first == "the others push":
                pushed.wait(120)
            worker.push(group, gradients(worker.rank, 2), known)
        worker.complete()

    one, leaving, other = try_workers(way.job(), LAYOUT, work)
    assert leaving is None
    for outcome in (one, other):
        # One of them may be told by the coordinator, to which the other has told of it, before its own link tells.
        assert isinstance(outcome, RunError), outcome
        assert "has left the run while" in str(outcome), outcome


@pytest.mark.parametrize(
    "way", [Way("server", 1, transport="same-host"), Way("ring", 0, transport="same-host")], ids=str
)
def test_same_host_is_refused_where_memory_is_not_shared(way: Way) -> None:
    outcomes = try_workers(
        way.job(1, 2), LAYOUT, lambda _: None, own_arenas=lambda _: allocate_arenas(LAYOUT.elements, shared=False)
    )
    for outcome in outcomes:
        assert isinstance(outcome, TaihuError)
    assert any(isinstance(each, ConfigError) and "exchange.transport 'same-host'" in str(each) for each in outcomes)


@some_ways
def test_what_does_not_come_in_time_is_said_by_name(way: Way) -> None:
    over = threading.Barrier(3)

    def work(worker: Worker) -> None:
        worker.step(1, gradients(worker.rank, 1))
        worker.complete()
        over.wait(120)
        # Not before: a busy machine may take longer for the first step.
        worker.exchange._threads._timeout_s = 0.5
        try:
            if worker.rank != 1:
                worker.backward(2, gradients(worker.rank, 2))
                worker.complete()
        finally:
            over.wait(120)
        raise ExchangeError("nobody waits for this one")

    first, _, last = try_workers(way.job(), LAYOUT, work)
    for outcome in (first, last):
        assert isinstance(outcome, ExchangeError)
        assert "within 0.5 s" in str(outcome), outcome
        assert "exchange.timeout_s" in str(outcome)
