"""The search ranks as if all candidates were simulated, and floors are below steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.simulations import job_of, layout_of, seconds_of

from taihu.core.base.errors import ConfigError
from taihu.core.coordination.plans.planning import Planning
from taihu.core.job import Job, load_job
from taihu.core.traits.methods import METHODS
from taihu.core.traits.stages import STAGES
from taihu.search.floors import Floor
from taihu.search.reasons import why_it_loses, why_it_was_passed
from taihu.search.search import ALIKE, Found, Passed, Search, ranked
from taihu.search.steps import TERMS, Costs, Steps
from taihu.search.ways import Candidate, Way, allowed_for, candidates_of
from taihu.simulation.compute import Compute, Segments
from taihu.simulation.job import Simulated
from taihu.simulation.machines import Machines, Network, ethernet
from taihu.simulation.placement import Placement

WAY = Way.of(Job(), beside=False)
STEP = Simulated(1.0, 0.5, 0.5, 0.0, 0.2, 0.5, (1, 1), None, Planning(Job(), layout_of(1)).plan, 0)
WORKERS = (1, 2, 5)
MACHINES = Machines(add_bytes_per_second=4e9)


def step_of(seconds: float) -> Simulated:
    """A step that takes so long."""
    return replace(STEP, seconds=seconds)


def steps_on(
    network: Network,
    elements: tuple[int, ...],
    each: float,
    machines: Machines = MACHINES,
    *,
    run_again: Segments = (),
) -> Steps:
    """Steps of jobs whose layers have so many parameters and take `each` seconds."""
    layout = layout_of(*elements)
    costs = Costs(layout, seconds_of(layout, each), run_again=lambda way: () if way == "none" else run_again)
    return Steps(costs, Placement(network, machines))


def found_by(search: Search, steps: Steps) -> list[Found]:
    while (candidate := search.next()) is not None:
        search.add(candidate, steps.simulate(candidate))
    return ranked(search.found)


@example([(0.9375, 0.0, 0, 0.1), (0.9375, 0.03125, 0, 1.0), (0.90625, 0.046875, 0, 1.0)], 1)
@given(
    st.lists(
        st.tuples(st.floats(0.9, 1.1), st.floats(0.0, 0.1), st.integers(0, 3), st.sampled_from([1.0, 0.1])),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 4),
)
def test_nothing_is_passed_by_that_would_be_ranked(drawn: list[tuple[float, float, int, float]], best: int) -> None:
    """Floors, what steps take beyond them, changes and densities: most steps are about as fast."""
    seconds, floors = {}, []
    for number, (floor, more, changes, density) in enumerate(drawn):
        candidate = Candidate(replace(WAY, servers=number + 1, density=density), Job(), changes)
        seconds[candidate.way] = floor + more
        floors.append((candidate, Floor(floor, 0.0, 0.0)))
    search = Search(floors, best)
    while (chosen := search.next()) is not None:
        search.add(chosen, step_of(seconds[chosen.way]))
    everything = ranked([Found(each, step_of(seconds[each.way])) for each, _ in floors])
    assert ranked(search.found)[:best] == everything[:best]
    assert len(search.found) + len(search.passed) == len(floors)


@pytest.mark.parametrize(("rate", "density"), [(1e8, None), (1e8, 0.05), (1e10, None)])
def test_the_winner_is_the_best_of_all(rate: float, density: float | None) -> None:
    """Every candidate simulated, without floors, ranks the same."""
    job = job_of(3, 1, exchange={"plan": "auto"})
    steps = steps_on(ethernet(rate)[0], (300_000, 90_000, 20_000, 900), 0.004)
    candidates = list(candidates_of(job, allowed_for(job, 5, density, None), lambda _: True, steps.spread))
    search = Search([(each, steps.floor(each)) for each in candidates], 3)
    chosen = found_by(search, steps)[:3]
    everything = ranked([Found(each, steps.simulate(each)) for each in candidates])
    assert [each.candidate.way for each in chosen] == [each.candidate.way for each in everything[:3]]
    assert search.passed, "nothing was spared"
    least = min(each.step.seconds for each in everything)
    assert chosen[0].step.seconds <= least * (1.0 + ALIKE)


@pytest.fixture(scope="module")
def ways_of() -> dict[int, list[Candidate]]:
    """All ways to run a job of so many workers."""
    free = steps_on(ethernet(1e9)[0], (1000, 10), 0.0)
    found = {}
    for workers in WORKERS:
        job = job_of(workers, 1, exchange={"plan": "auto"})
        allowed = allowed_for(job, 0, 0.01, ("fp32", "bf16", "fp16"), 4)
        found[workers] = list(candidates_of(job, replace(allowed, hosts=2 * workers), lambda _: False, free.spread))
    return found


NETWORKS = st.builds(
    Network,
    st.just("drawn"),
    st.sampled_from([0.0, 1e-5, 5e-3]),
    st.sampled_from([1e6, 1e8, 1e12]),
    full_duplex=st.booleans(),
    jitter=st.sampled_from([0.0, 0.3]),
)


@given(
    network=NETWORKS,
    machines=st.builds(Machines, jitter=st.sampled_from([0.0, 0.0, 0.2]), stragglers=st.integers(0, 1)),
    elements=st.lists(st.integers(1, 300_000), min_size=1, max_size=5),
    each=st.sampled_from([0.0, 1e-3, 0.1]),
    workers=st.sampled_from(WORKERS),
    numbers=st.lists(st.integers(0, 10_000), min_size=1, max_size=4),
)
@example(
    network=Network("half-duplex", 0.0, 1e8, full_duplex=False),
    machines=Machines(),
    elements=[679],
    each=1e-3,
    workers=5,
    numbers=[225],
)
@settings(max_examples=25)
def test_no_step_is_shorter_than_its_floor(
    ways_of: dict[int, list[Candidate]],
    *,
    network: Network,
    machines: Machines,
    elements: list[int],
    each: float,
    workers: int,
    numbers: list[int],
) -> None:
    steps = steps_on(network, tuple(elements), each, machines)
    ways = ways_of[workers]
    for number in numbers:
        candidate = ways[number % len(ways)]
        assert steps.floor(candidate).seconds <= steps.simulate(candidate).seconds


@given(
    st.sampled_from([None, 0.5, 0.02, 1e-4]),
    st.sampled_from([None, ("bf16",), ("fp32", "fp16")]),
    st.sampled_from(["none", "dlgs"]),
    st.integers(4, 12),
)
@settings(max_examples=8)
def test_no_limit_is_crossed(
    density: float | None, precisions: tuple[str, ...] | None, method: str, hosts: int
) -> None:
    compression = {"method": method, "density": 0.1} if method != "none" else {}
    job = job_of(4, 2, exchange={"plan": "auto"}, compression=compression)
    steps = steps_on(ethernet(1e9)[0], (1000, 10), 0.01)
    allowed = allowed_for(job, hosts, density, precisions)
    least = density if density is not None else 0.1 if method != "none" else 1.0
    ways = list(islice(candidates_of(job, allowed, lambda _: True, steps.spread), 400))
    assert len({each.way for each in ways}) == len(ways)
    for each in ways:
        sent = each.job.compression
        assert sent.method.key == "none" or sent.density >= least
        assert each.job.train.precision in (precisions or ("fp32",))
        assert each.hosts <= hosts
        assert Way.of(each.job, beside=each.way.beside) == each.way
        assert each.job.cluster.workers == 4


def test_the_job_as_it_is_comes_first_and_loses_nothing_more_by_default() -> None:
    job = job_of(2, 1, train={"precision": "bf16"})
    steps = steps_on(ethernet(1e9)[0], (1000, 10), 0.01)
    first, *others = candidates_of(job, allowed_for(job, 0, None, None), lambda _: True, steps.spread)
    assert (first.job, first.changes) == (job, 0)
    assert {each.way.precision for each in others} == {"bf16", "fp32"}
    assert {each.way.method.key for each in others} == {"none"}


def test_memory_is_saved_only_where_it_has_to_be() -> None:
    job = job_of(3, 1, exchange={"plan": "auto"})
    steps = steps_on(ethernet(1e9)[0], (1000, 10), 0.01)
    allowed = allowed_for(job, 0, None, None)

    def settings_where(fits: bool, least: int = 0) -> set[tuple[int, str]]:
        """Stages and recomputation that are tried where so much is kept back."""
        ways = candidates_of(job, allowed, lambda each: fits and each.way.zero.key >= least, steps.spread)
        return {(each.way.zero.key, each.way.recompute) for each in ways}

    assert settings_where(fits=True) == {(0, "none"), (1, "none")}
    # A higher stage fits: a lower one with recomputation, which need not, may be faster.
    lower = {(zero, way) for zero in (0, 1) for way in ("none", "memory")}
    assert settings_where(fits=True, least=2) == {(2, "none"), *lower}
    assert settings_where(fits=True, least=3) == {(2, "none"), (3, "none"), (2, "memory"), *lower}
    assert settings_where(fits=False) == {(zero, way) for zero in range(4) for way in ("none", "memory")}


def test_recomputation_takes_the_forward_of_its_segments_more() -> None:
    segments: dict[str, Segments] = {"none": (), "memory": ((1, 1),), "spill": ((0, 0), (1, 1))}
    costs = Costs(layout_of(5, 5), Compute("test", (1.0, 2.0), (3.0, 4.0)), run_again=segments.__getitem__)
    assert [costs.compute_with(way).seconds for way in segments] == [10.0, 12.0, 13.0]


def test_what_job_settings_do_not_go_with_is_no_way() -> None:
    clipped = load_job(None, {"optimizer": {"clip_norm": 1.0}})
    steps = steps_on(ethernet(1e9)[0], (1000, 10), 0.01)
    ways = list(candidates_of(clipped, allowed_for(clipped, 0, 0.01, None), lambda _: True, steps.spread))
    assert {each.way.method.key for each in ways} == {"none"}


@pytest.mark.parametrize(("optimizer", "back"), [("sgd", True), ("adam", False)])
def test_few_bits_are_tried_as_far_as_they_may(optimizer: str, back: bool) -> None:
    job = job_of(3, 1, exchange={"plan": "auto"}, optimizer={"name": optimizer})
    steps = steps_on(ethernet(1e9)[0], (1000, 10), 0.01)
    types = {}
    for bits in (None, 8, 4):
        ways = [*candidates_of(job, allowed_for(job, 0, None, None, bits), lambda _: True, steps.spread)]
        types[bits] = {(w.way.method.key, w.way.value_type, w.way.downlink_value_type) for w in ways}
        assert all(w.way.servers for w in ways if w.way.method.selects)
        assert all(Way.of(w.job, beside=w.way.beside) == w.way for w in ways)
        assert all(Way.from_json(w.way.to_json()) == w.way for w in ways)
    assert types[None] == {("none", "fp32", "fp32")}
    assert types[8] - types[None] == {("quantized", "int8", "int8" if back else "fp32")}
    assert types[4] - types[8] == {("quantized", "int4", "int4" if back else "fp32")}


def test_bits_that_no_value_has_are_no_limit() -> None:
    with pytest.raises(ConfigError, match="--min-bits 5: expected 8, 4 or 2, or 32 for whole values"):
        allowed_for(Job(), 0, None, None, 5)


@pytest.mark.parametrize(
    ("hosts", "density", "precisions", "words"),
    [
        (2, None, None, "machines.hosts 2: the job has 3 workers"),
        (0, 0.0, None, "--min-density 0: expected a share above 0"),
        (0, 1.5, None, "--min-density 1.5"),
        (0, None, ("fp64",), "--precisions fp64: expected some of fp32, bf16, fp16"),
    ],
)
def test_limits_that_are_none(
    hosts: int, density: float | None, precisions: tuple[str, ...] | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        allowed_for(Job(), hosts, density, precisions)


def test_the_largest_term_is_the_reason() -> None:
    """One server's port against a ring; start-ups of a ring of many; selecting from what is cheap to send."""
    heavy = steps_on(ethernet(1e8)[0], (400_000,), 0.001)
    assert _lost(heavy, Way.of(job_of(8, 1), beside=False), replace(WAY, servers=0, zero=STAGES[0])).startswith(
        "transfers:"
    )
    light = steps_on(Network("slow to start", 5e-3, 1e10), (400,), 0.001)
    assert _lost(light, replace(WAY, servers=0, zero=STAGES[0]), replace(WAY, servers=1)).startswith("start-ups:")
    wide = steps_on(Network("fast", 1e-6, 1e12), (4_000_000,), 0.0, Machines())
    lags = replace(WAY, servers=1, method=METHODS["lags"], density=0.01)
    assert _lost(wide, lags, replace(WAY, servers=1)).startswith("selection:")
    again = replace(WAY, servers=1, recompute="memory")
    slow = steps_on(Network("fast", 1e-6, 1e11), (400,), 1.0, run_again=((0, 0),))
    assert _lost(slow, again, replace(WAY, servers=1)).startswith("compute:")


def _lost(steps: Steps, loser: Way, winner: Way) -> str:
    job = job_of(8, 1)
    both = [Candidate(way, replace(way, plan="single").over(job), 0) for way in (loser, winner)]
    found = [Found(each, steps.simulate(each)) for each in both]
    terms = [steps.terms(each.candidate, each.step) for each in found]
    assert all(tuple(each) == TERMS for each in terms)
    assert found[0].step.seconds > found[1].step.seconds
    return why_it_loses(found[0], terms[0], found[1], terms[1])


def test_what_is_as_fast_loses_by_preference() -> None:
    winner = Found(Candidate(WAY, Job(), 0), STEP)
    for way, changes, words in (
        (replace(WAY, density=0.1, method=METHODS["dlgs"]), 1, "sends less of the gradient"),
        (replace(WAY, precision="bf16"), 1, "less exact values"),
        (replace(WAY, plan="single"), 1, "changes more"),
        (replace(WAY, servers=3), 0, "more hosts"),
    ):
        loser = Found(Candidate(way, Job(), changes), STEP)
        assert ranked([loser, winner])[0] == winner
        assert words in why_it_loses(loser, {}, winner, {})
    passed = Passed(winner.candidate, Floor(0.5, 3.0, 1.0))
    assert why_it_was_passed(passed, winner) == "transfers: at least 3 s a step"
    assert "preferred" in why_it_was_passed(replace(passed, floor=Floor(0.5, 0.0, 0.0)), winner)
