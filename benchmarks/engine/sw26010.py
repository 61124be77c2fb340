"""The SW26010 model beside published measurements: `python -m benchmarks sw26010 --help`.

Nothing is timed: all numbers follow from the constants in `kernels/sw26010/machine.py`. Prints the tables of
docs/sw26010.md and, with --draw, draws its picture: the roofline of a core group with all convolutions and products,
the 172 configurations that swDNN's log measured, and products by size.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, get_args

from taihu.kernels.sw26010.convolution import FilterPlace
from taihu.kernels.sw26010.dma import bandwidth
from taihu.kernels.sw26010.grids import PUBLISHED_LOG, PUBLISHED_SWDNN, paper_grid, swdnn_grid
from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.machine import PEAK_FLOPS_PER_CPE_CLUSTER
from taihu.kernels.sw26010.product import plan_product
from taihu.worker.engine.models.loading import build_model
from taihu.worker.sw26010.times import layer_times, step_seconds

__all__ = ["draw"]

_SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_BLOCKS = (64, 128, 256, 1024, 4096)
_MODELS = (("cifar10_quick", 100), ("resnet20", 32), ("resnet20", 128), ("vgg16_cifar", 32), ("vgg16_cifar", 128))


def loops() -> Iterator[str]:
    """The three places of filters with and without hidden latencies, over the measured configurations."""
    yield "| filters in LDM | operands | median GF | least | most | against 1285 |"
    yield "|---|---|---|---|---|---|"
    for place, pipelined in product(get_args(FilterPlace), (True, False)):
        operands = "fetched ahead" if pipelined else "waited for"
        yield _line(f"{place} | {operands}", [shape.cost(place, pipelined=pipelined) for shape in swdnn_grid()])
    narrow = [shape.cost("row", columns=shape.columns_of_log) for shape in swdnn_grid()]
    yield _line("row, tiles of the log's width | fetched ahead", narrow)
    yield _line("row, tiles of the log's width | waited for", [shape.run("log") for shape in swdnn_grid()])


def _line(name: str, ledgers: Iterable[Ledger]) -> str:
    speeds = [ledger.gflops for ledger in ledgers]
    median = statistics.median(speeds)
    deviation = median / PUBLISHED_SWDNN[1] - 1
    return f"| {name} | {median:.0f} | {min(speeds):.0f} | {max(speeds):.0f} | {deviation:+.1%} |"


def single_configurations() -> Iterator[str]:
    """Some of them one by one."""
    yield "| batch | result | Ni | No | columns | measured GF | streamed | the log's loop | deviation |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for shape, measured in PUBLISHED_LOG:
        streamed, own = shape.cost().gflops, shape.run("log").gflops
        numbers = f"{measured:.0f} | {streamed:.0f} | {own:.0f} | {own / measured - 1:+.0%}"
        side, channels = f"{shape.side} x {shape.side}", f"{shape.inputs} | {shape.outputs}"
        yield f"| {shape.batch} | {side} | {channels} | {shape.columns_of_log} | {numbers} |"


def sweep() -> Iterator[str]:
    """The paper's sweep by the size of filters."""
    yield "| filter | configurations | median GF | least | most | limited by |"
    yield "|---|---|---|---|---|---|"
    grid = paper_grid()
    for size in sorted({shape.size for shape in grid}):
        ledgers = [shape.cost() for shape in grid if shape.size == size]
        speeds = [ledger.gflops for ledger in ledgers]
        limits = statistics.multimode(ledger.limited_by for ledger in ledgers)
        numbers = f"{len(speeds)} | {statistics.median(speeds):.0f} | {min(speeds):.0f} | {max(speeds):.0f}"
        yield f"| {size} x {size} | {numbers} | {', '.join(limits)} |"


def products() -> Iterator[str]:
    """Square products on one core group."""
    yield "| size | blocks M, N, K | fp64 GF | of 765.6 | limited by | fp32 in memory GF | of 765.6 |"
    yield "|---|---|---|---|---|---|---|"
    for size in _SIZES:
        plan = plan_product(size, size, size)
        double, single = plan.cost(), plan_product(size, size, size, itemsize=4).cost()
        yield (
            f"| {size} | {plan.block_m}, {plan.block_n}, {plan.block_k} | {double.gflops:.0f} | "
            f"{double.efficiency:.1%} | {double.limited_by} | {single.gflops:.0f} | {single.efficiency:.1%} |"
        )


def models() -> Iterator[str]:
    """Training steps on one chip."""
    yield "| model | batch | step ms | convolutions | norm | the rest | with one core group |"
    yield "|---|---|---|---|---|---|---|"
    for name, batch in _MODELS:
        shape = (32, 32, 3)
        model = build_model(name, shape, 10)
        step = step_seconds(model, shape, batch)
        by_kind = {"conv": 0.0, "norm": 0.0}
        for layer in layer_times(model, shape, batch):
            if layer.kind in by_kind:
                by_kind[layer.kind] += layer.forward_seconds + layer.backward_seconds
        rest = step - sum(by_kind.values())
        shares = " | ".join(f"{seconds * 1e3:.2f} ms" for seconds in (*by_kind.values(), rest))
        alone = step_seconds(model, shape, batch, 1)
        yield f"| {name} | {batch} | {step * 1e3:.2f} | {shares} | {alone * 1e3:.2f} |"


def draw(path: Path) -> None:
    """The picture of docs/sw26010.md."""
    import matplotlib as mpl  # noqa: PLC0415 - only drawing needs it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, (roof, measured, sizes) = plt.subplots(1, 3, figsize=(16, 5))
    peak = PEAK_FLOPS_PER_CPE_CLUSTER / 1e9
    intensities = [2.0**exponent for exponent in range(1, 10)]
    for block in _BLOCKS:
        rate = bandwidth(block) / 1e9
        label = f"DMA by blocks of {block} B"
        roof.plot(intensities, [min(peak, rate * each) for each in intensities], lw=1, label=label)
    gemm = [plan_product(size, size, size).cost() for size in _SIZES]
    log = [shape.cost() for shape in swdnn_grid()]
    own = [shape.run("log") for shape in swdnn_grid()]
    for name, ledgers, marker in (
        ("the paper's sweep", [shape.cost() for shape in paper_grid()], "."),
        ("swDNN's 172", log, "x"),
        ("DGEMM 64 to 16384", gemm, "o"),
    ):
        x = [ledger.flops / ledger.dma_bytes for ledger in ledgers]
        roof.plot(x, [ledger.gflops / ledger.core_groups for ledger in ledgers], marker, ms=5, label=name)
    roof.set(xscale="log", yscale="log", xlabel="flop per byte of DMA", ylabel="GFLOP/s of a core group")
    roof.set_title("Roofline of one core group (64 CPEs: 742.4)")
    roof.legend(fontsize=7)
    _draw_measured(measured, {"swDNN's rule, streamed": log, "the log's own loop": own})
    sizes.semilogx(_SIZES, [ledger.efficiency for ledger in gemm], "o-", label="model")
    sizes.axhspan(0.887, 0.95, alpha=0.2, color="green", label="published, large")
    sizes.set(xlabel="size of square matrices", ylabel="share of 765.6 GFLOP/s", ylim=(0, 1), title="DGEMM")
    sizes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _draw_measured(axes: Any, loops_drawn: Mapping[str, Sequence[Ledger]]) -> None:
    low, middle, high = PUBLISHED_SWDNN
    for name, ledgers in loops_drawn.items():
        speeds = sorted(ledger.gflops for ledger in ledgers)
        axes.plot(range(len(speeds)), speeds, ".", label=f"{name}: median {statistics.median(speeds):.0f}")
    axes.axhspan(low, high, alpha=0.2, color="green", label="published range")
    axes.axhline(middle, color="green", label=f"published median {middle:.0f}")
    axes.set(xlabel="configuration", ylabel="GFLOP/s of four core groups", ylim=(0, None))
    axes.set_title("The 172 configurations of swDNN's log")
    axes.legend(fontsize=8, loc="lower right")


def main() -> None:
    """Print the tables, and draw if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=Path, metavar="PICTURE", help="draw the roofline and the comparisons")
    options = parser.parse_args()
    for table in (loops, single_configurations, sweep, products, models):
        print("\n".join(table()), end="\n\n")
    if options.draw is not None:
        draw(options.draw)


if __name__ == "__main__":
    main()
