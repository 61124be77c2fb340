"""Jobs whose steps do not wait for all workers: what follows from that."""

from __future__ import annotations

from pathlib import Path

import pytest

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job, load_job
from taihu.core.job.loose import check_simulated


def job_of(consistency: str, **optimizer: object) -> Job:
    return load_job(
        None, {"exchange": {"consistency": consistency}, "optimizer": optimizer, "cluster": {"workers": 4}}
    )


def test_one_gradient_at_a_time_is_a_share_of_the_step() -> None:
    settings: dict[str, object] = {"learning_rate": 0.4, "schedule": "cosine", "final_learning_rate": 0.2}
    for key in ("ssp:2", "async"):
        optimizer = job_of(key, **settings).server_optimizer
        assert (optimizer.learning_rate, optimizer.final_learning_rate) == (0.1, 0.05)
    for key in ("bsp", "ssp:0", "bsp:N-1"):
        assert job_of(key, **settings).server_optimizer.learning_rate == 0.4


def test_what_such_steps_do_without() -> None:
    strict, loose = job_of("ssp:0"), job_of("async")
    traits = [(job.shares_memory, job.plans_by_measuring, job.may_hold_steps) for job in (strict, loose)]
    assert traits == [(True, True, True), (False, False, False)]


def test_orders_are_of_steps_that_have_none() -> None:
    kept = {"run": {"order": "orders"}}
    assert load_job(None, kept).order_folder is None
    assert load_job(None, kept, {"exchange": {"consistency": "async"}}).order_folder == Path("orders")
    assert load_job(None, {"run": {"order": "none"}, "exchange": {"consistency": "async"}}).order_folder is None


def test_steps_that_do_not_wait_are_not_simulated() -> None:
    check_simulated(job_of("bsp"))
    with pytest.raises(ConfigError, match=r"exchange\.consistency 'bsp:N-1': steps that wait for all workers alone"):
        check_simulated(job_of("bsp:N-1"))
