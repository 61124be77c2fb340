"""A sample of `python -m benchmarks random_scripts`, and that it notices what is wrong."""

from __future__ import annotations

import pytest

from benchmarks.pytorch.random_loops import Loop, Step, source_of
from benchmarks.pytorch.random_scripts import drawn, outcome_of
from taihu.torch.steps.steps import BackwardSteps


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", [2, 3])
def test_random_loops_are_equal_to_one_process_or_refused_on_all_ranks(workers: int) -> None:
    for loop in drawn(6, 4 + workers):
        outcome = outcome_of(loop, workers)
        assert outcome.is_right, f"{outcome}\n{source_of(loop)}"


def test_a_loop_of_other_values_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients set by hand are not exchanged, and nobody looks whether replicas differ."""
    monkeypatch.setattr(BackwardSteps, "before_update", lambda *_: None)
    monkeypatch.setattr(BackwardSteps, "checksums", lambda _: "")
    loop = Loop("sgd", (Step("usual"), Step("autograd.grad")))
    assert outcome_of(loop, 2).kind == "parted"
