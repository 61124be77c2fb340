"""A decision is what its strategy says, next to all others."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.core.base.errors import ConfigError
from taihu.core.planner.decide import FRAME_SECONDS, UNCOMPRESSED, best_frame_elements, choose_fc_of, decide, predict
from taihu.core.planner.fc_mode import FcJob, FcLayer, FcLinks, choose_fc
from taihu.core.planner.groups import Group, plan_groups
from taihu.core.planner.merging import TIE, merge_exact, merge_greedy
from taihu.core.planner.profile import Compression, LayerCost, LinearCost, LinkCost, Profile
from taihu.core.planner.timeline import simulate, step_costs
from taihu.core.traits.methods import METHODS, Method

PROFILE = Profile(
    layers=tuple(LayerCost(f"l{i}", n, 0.01) for i, n in enumerate((4_000_000, 100, 9_000_000, 50_000, 10, 800_000))),
    forward_seconds=0.03,
    scan=LinearCost(1e-5, 1e-9),
    top_k=LinearCost(3e-5, 5e-9),
    link=LinkCost(1e-3, 2e-8, 2e-8),
    workers=3,
    servers=1,
)
DLGS = Compression(METHODS["dlgs"], 0.01)
STRATEGIES = ["per-layer", "single", "bucket:25MB", "greedy", "exact"]


def groups_by(strategy: str, compression: Compression) -> tuple[Group, ...]:
    costs = step_costs(PROFILE, compression)
    if strategy in ("exact", "auto"):
        return merge_exact(costs, TIE if strategy == "exact" else 0.02)
    return merge_greedy(costs) if strategy == "greedy" else plan_groups(PROFILE.layout, strategy)


@pytest.mark.parametrize("method", ["none", "lags", "dlgs"])
@pytest.mark.parametrize("strategy", [*STRATEGIES, "bucket:3MB", "auto"])
def test_a_strategy_is_followed_and_compared(method: str, strategy: str) -> None:
    compression = replace(DLGS, method=METHODS[method])
    decision = decide(PROFILE, compression, strategy)
    assert decision.groups == groups_by(strategy, compression)
    assert [times.group for times in decision.timeline.groups] == list(decision.groups)
    costs = step_costs(PROFILE, compression)
    assert decision.timeline == simulate(costs, decision.groups)
    assert set(decision.alternatives) == {*STRATEGIES, strategy, UNCOMPRESSED}
    for name in {*STRATEGIES, strategy}:
        seconds = predict(PROFILE, compression, groups_by(name, compression))
        assert decision.alternatives[name] == simulate(costs, groups_by(name, compression)).seconds == seconds
    dense = replace(compression, method=METHODS["none"])
    best = predict(PROFILE, dense, groups_by("exact", dense))
    assert decision.alternatives[UNCOMPRESSED] == best
    assert decision.seconds == decision.alternatives[strategy]
    assert decision.pays == (method != "none" and decision.seconds < best)


def test_auto_has_fewer_groups_where_exact_gains_little() -> None:
    quick = replace(PROFILE, link=LinkCost(1e-5, 1e-9, 1e-9))
    auto, exact = decide(quick, DLGS, "auto"), decide(quick, DLGS, "exact")
    assert exact.seconds <= auto.seconds <= 1.02 * exact.seconds
    assert len(auto.groups) < len(exact.groups)


def test_compression_pays_on_a_slow_link_only() -> None:
    fast = replace(PROFILE, link=LinkCost(0.0, 1e-12, 1e-12))
    assert decide(PROFILE, DLGS, "auto").pays
    assert not decide(fast, DLGS, "auto").pays
    assert not decide(PROFILE, replace(DLGS, method=METHODS["none"]), "auto").pays


def test_sending_everything_does_not_pay_against_sending_everything() -> None:
    """By a hair another plan is faster than the exact one, which has the fewest groups of those that tie with it."""
    hardly = replace(PROFILE, forward_seconds=1.0, link=LinkCost(0.0, 1e-18, 1e-18))
    decision = decide(hardly, replace(DLGS, method=METHODS["none"]), "per-layer")
    assert 0 < decision.alternatives[UNCOMPRESSED] - decision.seconds < TIE
    assert not decision.pays


@pytest.mark.parametrize("strategy", ["auto", "single"])
def test_top_k_selects_from_one_group(strategy: str) -> None:
    top_k = replace(DLGS, method=METHODS["topk"])
    decision = decide(PROFILE, top_k, strategy)
    assert decision.groups == (Group(0, 5),)
    assert set(decision.alternatives) == {"single", "uncompressed"}
    assert decision.pays == (decision.seconds < decision.alternatives[UNCOMPRESSED])


@pytest.mark.parametrize(
    ("method", "strategy", "words"),
    [
        ("dlgs", "best", "expected auto, per-layer, single, bucket:SIZE, greedy or exact"),
        ("dlgs", "auto:1", "expected auto"),
        ("dlgs", "", "expected auto"),
        ("dlgs", "bucket:4", "bucket size '4'"),
        ("topk", "exact", "compression topk selects from the whole gradient"),
        ("topk", "per-layer", "use single or auto"),
    ],
)
def test_other_strategies_are_refused(method: str, strategy: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        decide(PROFILE, replace(DLGS, method=METHODS[method]), strategy)


@settings(deadline=None)
@given(
    st.builds(LinkCost, st.floats(1e-6, 1e-1), st.floats(1e-12, 1e-5), st.floats(1e-12, 1e-5)),
    st.integers(1, 10**8),
    st.integers(0, 4),
    st.sampled_from([1024, 1 << 14, 1 << 17, 1 << 20]),
    st.sampled_from([(METHODS["none"], 1.0), (METHODS["dlgs"], 0.1), (METHODS["lags"], 0.01)]),
    st.integers(1, 20),
)
def test_no_other_number_of_frames_is_much_better(  # noqa: PLR0917 - one of each
    link: LinkCost, elements: int, servers: int, most: int, method: tuple[Method, float], window: int
) -> None:
    profile = replace(PROFILE, layers=(LayerCost("fc", elements, 0.01),), link=link, servers=servers)
    compression = Compression(*method)
    all_of_it = compression.sizes(profile, np.array([0]), np.array([0]))
    up = link.up_seconds_per_byte * compression.up_bytes(profile, all_of_it)[0]
    down = link.down_seconds_per_byte * compression.down_bytes(profile, all_of_it)[0]
    way, own, ends = max(up, down), -(-elements // max(1, servers)), max(profile.workers, servers)

    def seconds(frames: int) -> float:
        return float(FRAME_SECONDS * frames * ends + 2.0 * way / frames)

    chosen = best_frame_elements(profile, compression, most, most, window)
    assert chosen <= most
    made = -(-own // chosen)
    least, largest = -(-own // most), max(-(-own // most), min(64, -(-own // (1 << 12))))
    # Answers come in time for a window of frames; at most one frame less than the best number of them.
    counts = [each for each in range(least, largest + 1) if each <= max(least, window * way / link.alpha_seconds)]
    assert made == least or made <= window * way / link.alpha_seconds
    assert seconds(made) <= 1.26 * min(map(seconds, counts[: 1 << 12])) * (1 + 1e-9) + FRAME_SECONDS * ends


def test_frames_are_as_large_as_may_be_where_bytes_cost_nothing() -> None:
    free = replace(PROFILE, link=LinkCost(1e-4, 0.0, 0.0))
    assert best_frame_elements(free, Compression(METHODS["none"]), 1 << 18, 1 << 20, 6) == 1 << 20


def test_what_takes_as_long_as_sending_everything_does_not_pay() -> None:
    free = replace(PROFILE, scan=LinearCost(0.0, 0.0), top_k=LinearCost(0.0, 0.0), link=LinkCost(0.0, 0.0, 0.0))
    decision = decide(free, DLGS, "single")
    assert decision.seconds == decision.alternatives[UNCOMPRESSED]
    assert not decision.pays


@pytest.mark.parametrize(
    ("way_s", "alpha_s", "servers", "frames"),
    [
        (0.27, 0.001, 1, 51),
        (0.027, 0.001, 1, 16),
        (0.027, 0.001, 4, 11),
        (0.0027, 0.001, 1, 5),
        (0.27, 0.05, 1, 32),
        (0.027, 0.05, 1, 3),
        (0.0027, 0.05, 1, 1),
        (100.0, 0.0, 1, 64),
    ],
)
def test_frames_are_those_of_the_formula(way_s: float, alpha_s: float, servers: int, frames: int) -> None:
    """sqrt(2 w / (max(N, S) c)) of two workers, as far as six of them are answered in time; at most 64."""
    whole = 1 << 22
    link = LinkCost(alpha_s, way_s / (4 * whole), 0.0)
    profile = replace(PROFILE, layers=(LayerCost("fc", whole, 0.01),), link=link, workers=2, servers=servers)
    found = best_frame_elements(profile, Compression(METHODS["none"]), 1 << 23, 1 << 23, 6)
    assert found == (1 << 23 if frames == 1 else math.ceil(whole / servers / frames))
    assert best_frame_elements(profile, Compression(METHODS["none"]), 1000, 1000, 6) == 1000


@pytest.mark.parametrize(
    ("way_s", "elements"),
    [
        (10.0, 1 << 17),  # 200 frames are 0.06 s of processors, which have the time
        (1.25, 1 << 17),
        (1.15, math.ceil(26_097_088 / 64)),  # a twentieth of the way is less
        (0.2401, math.ceil(26_097_088 / 40)),
        (0.001, 1 << 20),  # 2
    ],
)
def test_frames_are_larger_than_usual_only_where_processors_are_busy_with_them(way_s: float, elements: int) -> None:
    whole = 26_097_088
    link = LinkCost(0.0, way_s / (4 * whole), 0.0)
    profile = replace(PROFILE, layers=(LayerCost("fc", whole, 0.01),), link=link, workers=3, servers=1)
    assert best_frame_elements(profile, Compression(METHODS["none"]), 1 << 17, 1 << 20, 4) == elements


@pytest.mark.parametrize(("workers", "servers", "shared"), [(6, 2, 3.0), (2, 4, 1.0), (4, 0, 1.0)])
def test_workers_share_a_servers_link_and_not_each_others(workers: int, servers: int, shared: float) -> None:
    layers = (FcLayer("fc6", 9216, 4096), FcLayer("fc8", 4096, 1000))
    profile = replace(PROFILE, workers=workers, servers=servers, fc_layers=layers, batch=32)
    between_workers = FcLinks(transfer_seconds=0.5e-3, exchange_seconds=1e-3, seconds_per_byte=2e-8 / shared)
    assert choose_fc_of(profile) == choose_fc(layers, FcJob(32, workers, servers), between_workers)
    assert choose_fc_of(replace(profile, batch=0)) == ()
