"""Accuracy against the batch of fully connected layers: `python -m benchmarks fc_batch --help`.

With `exchange.fc_update = "pass"` the layers that are spread over the workers are updated after every pass through
them, and the convolutions once a step (docs/methods.md section 4). A cell is one such training from one seed, by
`turns` or by `slices` of so many workers, all with the same batch for the convolutions: what differs is how many
examples an update of the fully connected layers is made from. `gather` has one pass, which is plain SGD.

A cell is one process of one thread, which takes the passes that the workers would take together, each with the same
examples; its parameters are those of the workers to rounding (`tests/worker/test_fc_batch.py`). Cells that the file
holds are not trained again, so that this may be ended and started again.

The model is `small_cnn` on Fashion-MNIST at 14 x 14 points: as in the paper's networks, convolutions are about nine
tenths of its products and 5 % of its parameters. It is trained on 9,600 images for 4 epochs and tested on 4,000. An
update after every pass makes more updates at the same learning rate, so that every cell is trained at several rates,
and the best one is compared.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.base.rows import in_page, load_rows, train_missing
from benchmarks.learning.workers_in_turns import First
from taihu.core.job import Job
from taihu.worker.fc.passes import Scheme, plan_passes

if TYPE_CHECKING:
    from taihu.allreduce.parts.mesh import Transfer
    from taihu.core.settings import OptimizerSettings
    from taihu.worker.engine import Array, Model
    from taihu.worker.fc.stage import Stage

__all__ = ["SOURCE", "Cell", "InOneProcess", "by_batch", "cells", "rows_by_pass", "table", "train"]

SOURCE: Final = "measured by benchmarks.learning.fc_batch"
_BATCH: Final = 96
_IMAGES, _TESTED, _EPOCHS = 9600, 4000, 4


@dataclass(frozen=True)
class Cell:
    """One training: `workers` share the batch, whose passes are those of `scheme`."""

    scheme: Scheme
    workers: int
    learning_rate: float
    seed: int

    @property
    def fc_batch(self) -> int:
        """The examples of one pass."""
        return _BATCH if self.scheme == "gather" else _BATCH // self.workers


def cells(workers: Sequence[int], rates: Sequence[float], seeds: int) -> Iterator[Cell]:
    """All cells, seed after seed."""
    schemes: list[tuple[Scheme, int]] = [("gather", 1)]
    schemes += [("turns", count) for count in workers] + [("slices", count) for count in workers]
    for seed, rate, (scheme, count) in itertools.product(range(1, 1 + seeds), rates, schemes):
        yield Cell(scheme, count, rate, seed)


def rows_by_pass(scheme: Scheme, workers: int, batch: int) -> list[NDArray[np.int64]]:
    """For each pass its rows of the batch of all workers, in which worker r has `batch` from r * `batch` on."""
    cuts = (zip(one.starts, one.stops, strict=True) for one in plan_passes(scheme, workers, batch))
    return [
        np.concatenate([np.arange(start, stop) + rank * batch for rank, (start, stop) in enumerate(cut)])
        for cut in cuts
    ]


class _Alone:
    """The way to the other workers of one that has none."""

    rank, size = 0, 1

    def start(self, name: str, transfer: Transfer, *, urgent: bool = True) -> Callable[[], None]:
        """Nothing moves."""
        return lambda: None


class InOneProcess:
    """A bound model whose fully connected layers are updated after every pass, and the others after all of them.

    `passes` are rows of the batch of all workers.
    """

    def __init__(
        self, model: Model, parameters: Array, optimizer: OptimizerSettings, passes: Sequence[NDArray[np.int64]]
    ) -> None:
        from taihu.core.optimization import OptimizerShard  # noqa: PLC0415 - who starts cells needs none of this
        from taihu.worker.fc.connected import fully_connected_layers  # noqa: PLC0415
        from taihu.worker.fc.tail import Tail  # noqa: PLC0415

        layers = fully_connected_layers(model)
        self._model, self._passes = model, passes
        self._front = model.chain.index(layers[0])
        self._optimizer = OptimizerShard(optimizer, parameters)
        offsets = model.layout.offsets
        self._start_of = {layer.name: offsets[layer.index] for layer in layers}
        self._front_start = offsets[len(layers)]
        self._step, self._scale = 0, 1.0
        self._tail = Tail(
            list(_stages(model, self._front)), _Alone(), model.loss, update_each_pass=True, on_gradient=self._update
        )

    def train(self, images: Array, labels: Array, gradients: Array, step: int) -> float:
        """One step with the batch of all workers; `gradients` is the bound arena. Returns the mean loss."""
        from taihu.worker.engine import StepContext, StepHooks  # noqa: PLC0415

        self._step = step
        context = StepContext(training=True, seed=0, step=step, first_sample=0)
        features, run = self._model.forward_until(self._front, images, context, StepHooks())
        gradient, loss = np.empty_like(features), 0.0
        for rows in self._passes:
            share = len(rows) / len(images)
            # A pass of fewer examples than others goes less far.
            self._scale = share * len(self._passes)
            result = self._tail.train(features[rows], labels[rows], run)
            gradient[rows] = result.feature_gradient * np.float32(share)
            loss += share * result.loss
        self._model.backward_from(self._front, gradient, run, lambda layer: None)
        self._optimizer.update(self._front_start, len(gradients), gradients[self._front_start :], step)
        return loss

    def _update(self, name: str, start: int, gradient: Array, passes: int) -> None:
        first = self._start_of[name] + start
        self._optimizer.update(first, first + len(gradient), gradient, self._step, scale=self._scale)


def _stages(model: Model, front: int) -> Iterator[Stage]:
    """The end of a model, of which one worker has all columns."""
    from taihu.worker.engine import Linear  # noqa: PLC0415
    from taihu.worker.fc.stage import FcWeights, Stage  # noqa: PLC0415

    chain = model.chain[front:]
    places = [place for place, layer in enumerate(chain) if isinstance(layer, Linear)]
    for place, following in itertools.pairwise([*places, len(chain)]):
        layer = chain[place]
        assert isinstance(layer, Linear)  # noqa: S101
        own, gradients = layer.parameters, layer.gradients
        weights = FcWeights(own["weight"], own.get("bias"), gradients["weight"], gradients.get("bias"))
        yield Stage(layer.name, weights, (0, weights.weight.shape[1]), chain[place + 1 : following])


def job_of(cell: Cell) -> Job:
    """The job of a cell, by whatever number of workers."""
    return Job.model_validate(
        {
            "model": {"name": "small_cnn"},
            "data": {"name": "fashion-mnist", "resize": "14x14"},
            "train": {"batch": _BATCH, "epochs": _EPOCHS, "seed": cell.seed},
            "optimizer": {"learning_rate": cell.learning_rate, "momentum": 0.9, "schedule": "cosine"},
            "cluster": {"servers": 1, "workers": 1, "threads": 1},
        }
    )


def train(cell: Cell, path: Path | None = None) -> dict[str, Any]:
    """Train one cell: its accuracy and loss after every epoch.

    The data set's files are in the folder `path`, if they are not where the job looks.
    """
    from taihu.core.model.run_length import RunLength  # noqa: PLC0415
    from taihu.core.optimization import in_steps  # noqa: PLC0415
    from taihu.worker.data.batches import Batches  # noqa: PLC0415
    from taihu.worker.data.load import load_dataset  # noqa: PLC0415
    from taihu.worker.engine import build_model  # noqa: PLC0415
    from taihu.worker.training.evaluation import evaluate  # noqa: PLC0415

    job = job_of(cell)
    whole = load_dataset(job.data if path is None else job.data.model_copy(update={"path": path}), job.model.name)
    dataset = replace(whole, train=First(whole.train, _IMAGES), test=First(whole.test, _TESTED))
    model = build_model(job.model.name, dataset.input_shape, dataset.outputs)
    model.use_threads(1)
    parameters, gradients = np.zeros((2, model.layout.elements), dtype=np.float32)
    model.bind(parameters, gradients)
    model.initialize(cell.seed)
    batches = Batches(dataset, batch=_BATCH, workers=1, rank=0, seed=cell.seed)
    per_epoch = batches.steps_per_epoch
    optimizer = in_steps(job.optimizer, RunLength(_IMAGES, per_epoch, per_epoch * _EPOCHS))
    passes = rows_by_pass(cell.scheme, cell.workers, _BATCH // cell.workers)
    trained = InOneProcess(model, parameters, optimizer, passes)
    epochs: list[dict[str, float]] = []
    losses: list[float] = []
    for step in range(1, per_epoch * _EPOCHS + 1):
        losses.append(trained.train(*batches.batch(step), gradients, step))
        if step % per_epoch == 0:
            scores = evaluate(model, dataset)
            row = {"test_accuracy": scores.metrics["accuracy"], "test_loss": scores.loss}
            epochs.append({**row, "train_loss": fmean(losses[-per_epoch:])})
    return {**asdict(cell), "fc_batch": cell.fc_batch, "test_accuracy": epochs[-1]["test_accuracy"], "epochs": epochs}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Final accuracies as Markdown, by batch and scheme: at each rate, and of the best one against plain SGD's."""
    rates = sorted({row["learning_rate"] for row in rows})
    columns = "".join(f" rate {rate:g}, % |" for rate in rates)
    lines = [f"| FC batch | scheme | workers |{columns} best to one pass |", "|---" * (4 + len(rates)) + "|"]
    plain = _best(rows, ("gather", 1), rates)
    settings = {(row["scheme"], row["workers"]): row["fc_batch"] for row in rows}
    for setting, fc_batch in sorted(settings.items(), key=lambda item: (-item[1], item[0])):
        cells_ = "".join(f" {_shown(_accuracies(rows, setting, rate))} |" for rate in rates)
        best = _best(rows, setting, rates)
        gain = "-" if best is None or plain is None or setting[0] == "gather" else f"{best - plain:+.2f}"
        lines.append(f"| {fc_batch} | {setting[0]} | {setting[1]} |{cells_} {gain} |")
    return "\n".join(lines)


def _accuracies(rows: Sequence[dict[str, Any]], setting: tuple[str, int], rate: float) -> list[float]:
    found = [row for row in rows if (row["scheme"], row["workers"], row["learning_rate"]) == (*setting, rate)]
    return [100 * row["test_accuracy"] for row in sorted(found, key=lambda row: int(row["seed"]))]


def _shown(accuracies: Sequence[float]) -> str:
    if not accuracies:
        return "-"
    return f"{fmean(accuracies):.2f}"


def _best(rows: Sequence[dict[str, Any]], setting: tuple[str, int], rates: Sequence[float]) -> float | None:
    """The mean over the seeds at the rate at which it is highest."""
    found = [_accuracies(rows, setting, rate) for rate in rates]
    return max((fmean(each) for each in found if each), default=None)


def by_batch(rows: Sequence[dict[str, Any]]) -> dict[int, float]:
    """By the batch of an update the mean accuracy, in percent, of the better scheme at its best rate."""
    rates = sorted({row["learning_rate"] for row in rows})
    best: dict[int, float] = {}
    for size, *setting in sorted({(row["fc_batch"], row["scheme"], row["workers"]) for row in rows}, reverse=True):
        mean = _best(rows, (setting[0], setting[1]), rates)
        best[size] = max(best.get(size, 0.0), mean or 0.0)
    return best


def draw(rows: Sequence[dict[str, Any]], picture: Path) -> None:
    """Accuracy against the batch, a line for each scheme and rate; and accuracy over the epochs, by batch."""
    import matplotlib as mpl  # noqa: PLC0415 - only drawing needs it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, (ends, curves) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    rates = sorted({row["learning_rate"] for row in rows})
    for scheme, (number, rate) in itertools.product(("turns", "slices"), enumerate(rates)):
        chosen = [row for row in rows if row["scheme"] in (scheme, "gather") and row["learning_rate"] == rate]
        of_size = {
            size: [100 * row["test_accuracy"] for row in chosen if row["fc_batch"] == size]
            for size in sorted({row["fc_batch"] for row in chosen})
        }
        means = [fmean(values) for values in of_size.values()]
        line = "-" if scheme == "turns" else "--"
        ends.plot(list(of_size), means, line, color=f"C{number}", marker="o", label=f"{scheme}, rate {rate:g}")
        low, high = ([pick(values) for values in of_size.values()] for pick in (min, max))
        ends.fill_between(list(of_size), low, high, color=f"C{number}", alpha=0.1)
    sizes = sorted({row["fc_batch"] for row in rows}, reverse=True)
    for number, size in enumerate(sizes):
        best = max(rates, key=lambda rate: fmean(_of_batch(rows, size, rate) or [0.0]))
        runs = [row for row in rows if row["fc_batch"] == size and row["learning_rate"] == best]
        by_epoch = zip(*([epoch["test_accuracy"] for epoch in row["epochs"]] for row in runs), strict=True)
        means = [100 * fmean(each) for each in by_epoch]
        curves.plot(range(1, len(means) + 1), means, marker=".", color=f"C{number}", label=f"{size}, rate {best:g}")
    ends.set(xscale="log", xlabel="examples of an update of fully connected layers", ylabel="test accuracy, %")
    ends.set_xticks(sizes, [str(size) for size in sizes])
    ends.minorticks_off()
    curves.set(xlabel="epoch", ylabel="test accuracy, %", title="at the best rate")
    for axes in (ends, curves):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(picture, dpi=110)


def _of_batch(rows: Sequence[dict[str, Any]], fc_batch: int, rate: float) -> list[float]:
    return [row["test_accuracy"] for row in rows if (row["fc_batch"], row["learning_rate"]) == (fc_batch, rate)]


def main() -> None:
    """Train the cells that are missing, then draw all that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="2,4,8", help="comma-separated")
    parser.add_argument("--rates", default="0.01,0.03,0.1", help="comma-separated learning rates")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="cells that the file holds are not trained again")
    parser.add_argument("--draw", type=Path, metavar="PICTURE", help="draw the cells of --json at the end")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table into this page, between its markers")
    parser.add_argument("--path", type=Path, help="the folder of Fashion-MNIST")
    parser.add_argument("--cell", help="train this one, an object of JSON, and print its row")
    options = parser.parse_args()
    if options.cell is not None:
        print(json.dumps(train(Cell(**json.loads(options.cell)), options.path)))
        return
    rows = load_rows(options.json)
    workers, rates = list(map(int, options.workers.split(","))), list(map(float, options.rates.split(",")))
    wanted = cells(workers, rates, options.seeds)
    train_missing("fc_batch", wanted, rows, options.json, options.path, lambda row: f"{row['test_accuracy']:.2%}")
    if options.draw is not None:
        draw(rows, options.draw)
    if options.docs is not None:
        options.docs.write_text(in_page(options.docs.read_text(), SOURCE, table(rows)))
    print(table(rows))


if __name__ == "__main__":
    main()
