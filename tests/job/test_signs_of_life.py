"""The pace of signs of life, by the number of members."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taihu.core.job import Job
from taihu.core.job.signs_of_life import MOST_A_SECOND, seconds_between_signs


def job_of(servers: int, workers: int, **cluster: object) -> Job:
    return Job.model_validate({"cluster": {"servers": servers, "workers": workers, **cluster}})


def test_few_members_keep_the_pace_that_is_asked_for() -> None:
    assert seconds_between_signs(job_of(1, 4)) == 0.5
    assert seconds_between_signs(job_of(1, 24)) == 0.5
    assert seconds_between_signs(job_of(1, 4, heartbeat_s=0.05)) == 0.1


@given(st.integers(1, 8), st.integers(1, 1000))
def test_all_together_give_no_more_than_so_many_a_second(servers: int, workers: int) -> None:
    seconds = seconds_between_signs(job_of(servers, workers, lost_after_s=3600))
    assert (servers + workers) / seconds <= MOST_A_SECOND * 1.000001


@given(st.integers(1, 1000), st.floats(0.01, 100.0), st.floats(0.1, 1000.0))
def test_several_come_before_silence_is_a_loss_unless_fewer_were_asked_for(
    workers: int, heartbeat_s: float, lost_after_s: float
) -> None:
    if lost_after_s > heartbeat_s:
        job = job_of(1, workers, heartbeat_s=heartbeat_s, lost_after_s=lost_after_s)
        assert heartbeat_s <= seconds_between_signs(job) <= max(heartbeat_s, lost_after_s / 4)
