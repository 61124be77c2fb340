"""The run's plan: when it is made, by whose reports, and when it changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cluster import Cluster, Member, layout_of, make_job, measured_step

from taihu.core.base.errors import FrameError, StaleError
from taihu.core.coordination.plans.planning import (
    Planning,
    first_plan,
    largest_frame_bytes,
    planned_compression,
    sparse_routes,
)
from taihu.core.job import Job
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.model.run_length import RunLength
from taihu.core.planner.calibration import calibrate
from taihu.core.planner.decide import decide, predict
from taihu.core.planner.fc_mode import FcLayer
from taihu.core.planner.groups import Group, group_bounds
from taihu.core.planner.measurement import GroupMeasurement, StepMeasurement
from taihu.core.planner.profile import LinkCost
from taihu.core.planner.sparse_route import SPARSE_ROUTES, SparseAlgorithm, SparseWorkload, choose

LAYOUT = layout_of(1000, 2000, 3000)


def job(plan: str = "auto", method: str = "dlgs") -> Job:
    return make_job(1, 2, exchange={"plan": plan}, compression={"method": method, "density": 0.1})


def step(number: int, *, serial: bool, alpha: float, groups: int = 3) -> StepMeasurement:
    """Backward of 1 ms a layer; an exchange takes `alpha` and 1 microsecond a byte either way."""
    sizes = [layer.elements for layer in LAYOUT.layers[:groups]]
    exchanged = tuple(
        GroupMeasurement(size, 1e-6 * size, False, size, 2 * size, alpha + 1e-6 * size, 2e-6 * size) for size in sizes
    )
    return StepMeasurement(number, serial, 0.01, (0.001, 0.001, 0.001), exchanged)


def report(alpha: float = 0.0001) -> list[StepMeasurement]:
    return [step(2, serial=False, alpha=alpha), step(3, serial=True, alpha=alpha)]


@pytest.mark.parametrize(
    ("plan", "method", "groups"),
    [
        ("auto", "dlgs", 3),
        ("exact", "none", 3),
        ("greedy", "lags", 3),
        ("auto", "topk", 1),
        ("single", "dlgs", 1),
        ("bucket:10kB", "dlgs", 2),
    ],
)
def test_the_first_plan_measures_every_layer_unless_a_plan_is_named(plan: str, method: str, groups: int) -> None:
    first = first_plan(job(plan, method), LAYOUT, one_host=False)
    assert (first.version, first.from_step, len(first.groups), first.predicted_seconds) == (1, 1, groups, 0.0)


@pytest.mark.parametrize(
    ("exchange", "method", "one_host", "frame_bytes"),
    [
        ({}, "none", False, 512 << 10),
        ({}, "none", True, 4 << 20),
        ({"transport": "tcp"}, "none", True, 512 << 10),
        ({"transport": "same-host"}, "none", True, 4 << 20),
        ({"frame_bytes": 8192}, "none", True, 8192),
        ({"frame_bytes": 8192}, "none", False, 8192),
        ({"frame_bytes": 4 << 20}, "none", False, 4 << 20),
        ({}, "dlgs", True, 4_000_000),
        ({"frame_bytes": 8192}, "dlgs", False, 8192),
        ({"frame_bytes": 4 << 20}, "dlgs", False, 4_000_000),
    ],
)
def test_frames_are_large_where_memory_is_shared(
    exchange: dict[str, object], method: str, one_host: bool, frame_bytes: int
) -> None:
    job = Job.model_validate({"exchange": exchange, "compression": {"method": method}})
    elements = first_plan(job, LAYOUT, one_host=one_host).frame_elements
    assert isinstance(elements, int)
    assert elements * 4 == frame_bytes


def test_the_last_report_makes_the_plan_that_the_planner_finds_best() -> None:
    planning = Planning(job(), LAYOUT)
    planning.report(1, 8, report(alpha=0.5))
    assert not planning.decided_after(8)
    assert planning.plan.version == 1
    planning.report(0, 8, report(alpha=0.5))
    assert planning.decided_after(8)
    assert planning.profile is not None
    best = decide(planning.profile, planned_compression(job(), planning.plan.frame_elements), "auto")
    # A start-up of half a second for each message leaves nothing but one message.
    assert best.groups == (Group(0, 2),)
    plan = planning.plan
    assert (plan.version, plan.from_step, plan.groups) == (2, 9, best.groups)
    assert plan.predicted_seconds == pytest.approx(best.seconds)


def test_a_plan_that_is_named_stays_and_gets_a_prediction() -> None:
    planning = Planning(job("per-layer"), LAYOUT)
    for rank in (0, 1):
        planning.report(rank, 8, report(alpha=0.5))
    assert (planning.plan.version, planning.plan.from_step, len(planning.plan.groups)) == (1, 1, 3)
    assert planning.plan.predicted_seconds > 1.5


TWELVE = layout_of(*(100 * number**2 for number in range(1, 13)))


def reported(job: Job, *messages_s: float, layout: Layout = TWELVE) -> Planning:
    """The planning after all workers reported once for each of these costs of a message, after steps 8, 16, ..."""
    planning = Planning(job, layout)
    for after, message_s in zip(range(8, 999, 8), messages_s, strict=False):
        for rank in range(job.cluster.workers):
            steps = [
                measured_step(planning.plan, after - serial, message_s, serial=bool(serial)) for serial in (1, 0)
            ]
            planning.report(rank, after, steps)
    return planning


@pytest.mark.parametrize(
    ("message_s", "gain", "changes"), [(0.006, 0.008, False), (0.01, 0.039, False), (0.015, 0.074, True)]
)
def test_the_plan_changes_again_only_where_that_gains_a_twentieth(
    message_s: float, gain: float, changes: bool
) -> None:
    job = make_job(1, 2, exchange={"frame_bytes": 65536}, compression={"method": "none"})
    first, second = reported(job, 0.0).plan, reported(job, 0.0, message_s)
    assert second.profile is not None
    compression = planned_compression(job, second.plan.frame_elements)
    stays = predict(second.profile, compression, first.groups)
    best = decide(second.profile, compression, "auto")
    assert best.groups != first.groups
    assert 1 - best.seconds / stays == pytest.approx(gain, abs=0.001)
    assert second.plan.groups == (best.groups if changes else first.groups)
    assert second.plan.predicted_seconds == (best.seconds if changes else stays)
    assert (second.plan.version, second.plan.from_step) == ((3, 17) if changes else (2, 9))


def test_the_first_computed_plan_is_taken_however_little_it_gains() -> None:
    """Layers on their own were for measuring."""
    job = make_job(1, 2, compression={"method": "none"})
    planning = reported(job, 0.0001)
    assert planning.profile is not None
    compression = planned_compression(job, planning.plan.frame_elements)
    alone = predict(planning.profile, compression, first_plan(job, TWELVE, one_host=False).groups)
    assert 0.95 * alone < planning.plan.predicted_seconds < 1.02 * alone
    assert 1 < len(planning.plan.groups) < 12


def test_other_routes_alone_are_a_new_plan() -> None:
    """Sums go in fewer messages where one costs much; the groups were named."""
    job = make_job(
        1, 4, exchange={"kind": "ring", "plan": "per-layer"}, compression={"method": "dlgs", "density": 0.2}
    )
    first = first_plan(job, TWELVE, one_host=False)
    assert set(first.routes) == {SparseAlgorithm.REDUCE_SCATTER}
    second = reported(job, 0.5)
    assert (second.plan.groups, second.plan.frame_elements) == (first.groups, first.frame_elements)
    assert set(second.plan.routes) == {SparseAlgorithm.ALLGATHER}
    assert (second.plan.version, second.plan.from_step) == (2, 9)
    third = reported(job, 0.5, 0.5)
    assert third.plan == second.plan


@pytest.mark.parametrize("zero", [1, 2])
def test_groups_whose_memory_is_given_back_are_no_larger_than_a_bucket(zero: int) -> None:
    """However dear a message is: one group would be the fastest."""
    job = make_job(1, 2, exchange={"zero": zero, "bucket_bytes": 80_000}, compression={"method": "none"})
    planning = reported(job, 0.5, 0.5)
    first = first_plan(
        make_job(1, 2, exchange={"zero": zero, "bucket_bytes": 80_000, "plan": "single"}), TWELVE, one_host=False
    )
    assert planning.plan.groups == first.groups
    sizes = [stop - start for start, stop in group_bounds(TWELVE, planning.plan.groups)]
    assert sum(sizes) == TWELVE.elements
    if zero == 1:
        assert len(sizes) == 1
    else:
        assert max(sizes) <= 20_000
        assert all(left + right.elements > 20_000 for left, right in following_layers(planning.plan.groups, sizes))


@pytest.mark.parametrize("plan", ["auto", "single"])
def test_groups_have_layers_of_one_kind_before_and_behind_a_report(plan: str) -> None:
    layout = Layout(tuple(replace(layer, kind=number // 5) for number, layer in enumerate(TWELVE.layers)))
    settings = make_job(1, 2, exchange={"plan": plan}, compression={"method": "none"})
    first = first_plan(settings, layout, one_host=False).groups
    second = reported(settings, 0.0001, layout=layout).plan.groups
    assert len(first) == (3 if plan == "single" else 12)
    assert len(second) < 12
    for groups in (first, second):
        assert {group.last_layer for group in groups} >= {4, 9, 11}


def test_beside_spread_layers_groups_are_an_eighth_of_what_is_exchanged() -> None:
    layout = layout_of(*[400_000] * 12)
    settings = {"zero": 3, "plan": "single", "kind": "ring"}
    sizes = {}
    for fc in ("data", "shard"):
        job = make_job(1, 2, exchange={**settings, "fc": fc}, compression={"method": "none"})
        groups = first_plan(job, layout, one_host=False).groups
        sizes[fc] = [stop - start for start, stop in group_bounds(layout, groups)]
    assert sizes == {"data": [4_000_000, 800_000], "shard": [400_000] * 12}


def following_layers(groups: tuple[Group, ...], sizes: list[int]) -> list[tuple[int, LayerSpec]]:
    """Each group's size, and the layer behind it."""
    return [(size, TWELVE.layers[group.first_layer]) for size, group in zip(sizes, groups[1:], strict=False)]


def test_what_fp16_holds_back_tells_nothing() -> None:
    job = make_job(1, 2, train={"precision": "fp16"}, compression={"method": "none"})
    planning = reported(job, 0.5)
    assert planning.profile is None
    assert planning.plan.version == 1
    assert planning.decided_after(8)
    assert not planning.decided_after(9)


def test_stage_3_gets_a_profile_and_no_prediction() -> None:
    job = make_job(1, 2, exchange={"zero": 3}, compression={"method": "none"})
    planning = reported(job, 0.5)
    assert planning.profile is not None
    assert planning.plan.predicted_seconds == 0.0
    assert planning.plan.groups == first_plan(job, TWELVE, one_host=False).groups


def test_the_profile_has_what_the_job_says() -> None:
    matrix = Layout((LayerSpec("fc2", (TensorSpec("w", (7, 9)),)), LayerSpec("pool", ()), layer_of("conv", 3, 3, 2)))
    fast = make_job(2, 3, train={"batch": 24, "precision": "bf16"}, compression={"method": "none"})
    profile = reported(fast, 0.1, layout=matrix).profile
    assert profile is not None
    assert (profile.workers, profile.servers, profile.batch, profile.dense_value_bytes) == (3, 2, 24, 2)
    assert profile.compute == fast.cluster.compute
    assert profile.fc_layers == (FcLayer("fc2", 7, 9),)
    assert [layer.name for layer in profile.layers] == ["fc2", "pool", "conv"]
    slow = reported(make_job(2, 3, compression={"method": "none"}), 0.1, layout=matrix).profile
    assert slow is not None
    assert slow.dense_value_bytes == 4
    modelled = Job.model_validate(
        {
            "cluster": {"servers": 1, "workers": 2, "compute": "sw26010"},
            "compression": {"method": "none"},
        }
    )
    shown = reported(modelled, 0.1).profile
    assert shown is not None
    assert shown.compute == "sw26010"


def layer_of(name: str, *shape: int) -> LayerSpec:
    return LayerSpec(name, (TensorSpec("weight", shape),))


@pytest.mark.parametrize("value_type", ["fp32", "fp16"])
@pytest.mark.parametrize("downlink", ["exact", "dense"])
def test_the_planner_sees_the_jobs_compression(value_type: str, downlink: str) -> None:
    settings = {"method": "lags", "density": 0.3, "refresh_every": 5, "value_type": value_type, "downlink": downlink}
    settings["threshold"] = "group" if downlink == "exact" else "layer"
    seen = planned_compression(make_job(1, 2, compression=settings), 1000)
    assert (seen.method.key, seen.density, seen.refresh_every, seen.downlink) == ("lags", 0.3, 5, downlink)
    assert (seen.value_bytes, seen.frame_bytes) == (4 if value_type == "fp32" else 2, 4000)
    assert seen.threshold == settings["threshold"]


def test_each_group_has_the_route_that_is_best_for_its_size() -> None:
    """Small ones save messages, large ones bytes."""
    job = make_job(1, 4, exchange={"kind": "ring"}, compression={"method": "dlgs", "density": 0.5})
    layout = layout_of(100_000, 100, 200_000, 300)
    groups = (Group(0, 0), Group(1, 1), Group(2, 2), Group(3, 3))
    link = LinkCost(alpha_seconds=1e-4, up_seconds_per_byte=1e-7, down_seconds_per_byte=1.0)
    large, small = SparseAlgorithm.REDUCE_SCATTER, SparseAlgorithm.ALLGATHER
    assert sparse_routes(job, layout, groups, link) == (large, small, large, small)
    workload = SparseWorkload(300_100, 0.5, 4, link.alpha_seconds, link.up_seconds_per_byte)
    merged = sparse_routes(job, layout, (Group(0, 2), Group(3, 3)), link)
    assert merged == (choose(workload, allow_gtopk=False, among=SPARSE_ROUTES), small)
    assert sparse_routes(make_job(1, 4, compression={"method": "dlgs"}), layout, groups, link) == ()
    dense = make_job(1, 4, exchange={"kind": "ring"}, compression={"method": "none"})
    assert sparse_routes(dense, layout, groups, link) == ()


def test_frames_that_sums_are_selected_or_rounded_by_stay() -> None:
    """Results would depend on what was measured."""
    layout = layout_of(2_000_000, 3_000_000)

    def frame_elements(downlink: str, down_type: str = "fp32") -> int:
        compression = {"method": "lags", "density": 0.5, "downlink": downlink, "downlink_value_type": down_type}
        return reported(make_job(1, 2, compression=compression), 1e-6, layout=layout).plan.frame_elements

    assert frame_elements("doublesqueeze") == 1_000_000
    assert frame_elements("exact", "int4") == 1_000_000
    assert frame_elements("exact") < 1_000_000


@pytest.mark.parametrize(("one_host", "carriage"), [(True, ""), (False, "grpc")])
def test_a_profile_names_what_carried_its_values_between_hosts(one_host: bool, carriage: str) -> None:
    job = make_job(1, 2, exchange={"transport": "grpc"}, compression={"method": "none"})
    planning = Planning(job, TWELVE, one_host=one_host)
    for rank in (0, 1):
        steps = [measured_step(planning.plan, 8 - serial, 0.001, serial=bool(serial)) for serial in (1, 0)]
        planning.report(rank, 8, steps)
    assert planning.profile is not None
    assert planning.profile.carriage == carriage


def test_topk_stays_one_group_whatever_is_measured() -> None:
    planning = reported(make_job(1, 2, compression={"method": "topk", "density": 0.1}), 0.0001)
    assert planning.plan.groups == (Group(0, 11),)
    assert planning.plan.predicted_seconds > 0
    # Its layers are merged at once, so that a trial of transports waits for nothing.
    auto = make_job(1, 2, exchange={"transport": "auto"}, compression={"method": "topk", "density": 0.1})
    assert first_plan(auto, TWELVE, one_host=False).carriage == "trial"


def test_the_plan_has_the_length_of_the_run() -> None:
    length = RunLength(samples=100, steps_per_epoch=10, total_steps=50)
    assert Planning(job(), LAYOUT, length=length).plan.length == length
    assert Planning(job(), LAYOUT).plan.length is None


def test_reports_that_do_not_belong_together_are_refused() -> None:
    planning = Planning(job(), LAYOUT)
    with pytest.raises(StaleError, match=r"worker 0 reports after step 0: .* after step 0$"):
        planning.report(0, 0, report())
    planning.report(0, 8, report())
    with pytest.raises(StaleError, match=r"worker 1 reports after step 9: expected one step with the others, after"):
        planning.report(1, 9, report())
    with pytest.raises(FrameError, match=r"worker 1 reports 3 layers and 1 groups of step 2: expected 3 and 3"):
        planning.report(1, 8, [step(2, serial=True, alpha=0.1, groups=1)])
    planning.report(1, 8, report())
    with pytest.raises(StaleError, match=r"worker 0 reports after step 8"):
        planning.report(0, 8, report())


def test_workers_and_servers_change_the_plan_at_the_same_step() -> None:
    """The replicas of a run that changes its plan are those of one that does not (dense: groups change no bit)."""
    seen: dict[str, list[bytes]] = {"auto": [], "per-layer": []}
    for strategy, digests in seen.items():

        def work(member: Member, strategy: str = strategy, digests: list[bytes] = digests) -> None:
            for number in range(1, 13):
                gradients = member.arenas.parameters * 0.1 + member.rank
                parameters = member.step(number, gradients)
                if number in (4, 8):
                    here = len(member.exchange.plan.groups)
                    measured = [replace(each, groups=each.groups[:here]) for each in report(alpha=0.5)]
                    member.exchange.adopt(member.client.report_steps(number, measured, timeout_s=120))
            digests.append(parameters.tobytes())
            assert member.exchange.plan.version == (2 if strategy == "auto" else 1)

        with Cluster(make_job(2, 2, exchange={"plan": strategy})) as cluster:
            cluster.run(LAYOUT, work)
    assert len(seen["auto"]) == len(seen["per-layer"]) == 2
    assert len({*seen["auto"], *seen["per-layer"]}) == 1


@pytest.mark.parametrize(("method", "largest"), [("none", 4 << 20), ("lags", 512 << 10), ("dlgs", 512 << 10)])
def test_only_frames_of_all_values_grow_beside_a_fast_link(method: str, largest: int) -> None:
    """All values may be selected, as warm-ups do, and take a bitmap more: a frame of 4 MiB has no room for that."""
    compression: dict[str, object] = {"method": method, **({} if method == "none" else {"downlink": "dense"})}
    planning = Planning(make_job(1, 2, compression=compression), layout_of(*[2_000_000] * 4))
    steps = [measured_step(planning.plan, 8 - serial, 0.0, serial=bool(serial), byte_s=1e-10) for serial in (1, 0)]
    for rank in (0, 1):
        planning.report(rank, 8, steps)
    assert planning.plan.frame_elements * 4 == largest


@pytest.mark.parametrize(
    ("exchange", "alpha", "frame_bytes"),
    [
        ({}, 1e-6, 16 << 10),
        ({}, 10.0, 512 << 10),
        ({"plan": "per-layer"}, 1e-6, 16 << 10),
        ({"frame_bytes": 8192}, 1e-6, 8192),
        ({"kind": "ring"}, 1e-6, 512 << 10),
    ],
)
def test_the_first_report_tells_what_frames_the_links_want(
    exchange: dict[str, object], alpha: float, frame_bytes: int
) -> None:
    planning = Planning(make_job(1, 2, exchange=exchange), LAYOUT)
    for at, start_up in ((8, alpha), (16, 10 * alpha)):
        groups = len(planning.plan.groups)
        steps = [replace(each, groups=each.groups[:groups]) for each in report(alpha=start_up)]
        for rank in (0, 1):
            planning.report(rank, at, steps)
        assert planning.plan.frame_elements * 4 == frame_bytes


def carriages(
    plan: str, by_tcp: float, *, one_host: bool = False, transport: str = "auto", precision: str = "fp32"
) -> list[tuple[str, int]]:
    """Carriage and version before and after each of three reports, where a step by gRPC takes a second."""
    exchange: dict[str, object] = {"plan": plan, "transport": transport}
    job = make_job(1, 2, exchange=exchange, train={"precision": precision}, compression={"method": "none"})
    planning = Planning(job, TWELVE, one_host=one_host)
    seen: list[tuple[str, int]] = [(planning.plan.carriage, planning.plan.version)]
    for after in (8, 16, 24):
        for rank in (0, 1):
            steps = [
                replace(
                    measured_step(planning.plan, number, 0.01, serial=number > after - 2),
                    exchange_seconds=1.0 if number % 2 else by_tcp,
                )
                for number in range(after - 5, after + 1)
            ]
            planning.report(rank, after, steps)
        seen.append((planning.plan.carriage, planning.plan.version))
    return seen


def test_a_trial_follows_the_merging_of_layers_and_decides_for_good() -> None:
    assert carriages("auto", by_tcp=0.6) == [("grpc", 1), ("trial", 2), ("tcp", 3), ("tcp", 3)]
    assert [carriage for carriage, _ in carriages("auto", by_tcp=1.0)] == ["grpc", "trial", "grpc", "grpc"]


def test_where_layers_are_merged_as_named_the_first_steps_are_the_trial() -> None:
    assert carriages("bucket:4kB", by_tcp=0.6) == [("trial", 1), ("tcp", 2), ("tcp", 2), ("tcp", 2)]
    assert carriages("bucket:4kB", by_tcp=1.0) == [("trial", 1), ("grpc", 2), ("grpc", 2), ("grpc", 2)]
    assert carriages("auto", by_tcp=0.6, precision="fp16") == [("trial", 1), ("tcp", 2), ("tcp", 2), ("tcp", 2)]


@pytest.mark.parametrize(("transport", "expected"), [("grpc", "grpc"), ("tcp", "tcp"), ("same-host", "tcp")])
def test_a_transport_that_is_named_stays(transport: str, expected: str) -> None:
    assert {carriage for carriage, _ in carriages("auto", by_tcp=0.1, transport=transport)} == {expected}
    assert {carriage for carriage, _ in carriages("auto", by_tcp=9.0, transport=transport)} == {expected}


def test_on_one_host_nothing_is_tried() -> None:
    assert {carriage for carriage, _ in carriages("auto", by_tcp=9.0, one_host=True)} == {"tcp"}


@pytest.mark.parametrize(
    ("workers", "servers", "elements", "largest"),
    [
        (3, 1, 25_000_000, 4 << 20),
        (8, 1, 25_000_000, 2 << 20),  # 32 of them are 64 MiB
        (64, 1, 25_000_000, 512 << 10),
        (3, 1, 270_000, 1_080_000),
        (3, 2, 270_000, 540_000),
        (3, 4, 270_000, 512 << 10),
    ],
)
def test_all_frames_that_may_be_on_their_way_to_a_server_have_room_there(
    workers: int, servers: int, elements: int, largest: int
) -> None:
    assert largest_frame_bytes(make_job(servers, workers), elements) == largest
    named = make_job(servers, workers, exchange={"frame_bytes": 8192})
    assert largest_frame_bytes(named, elements) == 8192


@pytest.mark.parametrize(("kind", "frame_bytes"), [("ring", 4_000_000), ("server", 512 << 10)])
def test_a_ring_of_sparse_gradients_sends_sparse_frames_whatever_the_optimizer(kind: str, frame_bytes: int) -> None:
    """Through servers Adam's answers are dense."""
    settings = {"exchange": {"kind": kind}, "compression": {"method": "dlgs"}, "optimizer": {"name": "adam"}}
    job = Job.model_validate(settings)
    assert job.downlink == "dense"
    assert first_plan(job, LAYOUT, one_host=False).frame_elements * 4 == frame_bytes


def test_the_first_routes_are_those_of_the_fewest_bytes() -> None:
    """Of five values too, whose messages would count if they cost anything; and never the ring of dense sums."""

    def first_route(density: float) -> SparseAlgorithm:
        job = make_job(1, 4, exchange={"kind": "ring"}, compression={"method": "dlgs", "density": density})
        (route,) = first_plan(job, layout_of(5), one_host=False).routes
        return route

    assert first_route(0.3) is SparseAlgorithm.REDUCE_SCATTER
    assert first_route(1.0) is SparseAlgorithm.REDUCE_SCATTER
    assert (
        choose(SparseWorkload(5, 0.3, 4, 1.0, 1.0), allow_gtopk=False, among=SPARSE_ROUTES)
        is SparseAlgorithm.ALLGATHER
    )
    assert choose(SparseWorkload(5, 1.0, 4, 0.0, 1.0), allow_gtopk=False) is SparseAlgorithm.RING


@pytest.mark.parametrize(
    ("downlink", "route"), [("doublesqueeze", SparseAlgorithm.GTOPK), ("exact", SparseAlgorithm.ALLGATHER)]
)
def test_fewer_entries_than_the_union_come_back_where_that_was_chosen(downlink: str, route: SparseAlgorithm) -> None:
    compression = {"method": "dlgs", "density": 0.1, "downlink": downlink}
    job = make_job(1, 8, exchange={"kind": "ring"}, compression=compression)
    assert sparse_routes(job, layout_of(3), (Group(0, 0),), LinkCost(1.0, 1.0, 0.0)) == (route,)


def test_the_link_is_that_of_the_steps_by_what_a_trial_chose() -> None:
    """A message takes longer by gRPC, in odd steps; once the trial is over all steps count."""

    def told(transport: str, *steps: range) -> list[LinkCost]:
        planning = Planning(make_job(1, 2, exchange={"plan": "bucket:4kB", "transport": transport}), TWELVE)
        links = []
        for numbers in steps:
            for rank in (0, 1):
                report = [
                    replace(
                        measured_step(planning.plan, number, 0.05 if number % 2 else 0.01, serial=True),
                        exchange_seconds=1.0 if number % 2 else 0.6,
                    )
                    for number in numbers
                ]
                planning.report(rank, numbers[-1], report)
            assert planning.profile
            links.append(planning.profile.link)
        assert planning.plan.carriage == "tcp"
        return links

    by_tcp, by_all = told("tcp", range(4, 9, 2), range(11, 17))
    assert told("auto", range(3, 9), range(11, 17)) == [by_tcp, by_all]
    assert by_tcp.alpha_seconds < by_all.alpha_seconds


def test_a_link_is_scaled_by_what_groups_of_several_frames_took() -> None:
    job = make_job(1, 2, exchange={"plan": "single", "frame_bytes": 400_000}, compression={"method": "none"})
    layout = layout_of(1_000_000)
    before, planning = reported(job, 0.01, layout=layout), reported(job, 0.01, 0.03, layout=layout)
    reports = [
        [measured_step(planning.plan, 16 - serial, 0.03, serial=bool(serial)) for serial in (1, 0)] for _ in range(2)
    ]
    names = [layer.name for layer in layout.layers]
    expected, in_one_frame = (
        calibrate(names, [1_000_000], reports, servers=1, frame_elements=elements, previous=before.profile).link
        for elements in (100_000, None)
    )
    assert planning.profile is not None
    assert planning.profile.link == expected != in_one_frame
