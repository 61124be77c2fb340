"""Exchanges that return gradients: the mean of all workers' lies in every arena, and no parameter is touched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support.cluster import layout_of, make_job
from support.exchanges import run_workers, try_workers
from support.worker import Values, Worker, initial_parameters

from taihu.core.job import Job

STEPS = 3
SIZES = (3000, 500, 1700)
Exchange = dict[str, object]


def job_of(workers: int, exchange: Exchange, compression: Exchange | None = None) -> Job:
    given = {"returns": "gradients", "transport": "auto", "plan": "bucket:5kB", "timeout_s": 300.0, **exchange}
    return make_job(2, workers, exchange=given, compression=compression or {})


def gradients(rank: int, step: int, elements: int) -> Values:
    return np.random.default_rng((rank, step)).standard_normal(elements, dtype=np.float32)


def returned(job: Job, sizes: list[int]) -> list[list[Values]]:
    """The gradients that each worker has behind each step; its parameters are as they were."""
    layout = layout_of(*sizes)

    def work(worker: Worker) -> list[Values]:
        seen = []
        for step in range(1, STEPS + 1):
            worker.backward(step, gradients(worker.rank, step, layout.elements))
            worker.complete()
            seen.append(worker.arenas.gradients.copy())
        assert worker.arenas.parameters.tobytes() == initial_parameters(layout).tobytes()
        return seen

    return run_workers(job, layout, work)


KINDS: list[Exchange] = [
    {"kind": kind, "transport": transport}
    for kind in ("ring", "server")
    for transport in ("tcp", "grpc", "same-host")
]


@settings(max_examples=25)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 4),
    st.lists(st.integers(1, 3000), min_size=1, max_size=6),
)
def test_the_mean_of_all_workers_comes_back(exchange: Exchange, workers: int, sizes: list[int]) -> None:
    seen = returned(job_of(workers, exchange), sizes)
    for step in range(1, STEPS + 1):
        mean = np.mean([gradients(rank, step, sum(sizes)) for rank in range(workers)], axis=0, dtype=np.float64)
        at_step = [each[step - 1] for each in seen]
        assert len({values.tobytes() for values in at_step}) == 1
        np.testing.assert_allclose(at_step[0], mean, rtol=1e-5, atol=1e-6)


def compressed(kind: str, method: str) -> list[tuple[list[Values], Values]]:
    """Gradients that come back to each worker behind each step, and what it holds back at the end."""
    job = job_of(3, {"kind": kind, "plan": "single"}, {"method": method, "density": 0.05})
    layout = layout_of(*SIZES)

    def work(worker: Worker) -> tuple[list[Values], Values]:
        seen = []
        for step in range(1, STEPS + 1):
            worker.backward(step, gradients(worker.rank, step, layout.elements))
            worker.complete()
            seen.append(worker.arenas.gradients.copy())
        return seen, worker.exchange.residual.copy()

    return run_workers(job, layout, work)


@pytest.mark.parametrize("method", ["topk", "lags", "dlgs"])
def test_of_what_was_selected_the_mean_comes_back_and_nothing_is_lost(method: str) -> None:
    """Without momentum all that was ever returned, and what is held back, is all that there was."""
    outcomes = compressed("ring", method)
    for step in range(STEPS):
        at_step = [seen[step] for seen, _ in outcomes]
        assert len({values.tobytes() for values in at_step}) == 1
        assert 0 < np.count_nonzero(at_step[0]) < 0.5 * sum(SIZES)
    total = np.sum([gradients(rank, step, sum(SIZES)) for rank in range(3) for step in range(1, 4)], axis=0)
    came = 3 * np.sum(outcomes[0][0], axis=0) + np.sum([held for _, held in outcomes], axis=0)
    np.testing.assert_allclose(came, total, rtol=1e-4, atol=1e-5)
    through_servers = compressed("server", method)
    for one, other in zip(outcomes, through_servers, strict=True):
        assert [values.tobytes() for values in one[0]] == [values.tobytes() for values in other[0]]
        assert one[1].tobytes() == other[1].tobytes()


def test_selected_sums_are_all_that_servers_answer() -> None:
    layout = layout_of(*SIZES)

    def work(worker: Worker) -> int:
        worker.backward(1, gradients(worker.rank, 1, layout.elements))
        worker.complete()
        return worker.exchange.totals().received_bytes

    job = job_of(3, {"kind": "server"}, {"method": "dlgs", "density": 0.01})
    assert max(run_workers(job, layout, work)) < layout.elements * 4 / 4


@pytest.mark.parametrize("method", ["none", "dlgs"])
@pytest.mark.parametrize("kind", ["ring", "server"])
def test_what_is_not_finite_comes_back_to_all_in_its_step_alone(kind: str, method: str) -> None:
    """A loop that scales its losses finds it, on every worker alike, and skips the step."""
    layout = layout_of(*SIZES)

    def work(worker: Worker) -> list[Values]:
        seen = []
        for step in (1, 2, 3):
            own = gradients(worker.rank, step, layout.elements)
            own[:] = np.inf if (worker.rank, step) == (1, 2) else own
            worker.backward(step, own)
            worker.complete()
            seen.append(worker.arenas.gradients.copy())
        return seen

    seen = run_workers(job_of(3, {"kind": kind}, {"method": method, "density": 0.05}), layout, work)
    for step, is_bad in enumerate((False, True, False)):
        at_step = [each[step] for each in seen]
        assert len({values.tobytes() for values in at_step}) == 1
        assert np.isfinite(at_step[0]).all() != is_bad


@pytest.mark.parametrize("kind", ["ring", "server"])
def test_what_is_not_finite_is_refused_where_the_job_says_so(kind: str) -> None:
    layout = layout_of(*SIZES)

    def work(worker: Worker) -> None:
        worker.backward(1, np.full(layout.elements, np.nan, dtype=np.float32))
        worker.complete()

    outcomes = try_workers(job_of(2, {"kind": kind, "non_finite": "error"}), layout, work)
    assert any("not finite" in str(outcome) for outcome in outcomes), outcomes


@pytest.mark.parametrize(
    ("tables", "remedy"),
    [
        ({"exchange": {"zero": 1}}, "set exchange.zero = 0"),
        ({"compression": {"method": "dlgs", "downlink": "doublesqueeze"}}, "leave compression.downlink out"),
        ({"exchange": {"kind": "ring"}, "compression": {"method": "dlgs", "downlink": "exact"}}, "downlink out"),
        ({"optimizer": {"clip_norm": 1.0}}, "leave optimizer.clip_norm"),
    ],
)
def test_what_cannot_be_returned_is_refused(tables: dict[str, Exchange], remedy: str) -> None:
    exchange = {"returns": "gradients", **tables.pop("exchange", {})}
    with pytest.raises(ValidationError, match=remedy):
        Job.model_validate({"exchange": exchange, **tables})
