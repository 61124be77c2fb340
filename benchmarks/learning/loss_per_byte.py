"""Loss and accuracy per byte: compressed runs beside dense ones, each at its own best rate.

A cell is one training from one seed by workers that take turns in one process of one thread (as in
`accuracy_by_method`): the transformer of examples/torch on Python's sources, or a convolutional net on Fashion-MNIST.
Every way is trained at several rates; the table has the best of them by its mean over the seeds, against the best of
the dense ones. Bytes are those of selections that are packed, up, and of the positions that any worker sent, down.
Cells that the file of --json holds are not trained again, so that this may be ended and started again.

Examples:
  nice python -m benchmarks loss_per_byte --json benchmarks/results/loss_per_byte.json
  python -m benchmarks loss_per_byte --tasks transformer --length 5000 --seeds 1 --json long.json
  python -m benchmarks loss_per_byte --json rows.json --draw docs/loss_per_byte.png --docs docs/compression.md
"""

from __future__ import annotations

import argparse
import json
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.base.curves import first_at
from benchmarks.base.rows import in_page, load_rows, train_missing
from benchmarks.learning.accuracy_by_method import JOBS
from benchmarks.learning.workers_in_turns import RoundedSums, Sent, selected_of, train_on_first
from taihu.core.compression import GroupCompressor, make_compressor
from taihu.core.compression.low_rank import LowRank
from taihu.core.job import Job
from taihu.core.job.reading import load_job
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.groups import Group
from taihu.core.traits.methods import POWERSGD
from taihu.core.wire.frames.headers import ValueType

__all__ = ["Cell", "cells", "table", "train"]

_PAGE: Final = "measured by benchmarks.learning.loss_per_byte"
_EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "torch" / "transformer_text.py"
_BATCHES: Final = MappingProxyType({"transformer": 4, "cifar10_quick": 16, "resnet20": 16})
_DLGS: Final = {"method": "dlgs", "density": 0.01}
_ALL: Final = {"method": "quantized", "momentum_at": "workers"}
_WHOLE: Final = {"clip_norm": 1.0, "clip": "whole"}
_LENGTHS: Final = MappingProxyType({"transformer": 600, "cifar10_quick": 3, "resnet20": 14})
"""Steps of the transformer, epochs of the others."""
_WINDOW: Final = 50
_GOAL: Final = 0.8


def _both(value_type: str) -> dict[str, str]:
    return {"value_type": value_type, "downlink_value_type": value_type}


@dataclass(frozen=True)
class Way:
    """A way to exchange gradients.

    Attributes:
        compression: settings of `[compression]`.
        factors: of the task's usual rate, that are tried.
        beta1: of the transformer's AdamW, which is a script's own.
        exchange: settings of `[exchange]`, of local steps.
    """

    compression: Mapping[str, Any]
    factors: tuple[float, ...]
    beta1: float
    exchange: Mapping[str, Any] = field(default_factory=dict)


WAYS: Final = MappingProxyType(
    {
        "dense": Way({}, (0.5, 1.0, 2.0), 0.9),
        "dlgs, momentum": Way({**_DLGS, "momentum_at": "workers"}, (0.5, 1.0, 2.0), 0.9),
        "dlgs": Way(_DLGS, (0.5, 1.0, 2.0), 0.0),
        "dlgs, clipped": Way({**_DLGS, **_WHOLE}, (0.5, 1.0, 2.0), 0.0),
        "dlgs, clipped, int4": Way({**_DLGS, **_WHOLE, "value_type": "int4"}, (1.0, 2.0), 0.0),
        "dlgs, clipped, int4 both ways": Way({**_DLGS, **_WHOLE, **_both("int4")}, (1.0, 2.0), 0.0),
        "dlgs, int4 both ways": Way({**_DLGS, **_both("int4")}, (1.0, 2.0), 0.0),
        "dlgs 0.05, int4 both ways": Way({**_DLGS, "density": 0.05, **_both("int4")}, (0.5, 1.0, 2.0), 0.0),
        "dlgs 0.1, int4 both ways": Way({**_DLGS, "density": 0.1, **_both("int4")}, (0.5, 1.0, 2.0), 0.9),
        "dlgs 0.1, int4 both ways, no momentum": Way(
            {**_DLGS, "density": 0.1, **_both("int4"), "momentum_at": "none"}, (0.5, 1.0, 2.0), 0.0
        ),
        "quantized, int8 both ways": Way({**_ALL, **_both("int8")}, (1.0, 2.0), 0.9),
        "quantized, int4 both ways": Way({**_ALL, **_both("int4")}, (1.0, 2.0), 0.9),
        "powersgd, rank 1": Way({"method": "powersgd", "rank": 1}, (1.0, 2.0), 0.9),
        "powersgd, rank 4": Way({"method": "powersgd", "rank": 4}, (1.0, 2.0), 0.9),
        "4 local steps": Way({}, (1.0, 2.0, 3.0), 0.9, {"local_steps": 4}),
        "4 local steps, dlgs 0.1, int4": Way(
            {**_DLGS, "density": 0.1, "value_type": "int4"}, (1.0, 2.0, 3.0), 0.9, {"local_steps": 4}
        ),
        "4 local steps, dlgs 0.05, int4 both ways": Way(
            {**_DLGS, "density": 0.05, **_both("int4")}, (1.0, 2.0, 3.0), 0.9, {"local_steps": 4}
        ),
    }
)
"""All ways; `dlgs` is the default: momentum that nobody applies, at the rate that goes with it."""


@dataclass(frozen=True)
class Cell:
    """One training, of so many steps of the transformer or epochs of another task.

    `images` is the number of those that are trained on, 0 for the usual one.
    """

    task: str
    way: str
    factor: float
    workers: int
    length: int
    seed: int
    images: int = 0


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """All cells of options as `main` has them, those of the first seed first."""
    factors = {float(factor) for factor in options.factors.split(",") if factor}
    for seed in range(1, options.seeds + 1):
        for task in options.tasks.split(","):
            for way in options.ways.split(";") if options.ways else WAYS:
                for factor in WAYS[way].factors:
                    if not factors or factor in factors:
                        length = options.length or _LENGTHS[task]
                        yield Cell(task, way, factor, options.workers, length, seed, options.images)


def train(cell: Cell, path: Path | None = None) -> dict[str, Any]:
    """Train one cell: its curve and end, and the shares of bytes.

    The files of Fashion-MNIST are in the folder `path`, if they are not where the job looks.
    """
    trained = _of_transformer(cell) if cell.task == "transformer" else _of_images(cell, path)
    return {**asdict(cell), **trained}


def _of_images(cell: Cell, path: Path | None) -> dict[str, Any]:
    """By test accuracy in percent, after every epoch."""
    row = train_on_first(_job_of(cell), cell.images or JOBS[cell.task][0], path)
    curve = [100 * epoch["test_accuracy"] for epoch in row["epochs"]]
    return {"curve": curve, "end": curve[-1], "up": row["up"], "down": row["down"]}


def _job_of(cell: Cell) -> Job:
    _, sections = JOBS[cell.task]
    optimizer = {"momentum": 0.9, **sections["optimizer"]}
    optimizer["learning_rate"] *= cell.factor
    if "milestone_epochs" in optimizer:
        scaled = cell.length / sections["train"]["epochs"]
        optimizer["milestone_epochs"] = [epoch * scaled for epoch in optimizer["milestone_epochs"]]
    return Job.model_validate(
        {
            "model": {"name": cell.task},
            "data": sections["data"],
            "train": {"epochs": cell.length, "batch": _BATCHES[cell.task], "seed": cell.seed},
            "optimizer": optimizer,
            "compression": dict(WAYS[cell.way].compression),
            "exchange": {"plan": "bucket:100kB", **WAYS[cell.way].exchange},
            "cluster": {"servers": 1, "workers": cell.workers, "threads": 1},
        }
    )


def _of_transformer(cell: Cell) -> dict[str, Any]:
    """By training loss of worker 0, means of 50 steps; clipped behind the exchange, as the example does."""
    import torch  # noqa: PLC0415 - benchmarks of images need none

    torch.set_num_threads(1)
    torch.manual_seed(cell.seed)
    example, context, way = runpy.run_path(str(_EXAMPLE), run_name="example"), 64, WAYS[cell.way]
    text, model = example["read_sources"](4_000_000), example["Transformer"](96, 2, context)
    drawn = torch.Generator().manual_seed(cell.seed)

    def batches() -> list[Any]:
        """A batch for each worker."""
        begins = torch.randint(len(text) - context - 1, (cell.workers * _BATCHES[cell.task],), generator=drawn)
        return [
            torch.stack([text[begin : begin + context + 1] for begin in begins[r :: cell.workers]])
            for r in range(cell.workers)
        ]

    loop = _by_gradients if way.exchange.get("local_steps", 1) == 1 else _by_local_steps
    losses, shares = loop(cell, model, batches)
    curve = [fmean(losses[start : start + _WINDOW]) for start in range(0, len(losses), _WINDOW)]
    return {"curve": curve, "end": fmean(losses[-_WINDOW:]), **shares}


def _adamw(cell: Cell, model: Any) -> tuple[Any, Any]:
    """The example's optimizer and the schedule of its rate."""
    import torch  # noqa: PLC0415

    betas = (WAYS[cell.way].beta1, 0.999)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 * cell.factor, weight_decay=0.01, betas=betas)
    return optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=20)


def _backward(model: Any, windows: Any) -> float:
    import torch  # noqa: PLC0415

    scores = model(windows[:, :-1])
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())
    loss.backward()
    return float(loss.item())


def _by_gradients(cell: Cell, model: Any, batches: Callable[[], list[Any]]) -> tuple[list[float], dict[str, float]]:
    """The losses of worker 0, and shares of bytes: every step exchanges gradients."""
    import torch  # noqa: PLC0415

    way = WAYS[cell.way].compression
    kind = _FactoredReplicas if way.get("method") == POWERSGD.key else _Replicas
    replicas = kind(model, cell.workers, way)
    replicas.bind(model)
    optimizer, warm_up = _adamw(cell, model)
    losses = []
    for step in range(1, cell.length + 1):
        for rank, windows in enumerate(batches()):
            optimizer.zero_grad(set_to_none=False)
            loss = _backward(model, windows)
            replicas.push(rank, step, warm_up.get_last_lr()[0])
            if rank == 0:
                losses.append(loss)
        replicas.take_mean()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm_up.step()
    return losses, replicas.shares()


def _by_local_steps(cell: Cell, model: Any, batches: Callable[[], list[Any]]) -> tuple[list[float], dict[str, float]]:
    """The same where workers update copies of their own, and exchange differences after so many batches."""
    import torch  # noqa: PLC0415

    exchange = WAYS[cell.way].exchange
    count = exchange["local_steps"]
    replicas = _Replicas(model, cell.workers, WAYS[cell.way].compression)
    outer = load_job(None, {"exchange": dict(exchange)}).exchanged_optimizer
    models = [deepcopy(model) for _ in range(cell.workers)]
    inner = [_adamw(cell, each) for each in models]
    common = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    velocity = torch.zeros_like(common)
    losses = []
    for step in range(1, cell.length // count + 1):
        for _ in range(count):
            for rank, windows in enumerate(batches()):
                optimizer, warm_up = inner[rank]
                optimizer.zero_grad()
                loss = _backward(models[rank], windows)
                torch.nn.utils.clip_grad_norm_(models[rank].parameters(), 1.0)
                optimizer.step()
                warm_up.step()
                if rank == 0:
                    losses.append(loss)
        for rank, each in enumerate(models):
            own = torch.nn.utils.parameters_to_vector(each.parameters()).detach()
            replicas.gradients[:] = (common - own).numpy()
            replicas.push(rank, step)
        replicas.take_mean()
        mean = torch.from_numpy(replicas.gradients)
        velocity.mul_(outer.momentum).add_(mean)
        common -= outer.learning_rate * (mean + outer.momentum * velocity if outer.momentum else mean)
        for each in models:
            # Parameters become views of what they are given.
            torch.nn.utils.vector_to_parameters(common.clone(), each.parameters())
    return losses, {way: share / count for way, share in replicas.shares().items()}


def _bind(model: Any, layout: Layout, gradients: NDArray[np.float32]) -> None:
    """Have the gradients of a model in an arena of this layout."""
    import torch  # noqa: PLC0415

    for each, (start, stop) in zip(model.parameters(), pairwise(layout.offsets), strict=True):
        each.grad = torch.from_numpy(gradients[start:stop]).view(each.shape)


class _Replicas:
    """An arena of gradients for a model of PyTorch, and what each of its workers holds back."""

    def __init__(self, model: Any, workers: int, compression: Mapping[str, Any]) -> None:
        parameters = list(model.parameters())
        layers = (
            LayerSpec(str(place), (TensorSpec("weight", (each.numel(),)),)) for place, each in enumerate(parameters)
        )
        layout = self._layout = Layout(tuple(layers))
        self.gradients = np.zeros(layout.elements, dtype=np.float32)
        given = {key: value for key, value in compression.items() if key != "momentum_at"}
        job = load_job(None, {"compression": given})
        self._workers = workers
        down_type = ValueType.named(job.compression.downlink_value_type)
        self._rounded = RoundedSums(layout, down_type)
        self._sent = Sent(layout.elements, ValueType.named(job.compression.value_type), down_type)
        self._total = np.zeros_like(self.gradients)
        self._pushed: list[Any] = []
        self._compressors = [
            GroupCompressor(
                make_compressor(job.compression, job.optimizer, workers=workers, momentum_here=False),
                layout,
                (Group(0, len(parameters) - 1),),
                gradients=self.gradients,
                parameters=self.gradients,
            )
            for _ in range(workers if job.compression.method.selects else 0)
        ]

    def bind(self, model: Any) -> None:
        """Have the gradients of a model in the arena."""
        _bind(model, self._layout, self.gradients)

    def push(self, rank: int, step: int, rate: float | None = None) -> None:
        """Add what a worker sends of the gradients, whose learning rate is `rate`, to their sum."""
        if not self._compressors:
            self._total += self.gradients
            return
        rates = None if rate is None else np.full(len(self._layout.layers), rate)
        self._pushed.append(selected_of(self._compressors[rank], 1, step, rates=rates))
        indices, values = self._pushed[-1]
        self._total[indices] += values

    def take_mean(self) -> None:
        """Have the mean of all workers in the place of the gradients."""
        if self._pushed:
            union = np.flatnonzero(self._total).astype(np.int32)
            places, sums = self._rounded.round(union, self._total[union])
            self._sent.add(self._pushed, places)
            self._total[:] = 0.0
            self._total[places] = sums
        np.multiply(self._total, np.float32(1 / self._workers), out=self.gradients)
        self._total[:], self._pushed = 0.0, []

    def shares(self) -> dict[str, float]:
        """Bytes up and down as shares of the dense exchange's."""
        if not self._compressors:
            return {"up": 1.0, "down": 1.0}
        shares = self._sent.shares()
        return {"up": shares["up"], "down": shares["down"]}


class _FactoredReplicas:
    """The same where matrices go as products; a step's gradients are summed as they come, and codes behind all."""

    def __init__(self, model: Any, workers: int, compression: Mapping[str, Any]) -> None:
        shapes = [tuple(each.shape) for each in model.parameters()]
        self._layout = Layout(
            tuple(LayerSpec(str(place), (TensorSpec("weight", shape),)) for place, shape in enumerate(shapes))
        )
        self.gradients = np.zeros(self._layout.elements, dtype=np.float32)
        self._own = [LowRank(self._layout, compression["rank"], 1) for _ in range(workers)]
        self._codes = np.zeros((workers, self._own[0].layout.elements), dtype=np.float32)

    def bind(self, model: Any) -> None:
        """Have the gradients of a model in the arena."""
        _bind(model, self._layout, self.gradients)

    def push(self, rank: int, step: int, rate: float | None = None) -> None:
        """Take in what a worker has of step `step`, by whose learning rate what is held back is lowered."""
        if rate is not None:
            self._own[rank].follow_rates(np.full(len(self._layout.layers), rate))
        for layer, part in enumerate(self._parts):
            self._own[rank].encode(layer, self.gradients[part], self._codes[rank])

    def take_mean(self) -> None:
        """Have the mean of all workers in the place of the gradients."""
        late = self._own[0].layout.offsets[len(self._layout.layers)]
        self._codes[:, :late] = self._codes[:, :late].mean(axis=0, dtype=np.float64)
        for own, codes in zip(self._own, self._codes, strict=True):
            for place in range(len(own.sources)):
                own.follow(place, codes)
        self._codes[:, late:] = self._codes[:, late:].mean(axis=0, dtype=np.float64)
        for own, codes in zip(self._own, self._codes, strict=True):
            for layer, part in enumerate(self._parts):
                own.decode(layer, codes, self.gradients[part])

    def shares(self) -> dict[str, float]:
        """Bytes up and down as shares of the dense exchange's."""
        share = self._codes.shape[1] / self._layout.elements
        return {"up": share, "down": share}

    @property
    def _parts(self) -> list[slice]:
        return [slice(*each) for each in pairwise(self._layout.offsets)]


@dataclass(frozen=True)
class _Best:
    """The rows of a way at its best rate."""

    factor: float
    rows: Sequence[dict[str, Any]]

    @property
    def mean(self) -> float:
        """Of their ends."""
        return fmean(row["end"] for row in self.rows)

    @property
    def _reached(self) -> list[float]:
        """The best means until each point of their curves, as losses: less is better."""
        sign = 1.0 if self.rows[0]["task"] == "transformer" else -1.0
        means = [sign * fmean(values) for values in zip(*(row["curve"] for row in self.rows), strict=True)]
        return list(accumulate(means, min))

    def steps_to(self, dense: _Best) -> float | None:
        """Steps to what the dense ones have reached after 80 % of theirs, as multiples of these; None if not reached.

        Between two points of a curve it is a line.
        """
        goal = dense._reached[round(_GOAL * len(dense._reached)) - 1]
        own, theirs = first_at(self._reached, goal), first_at(dense._reached, goal)
        return None if own is None or theirs is None else own / theirs


def _best(rows: Sequence[dict[str, Any]]) -> _Best:
    """Those of the best rate by the mean of the ends; a run that ends in no number is the worst."""
    by_rate = {row["factor"]: [each for each in rows if each["factor"] == row["factor"]] for row in rows}
    least = rows[0]["task"] == "transformer"

    def worth(factor: float) -> float:
        mean = fmean(row["end"] for row in by_rate[factor])
        return -np.inf if not np.isfinite(mean) else (-mean if least else mean)

    factor = max(by_rate, key=worth)
    return _Best(factor, by_rate[factor])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The ends as Markdown: means over the seeds at each way's best rate, and gaps to the dense ones."""
    lines = [
        "| task | workers | way | rate | by seed | mean | to dense | up | down | steps |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (task, workers, length, images), of_setting in _by_setting(rows).items():
        of_dense = [row for row in of_setting if row["way"] == "dense"]
        if not of_dense:
            continue
        best_dense = _best(of_dense)
        dense = best_dense.mean
        for way in dict.fromkeys(row["way"] for row in of_setting):
            best = _best([row for row in of_setting if row["way"] == way])
            loses = task == "transformer"
            gap = f"{best.mean / dense - 1:+.1%}" if loses else f"{best.mean - dense:+.2f}"
            unit, form = ("steps", "{:.3f}") if loses else ("epochs", "{:.2f}")
            ends = ", ".join(form.format(row["end"]) for row in best.rows)
            steps = best.steps_to(best_dense)
            told = "-" if steps is None else f"{steps:.2f}"
            up, down = (fmean(row[key] for row in best.rows) for key in ("up", "down"))
            lines.append(
                f"| {_named(task, images)}, {length:,} {unit} | {workers} | {way} | x {best.factor:g} | {ends} | "
                f"{form.format(best.mean)} | {gap} | {up:.2%} | {down:.2%} | {told} |"
            )
    return "\n".join(lines)


def _by_setting(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, int, int, int], list[dict[str, Any]]]:
    """The rows by task, workers, length and number of images, 0 for the usual one."""
    found: dict[tuple[str, int, int, int], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["task"], row["workers"], row["length"], row.get("images", 0)), []).append(row)
    return found


def _named(task: str, images: int) -> str:
    return f"{task}, {images:,} images" if images else task


def draw(rows: Sequence[dict[str, Any]], picture: Path) -> None:
    """The curves of each way's best rate over steps and over bytes, means over the seeds; two settings in a row."""
    import matplotlib as mpl  # noqa: PLC0415 - only drawing needs it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    settings = _by_setting(rows)
    rows_of_panels = -(-len(settings) // 2)
    figure, panels = plt.subplots(rows_of_panels, 4, figsize=(16.0, 3.6 * rows_of_panels), layout="constrained")
    pairs = panels.reshape(-1, 2)
    for panel in pairs[len(settings) :].flat:
        panel.set_axis_off()
    for (over_steps, over_bytes), (setting, of_setting) in zip(pairs, settings.items(), strict=False):
        task, workers, _, images = setting
        each = _WINDOW if task == "transformer" else 1
        worth, unit = ("training loss", "steps") if task == "transformer" else ("test accuracy, %", "epochs")
        for way in dict.fromkeys(row["way"] for row in of_setting):
            best = _best([row for row in of_setting if row["way"] == way])
            means = [fmean(values) for values in zip(*(row["curve"] for row in best.rows), strict=True)]
            share = fmean((row["up"] + row["down"]) / 2 for row in best.rows)
            places = np.arange(1, len(means) + 1) * each
            over_steps.plot(places, means, label=way)
            over_bytes.semilogx(places * share, means, label=way)
        over_steps.set(title=f"{_named(task, images)}, {workers} workers", xlabel=unit, ylabel=worth)
        over_bytes.set(xlabel=f"bytes, as {unit} of all values", ylabel=worth)
        over_steps.legend(fontsize=6)
        for panel in (over_steps, over_bytes):
            panel.grid(alpha=0.3)
    figure.savefig(picture, dpi=110)


def main() -> None:
    """Train the cells that are missing, or draw those that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(_LENGTHS), help="comma-separated")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--ways", default="", metavar="A;B", help="these alone, with semicolons between them")
    parser.add_argument("--factors", default="", help="of the usual rate: these alone, of those of a way")
    parser.add_argument("--images", type=int, default=0, help="to train on; that of the task by default")
    parser.add_argument("--length", type=int, help="steps of the transformer, epochs of others")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="cells that the file holds are not trained again")
    parser.add_argument("--draw", type=Path, metavar="PICTURE", help="draw the cells of --json, train nothing")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    parser.add_argument("--path", type=Path, help="the folder of Fashion-MNIST")
    parser.add_argument("--cell", help="train this one, an object of JSON, and print its row")
    options = parser.parse_args()
    if options.cell is not None:
        print(json.dumps(train(Cell(**json.loads(options.cell)), options.path)))
        return
    rows = load_rows(options.json)
    if options.draw is None:
        train_missing(
            "loss_per_byte", cells(options), rows, options.json, options.path, lambda row: f"{row['end']:.3f}"
        )
    else:
        draw(rows, options.draw)
    told = table(rows)
    if options.docs is not None:
        options.docs.write_text(in_page(options.docs.read_text(), _PAGE, told))
    print(told)


if __name__ == "__main__":
    main()
