"""The steps behind which a script's state is held and written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taihu.torch.kept.moments import Moments


def test_first_steps_are_all_held_and_from_the_agreement_on_as_many_as_cost_a_fifth() -> None:
    moments = Moments(100, every_s=60.0)
    assert all(moments.holds(step) for step in range(101, 109))
    assert not any(moments.writes(step) for step in range(101, 109))
    assert next(step for step in range(101, 110) if moments.agrees(step)) == 108
    hold_every, write_every = moments.found(1.0, 1.0)
    assert hold_every == 5  # 1 s is a fifth of 5 s
    moments.agreed(108, hold_every, write_every)
    assert [step for step in range(109, 120) if moments.holds(step)] == [113, 118]
    assert write_every == round(60.0 / 1.2)
    assert [step for step in range(109, 200) if moments.writes(step)] == [108 + write_every]
    assert moments.agrees(108 + write_every)


@given(st.floats(1e-5, 10), st.floats(0, 10))
def test_holding_takes_a_fifth_at_most_and_never_one_place_alone(step_s: float, hold_s: float) -> None:
    hold_every, _ = Moments(0, every_s=60.0).found(step_s, hold_s)
    assert hold_s / hold_every <= 0.2 * step_s * (1 + 1e-9)
    assert hold_every % 2 == 1


@given(st.integers(1, 9), st.integers(0, 50))
def test_steps_that_are_counted_are_written_whatever_was_measured(every: int, begun: int) -> None:
    moments = Moments(begun, every_s=60.0, every_steps=every)
    written = []
    for step in range(begun + 1, begun + 60):
        written += [step] if moments.writes(step) else []
        if moments.agrees(step):
            moments.agreed(step, *moments.found(0.1, 0.3))
    assert written == list(range(begun + every, begun + 60, every))
