"""Exchanges that return gradients: the mean of all workers' lies in every arena, and no parameter is touched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support.cluster import layout_of
from support.exchanges import run_workers
from support.worker import Values, Worker, initial_parameters

from taihu.job import Job

STEPS = 3
Exchange = dict[str, object]


def job_of(workers: int, exchange: Exchange, compression: Exchange | None = None) -> Job:
    return Job.model_validate(
        {
            "cluster": {"servers": 2, "workers": workers},
            "exchange": {"returns": "gradients", "plan": "bucket:5kB", "timeout_s": 20.0, **exchange},
            "compression": compression or {},
        }
    )


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


@pytest.mark.parametrize("method", ["topk", "lags", "dlgs"])
def test_of_what_was_selected_the_mean_comes_back_and_nothing_is_lost(method: str) -> None:
    """Without momentum all that was ever returned, and what is held back, is all that there was."""
    sizes, workers = [3000, 500, 1700], 3
    job = job_of(workers, {"kind": "ring", "plan": "single"}, {"method": method, "density": 0.05})
    layout = layout_of(*sizes)

    def work(worker: Worker) -> tuple[list[Values], Values]:
        seen = []
        for step in range(1, STEPS + 1):
            worker.backward(step, gradients(worker.rank, step, layout.elements))
            worker.complete()
            seen.append(worker.arenas.gradients.copy())
        return seen, worker.exchange.residual.copy()

    outcomes = run_workers(job, layout, work)
    for step in range(STEPS):
        at_step = [seen[step] for seen, _ in outcomes]
        assert len({values.tobytes() for values in at_step}) == 1
        assert 0 < np.count_nonzero(at_step[0]) < 0.5 * layout.elements
    total = np.sum(
        [gradients(rank, step, layout.elements) for rank in range(workers) for step in range(1, 4)], axis=0
    )
    came = workers * np.sum(outcomes[0][0], axis=0) + np.sum([held for _, held in outcomes], axis=0)
    np.testing.assert_allclose(came, total, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("tables", "remedy"),
    [
        ({"exchange": {"zero": 1}}, "set exchange.zero = 0"),
        ({"compression": {"method": "dlgs"}}, "set exchange.kind = 'ring'"),
        ({"optimizer": {"clip_norm": 1.0}}, "leave optimizer.clip_norm"),
    ],
)
def test_what_cannot_be_returned_is_refused(tables: dict[str, Exchange], remedy: str) -> None:
    exchange = {"returns": "gradients", **tables.pop("exchange", {})}
    with pytest.raises(ValidationError, match=remedy):
        Job.model_validate({"exchange": exchange, **tables})
