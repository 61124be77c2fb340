"""Routes with less simple times: ZeRO, clipping, sparse allreduces, spread layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.simulations import ALPHA_S, PLAIN, RATE, job_of, layout_of, simulated

from taihu.core.base.errors import ConfigError
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.profile import rice_bits_per_index
from taihu.core.wire.frames.format import HEADER_BYTES
from taihu.simulation.compute import Compute
from taihu.simulation.job import Simulated, simulate_job
from taihu.simulation.machines import Machines, Network
from taihu.simulation.placement import Placement

NO_ALPHA = replace(PLAIN, alpha_seconds=0.0)
SIZES = [60_000] * 6


def received(servers: int, **exchange: object) -> int:
    """Bytes that each of 3 workers receives in a step."""
    step = simulated(job_of(3, servers, exchange={"plan": "per-layer", **exchange}), SIZES, NO_ALPHA)
    return step.worker_bytes[1]


def test_stages_of_zero_move_what_the_paper_says() -> None:
    """Around a ring 2 (P - 1) / P of the parameters, and half as much again where they are fetched twice."""
    whole = 4 * sum(SIZES)
    for zero in (0, 1, 2):
        assert received(0, zero=zero) == pytest.approx(2 * 2 / 3 * whole, rel=0.02)
    # The last group of forward is the first of backward, and stays with the one before it.
    assert received(0, zero=3) == pytest.approx((2 + (len(SIZES) - 2) / len(SIZES)) * 2 / 3 * whole, rel=0.02)
    # Through servers each worker gets all parameters once, or twice.
    assert received(2, zero=1) == pytest.approx(whole, rel=0.02)
    assert received(2, zero=3) == pytest.approx((1 + (len(SIZES) - 2) / len(SIZES)) * whole, rel=0.02)


def test_sixteen_bits_are_half_the_bytes() -> None:
    job = job_of(3, 2, exchange={"plan": "per-layer", "zero": 2}, train={"precision": "bf16"})
    assert simulated(job, SIZES, NO_ALPHA).worker_bytes[1] == pytest.approx(2 * sum(SIZES), rel=0.02)


@pytest.mark.parametrize("servers", [2, 0])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_what_waits_for_all_gradients_waits_for_backward(servers: int, precision: str) -> None:
    """fp16 pushes nothing before all is there; clipping of the whole updates nothing before."""
    over: dict[str, dict[str, object]] = {"exchange": {"plan": "per-layer"}}
    if precision == "fp16":
        over["train"] = {"precision": "fp16"}
    else:
        over["optimizer"] = {"clip": "whole", "clip_norm": 1.0}
        over["exchange"]["zero"] = 0
    usual = job_of(2, servers, exchange={"plan": "per-layer"})
    together, free = (simulated(job, SIZES, each=0.05) for job in (job_of(2, servers, **over), usual))
    assert precision == "fp16" or together.seconds >= free.seconds - 1e-9
    assert together.wait_seconds >= 2 * ALPHA_S


@pytest.mark.parametrize("distinct", [False, True])
def test_a_sparse_allgather_brings_everybody_what_all_others_selected(distinct: bool) -> None:
    density, elements, workers = 0.01, 100_000, 4
    job = job_of(workers, 0, compression={"method": "lags", "density": density})
    # One message is cheap here, so that slices go to all at once.
    step = simulated(job, [elements], replace(PLAIN, alpha_seconds=0.0), distinct=distinct)
    kept = density * elements
    places = float(rice_bits_per_index(np.asarray(density))) / 8
    message = HEADER_BYTES + 4 + kept * (4 + places)
    sums = 1 - (1 - density) ** workers
    parts = HEADER_BYTES + 4 + kept / workers * (4 + places)
    reduced = HEADER_BYTES + 4 + sums * elements / workers * (4 + float(rice_bits_per_index(np.asarray(sums))) / 8)
    either = ((workers - 1) * message, (workers - 1) * (parts + reduced))
    assert any(step.worker_bytes[0] == pytest.approx(size, rel=0.02) for size in either)
    assert step.exchange_seconds == pytest.approx(step.compress_seconds + step.worker_bytes[0] / RATE, rel=0.1)


def test_ranks_of_a_tree_are_simulated_one_by_one() -> None:
    over: dict[str, dict[str, object]] = {
        "compression": {"method": "lags", "density": 0.01, "downlink": "doublesqueeze"},
        "optimizer": {"momentum": 0},
    }
    job = job_of(8, 0, **over)
    slow = replace(PLAIN, alpha_seconds=0.1)
    # Up and down a tree of three levels are fewer start-ups than one for each of seven others, one after another.
    step = simulated(job, [10_000], slow, distinct=True)
    assert step.seconds < 8 * 0.1


def spread(  # noqa: PLR0917
    workers: int, fc: str, network: Network = PLAIN, servers: int = 0, batch: int = 16, scheme: str = "gather"
) -> Simulated:
    """The step of a convolution and two fully connected layers, which take 0.3 s each way."""
    shapes = {"fc2": (512, 64), "fc1": (2048, 512), "conv": (3, 3, 8, 16)}
    layout = Layout(tuple(LayerSpec(name, (TensorSpec("weight", shape),)) for name, shape in shapes.items()))
    compute = Compute("test", (0.1,) * 3, (0.1,) * 3)
    job = job_of(workers, servers, exchange={"fc": fc, "fc_scheme": scheme}, train={"batch": batch})
    return simulate_job(job, layout, compute, Placement(network, Machines()))


@pytest.mark.parametrize("servers", [0, 2])
def test_spread_layers_move_activations(servers: int) -> None:
    workers, batch = 4, 16
    step = spread(workers, "shard", servers=servers, batch=batch)
    # Features to fc1, its columns to fc2, logits to their rows; and back, the features beside weight gradients.
    values = (workers - 1) * batch * (2048 + 2 * (512 + 64 / workers))
    sent_s = (4 * values + 5 * (workers - 1) * HEADER_BYTES) / RATE
    assert step.wait_seconds == pytest.approx(5 * ALPHA_S + sent_s + exchange_of_conv(workers, servers), rel=1e-3)
    assert step.compute_seconds == pytest.approx(0.6)
    data = spread(workers, "data", servers=servers, batch=batch)
    assert step.worker_bytes[0] < data.worker_bytes[0]


def exchange_of_conv(workers: int, servers: int) -> float:
    size = 4 * 3 * 3 * 8 * 16
    if servers:
        return 2 * (ALPHA_S + workers * (HEADER_BYTES + size / servers) / RATE)
    return 2 * (workers - 1) * (ALPHA_S + (HEADER_BYTES + size / workers) / RATE)


def test_slices_bring_the_next_pass_while_one_computes() -> None:
    gather, slices = (spread(4, "shard", NO_ALPHA, batch=64, scheme=scheme) for scheme in ("gather", "slices"))
    assert slices.worker_bytes[0] == pytest.approx(gather.worker_bytes[0], rel=0.01)
    assert slices.wait_seconds < gather.wait_seconds


@pytest.mark.parametrize(("scheme", "passes"), [("gather", 1), ("turns", 1), ("slices", 4)])
def test_only_the_first_pass_waits_for_features(scheme: str, passes: int) -> None:
    """And the way back of the last one is over before the gradients of weights are."""
    workers, batch, inputs = 4, 64, 2048
    layout = Layout((LayerSpec("fc", (TensorSpec("weight", (inputs, workers)),)), *layout_of(10).layers))
    job = job_of(workers, 0, exchange={"fc": "shard", "fc_scheme": scheme}, train={"batch": batch})
    step = simulate_job(job, layout, Compute("test", (0.4, 0.0), (0.4, 0.0)), Placement(NO_ALPHA, Machines()))
    features = (workers - 1) * batch * inputs * 4 / RATE
    # Beside it go the outputs, a value for each example and column, and the gradient of ten values around the ring.
    assert features / passes < step.wait_seconds < features / passes + 0.1e-3
    assert step.worker_bytes[0] == pytest.approx((workers - 1) * batch * (2 * inputs + 2) * 4, rel=0.01)


@pytest.mark.parametrize("scheme", ["gather", "slices"])
def test_spread_layers_of_workers_that_are_alike_and_of_each(scheme: str) -> None:
    shapes = {"fc2": (512, 64), "fc1": (2048, 512), "conv": (3, 3, 8, 16)}
    layout = Layout(tuple(LayerSpec(name, (TensorSpec("weight", shape),)) for name, shape in shapes.items()))
    compute = Compute("test", (0.1,) * 3, (0.1,) * 3)
    job = job_of(4, 2, exchange={"fc": "shard", "fc_scheme": scheme}, train={"batch": 16})
    alike, distinct = (
        simulate_job(job, layout, compute, Placement(PLAIN, Machines(), distinct=each)) for each in (False, True)
    )
    assert distinct.seconds == pytest.approx(alike.seconds, rel=1e-3)
    assert distinct.worker_bytes == alike.worker_bytes
    slow = simulate_job(job, layout, compute, Placement(PLAIN, Machines(stragglers=1)))
    assert slow.seconds > distinct.seconds + 0.5


def test_spread_layers_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="no fully connected layer"):
        simulated(job_of(4, 0, exchange={"fc": "shard"}), [1000])
