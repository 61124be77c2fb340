"""Costs and bytes of groups, against plain loops, a table, and what the kernels really pack."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import CHARACTERS

from taihu.core.base.errors import ConfigError
from taihu.core.planner.profile import (
    Compression,
    LayerCost,
    LinearCost,
    LinkCost,
    Profile,
    Threshold,
    rice_bits_per_index,
)
from taihu.core.traits.methods import METHODS, Method
from taihu.kernels.packing import pack, packed_bound

quick = settings(deadline=None, max_examples=80)
SECONDS = st.floats(0, 1e3)
LINEAR = st.builds(LinearCost, SECONDS, SECONDS)
ELEMENTS = st.sampled_from([0, 1, 2, 3, 50]) | st.integers(0, 10**7)
PROFILES = st.builds(
    Profile,
    st.lists(st.builds(LayerCost, st.text(CHARACTERS, max_size=5), ELEMENTS, SECONDS), min_size=1, max_size=6).map(
        tuple
    ),
    SECONDS,
    LINEAR,
    LINEAR,
    st.builds(LinkCost, SECONDS, SECONDS, SECONDS),
    st.integers(1, 64),
    st.sampled_from([0, 1, 2, 5]),
    st.floats(0.1, 2),
    st.floats(0.1, 2),
    refresh_ratio=st.floats(0, 1),
)
UNITS: list[tuple[Method, Threshold]] = [
    (METHODS["none"], "layer"),
    (METHODS["topk"], "layer"),
    (METHODS["lags"], "group"),
    (METHODS["dlgs"], "layer"),
    (METHODS["dlgs"], "group"),
]
COMPRESSIONS = st.builds(
    Compression,
    st.just("none"),
    st.floats(1e-4, 1),
    st.integers(1, 64),
    st.sampled_from([2, 4]),
    st.sampled_from(["dense", "exact", "doublesqueeze"]),
    st.integers(1, 1 << 22),
    st.integers(0, 99),
    st.integers(0, 9),
    st.just("layer"),
    st.sampled_from([4, 1, 0.5]),
)


def profile_of(elements: list[int], *, workers: int = 3, servers: int = 1) -> Profile:
    layers = tuple(LayerCost(f"l{i}", n, 0.1) for i, n in enumerate(elements))
    return Profile(
        layers, 0.2, LinearCost(1e-5, 1e-9), LinearCost(3e-5, 5e-9), LinkCost(1e-3, 1e-8, 2e-8), workers, servers
    )


def bits_by_definition(density: float) -> float:
    """The least over all parameters of the mean code length, summed over gaps."""
    gaps = np.arange(int(40 / density))
    probability = density * (1 - density) ** gaps
    return min(float((probability * ((gaps >> k) + 1 + k)).sum()) for k in range(20))


@quick
@given(st.floats(0.002, 1))
def test_the_closed_form_is_the_best_rice_code(density: float) -> None:
    assert rice_bits_per_index(np.array([density]))[0] == pytest.approx(bits_by_definition(density), rel=1e-6)


def test_rice_codes_take_what_the_table_says() -> None:
    bits = rice_bits_per_index(np.array([0.1, 0.01, 0.001]))
    assert bits == pytest.approx([4.76, 8.11, 11.5], abs=0.01)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("is_ring", [False, True])
@settings(deadline=None, max_examples=15)
@given(PROFILES, COMPRESSIONS, st.data())
def test_costs_of_a_group_are_those_of_its_layers(
    unit: tuple[Method, Threshold], is_ring: bool, profile: Profile, compression: Compression, data: st.DataObject
) -> None:
    compression = replace(compression, method=unit[0], threshold=unit[1])
    profile = replace(profile, servers=0 if is_ring else max(1, profile.servers))
    first = data.draw(st.integers(0, len(profile.layers) - 1))
    last = data.draw(st.integers(first, len(profile.layers) - 1))
    sizes = compression.sizes(profile, np.array([first]), np.array([last]))
    own = [layer.elements for layer in profile.layers[first : last + 1]]
    by_layer = compression.method.key == "lags" or (compression.method.key, compression.threshold) == (
        "dlgs",
        "layer",
    )
    units = own if by_layer else [sum(own)]
    kept = sum(min(n, max(1, math.ceil(compression.density * n))) for n in units)
    assert sizes.kept[0] == (kept if compression.method.key != "none" else sum(own))
    headers = max(1, math.ceil(sum(own) * 4 / max(1, profile.servers) / compression.frame_bytes)) * profile.servers
    headers *= compression.frame_header_bytes

    def sparse(count: float, value_bytes: float) -> float:
        share = count / sum(own) if sum(own) else 0.0
        indices = count * float(rice_bits_per_index(np.array([share]))[0]) / 8 * (share < 1.0)
        return count * value_bytes + indices + compression.section_header_bytes * len(own) * profile.servers + headers

    dense: float = 4 * sum(own) + headers
    if not profile.servers:  # around a ring
        dense = 4 * sum(own) * 2 * (profile.workers - 1) / profile.workers
    pushed = sparse(kept, compression.value_bytes)
    if not profile.servers:  # by the sparse allreduce of the fewest bytes
        others, share = profile.workers - 1, kept / sum(own) if sum(own) else 0.0
        union = sparse(sum(own) * (1 - (1 - share) ** profile.workers), 4)
        levels = math.ceil(math.log2(profile.workers))
        routes = [others * pushed, others * (pushed + union) / profile.workers]
        pushed = min(routes + [2 * levels * pushed] * (compression.downlink == "doublesqueeze"))
    up: float = dense if compression.method.key == "none" else pushed * profile.sparse_up_ratio
    down: float = dense
    if compression.method.key != "none" and compression.downlink == "exact":
        share = kept / sum(own) if sum(own) else 0.0
        union = sum(own) * (1 - (1 - share) ** profile.workers)
        down = sparse(union, compression.down_value_bytes) * profile.sparse_down_ratio
    elif compression.method.key != "none" and compression.downlink == "doublesqueeze":
        down = pushed * profile.sparse_down_ratio
    if not profile.servers:
        down = 0.0
    # One call for all units of a group.
    exact = profile.top_k.base_seconds + profile.top_k.seconds_per_element * sum(own)
    reused = profile.scan.base_seconds + profile.scan.seconds_per_element * sum(own)
    share = {"dlgs": max(1 / compression.refresh_every, profile.refresh_ratio), "none": 0.0}.get(
        compression.method.key, 1
    )
    assert compression.up_bytes(profile, sizes)[0] == pytest.approx(up, rel=1e-9, abs=1e-6)
    assert compression.down_bytes(profile, sizes)[0] == pytest.approx(down, rel=1e-9, abs=1e-6)
    amortised = share * exact + (1 - share) * reused if compression.method.key != "none" else 0.0
    assert compression.seconds(profile, sizes)[0] == pytest.approx(amortised, rel=1e-9)


@pytest.mark.parametrize("density", [0.1, 0.01, 0.001])
def test_a_sparse_push_has_the_predicted_bytes(density: float) -> None:
    elements = 2_000_000
    profile = profile_of([elements])
    rng = np.random.default_rng(7)
    indices = np.sort(rng.choice(elements, int(density * elements), replace=False)).astype(np.int32)
    values = np.ones(len(indices), dtype=np.float32)
    sections = np.empty(packed_bound(len(indices), 1), dtype=np.uint8)
    count, size = pack(indices, values, np.array([[0, elements]]), np.empty_like(values), sections)
    compression = Compression(METHODS["dlgs"], density, frame_header_bytes=0)
    sizes = compression.sizes(profile, np.array([0]), np.array([0]))
    assert compression.up_bytes(profile, sizes)[0] == pytest.approx(4 * count + size, rel=0.01)


def test_the_union_grows_with_the_workers_and_ends_at_the_whole() -> None:
    def down(workers: int) -> float:
        profile = profile_of([10**6], workers=workers)
        compression = Compression(METHODS["dlgs"], 0.01)
        return float(compression.down_bytes(profile, compression.sizes(profile, np.array([0]), np.array([0])))[0])

    assert down(1) < down(2) < 2 * down(1)
    # With all of 1,000 workers nearly every value is in the union, and a bit for each index.
    assert down(1000) == pytest.approx(10**6 * (4 + 1 / 8), rel=0.01)


@quick
@given(PROFILES)
def test_a_profile_survives_a_file(profile: Profile) -> None:
    assert Profile.from_json(json.loads(json.dumps(profile.to_json()))) == profile


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["layers", 1, "elements"], -1, ["layers.1.elements", "greater than or equal to 0", "-1"]),
        (["layers", 0, "elements"], 1.5, ["layers.0.elements", "1.5"]),
        (["layers", 0, "backward_seconds"], "fast", ["layers.0.backward_seconds", "fast"]),
        (["layers"], [], ["layers", "at least 1"]),
        (["forward_seconds"], math.nan, ["forward_seconds", "finite"]),
        (["scan", "base_seconds"], -0.1, ["scan.base_seconds", "greater than or equal to 0"]),
        (["link", "alpha_seconds"], None, ["link.alpha_seconds", "None"]),
        (["workers"], 0, ["workers", "greater than 0"]),
        (["servers"], True, ["servers", "integer"]),
        (["top_k"], 3, ["top_k", "3"]),
        (["sparse_up_ratio"], 0.0, ["sparse_up_ratio", "greater than 0"]),
        (["sparse_down_ratio"], math.inf, ["sparse_down_ratio", "finite"]),
    ],
)
def test_a_bad_profile_is_refused_by_key(path: list[Any], value: object, words: list[str]) -> None:
    data = profile_of([5, 6]).to_json()
    place: Any = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ConfigError) as caught:
        Profile.from_json(data)
    message = str(caught.value)
    assert message.startswith("profile: ")
    assert len(message.splitlines()) == 1
    for word in words:
        assert word in message, (word, message)


def test_a_bad_profile_is_told_in_short() -> None:
    data = profile_of([5]).to_json()
    with pytest.raises(ConfigError) as caught:
        Profile.from_json({**data, "compute": ["x" * 99]})
    assert str(caught.value) == f"profile: compute: Input should be a valid string, got ['{'x' * 58}"
    del data["workers"]
    with pytest.raises(ConfigError) as caught:
        Profile.from_json(data)
    assert str(caught.value) == "profile: workers: Field required"


@pytest.mark.parametrize("data", [None, [], 3, "profile", {"layers": []}])
def test_what_is_no_profile_at_all_is_refused(data: object) -> None:
    with pytest.raises(ConfigError, match="profile: "):
        Profile.from_json(data)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"downlink": "auto"}, "downlink 'auto': expected one of dense, exact, doublesqueeze"),
        ({"threshold": "model"}, "threshold 'model': expected one of layer, group"),
        ({"value_bytes": 3}, "value_bytes 3: expected one of 0.25, 0.5, 1, 2, 4"),
        ({"density": 0.0}, "density 0.0: expected a share above 0"),
        ({"density": 1.5}, "density 1.5: expected a share above 0 and at most 1"),
        ({"density": math.nan}, "density nan: expected"),
        ({"refresh_every": 0}, "refresh_every 0: expected at least 1"),
        ({"frame_bytes": 0}, "frame_bytes 0: expected at least 1"),
    ],
)
def test_a_bad_compression_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"compression.{words}"):
        Compression(**values)


@pytest.mark.parametrize(
    ("servers", "old", "new", "ratio"), [(1, 3, 6, 2), (4, 4, 8, 2), (4, 2, 4, 1), (4, 8, 2, 0.5), (0, 3, 6, 1)]
)
def test_more_workers_share_the_servers_links(servers: int, old: int, new: int, ratio: float) -> None:
    before = profile_of([5], workers=old, servers=servers)
    after = before.with_workers(new)
    assert after.workers == new
    assert after.link.alpha_seconds == before.link.alpha_seconds
    assert after.link.up_seconds_per_byte == pytest.approx(before.link.up_seconds_per_byte * ratio)
    assert after.link.down_seconds_per_byte == pytest.approx(before.link.down_seconds_per_byte * ratio)
    assert replace(after, link=before.link, workers=old) == before


def test_the_layout_has_the_layers() -> None:
    assert [(layer.name, layer.elements) for layer in profile_of([5, 6]).layout.layers] == [("l0", 5), ("l1", 6)]
