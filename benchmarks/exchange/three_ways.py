"""One node, servers and a ring: `python -m benchmarks three_ways --help`.

The claim of docs/methods.md section 2: through servers and around a ring a model trains to the accuracy of one node.
Caffe's Cifar10-quick learns the first images of Fashion-MNIST, by real processes: one worker with the whole batch,
three with a third of it each, from several seeds. All ways see the same images in every step, so that they differ in
the order of sums alone. Two ways more end with the bits of another one: one server, with those of two, and a ring
whose values take connections, with those of one in shared memory. They are trained from the first seed. Runs that the
file of --json holds are not trained again, so that this may be ended and started again. A run of the usual size takes
about half a minute of a core; `--images 60000 --epochs 12` is that of examples/fashion_mnist.toml.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.base.rows import in_page, load_rows, save_rows

if TYPE_CHECKING:
    from taihu.worker.data.base.dataset import Examples

__all__ = ["WAYS", "differing", "table", "train"]

_WORKERS = 3
_PAGE = "measured by benchmarks.exchange.three_ways"
_KEYS = ("test_accuracy", "evaluations", "steps", "parameters_sha256")


@dataclass(frozen=True)
class Way:
    """Workers and their flags; `as_bits_of` is the way with whose bits it must end."""

    flags: tuple[str, ...]
    workers: int = _WORKERS
    as_bits_of: str | None = None


WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "one node": Way(("--servers", "1"), workers=1),
        "2 servers": Way(("--servers", "2")),
        "ring": Way(("--exchange", "ring")),
        "1 server": Way(("--servers", "1"), as_bits_of="2 servers"),
        "ring over TCP": Way(("--exchange", "ring", "--set", "exchange.transport=tcp"), as_bits_of="ring"),
    }
)


def missing(rows: Sequence[dict[str, Any]], seeds: int) -> Iterator[tuple[str, int]]:
    """Ways and seeds of which there is no run yet, the ways of one seed together."""
    done = {(row["way"], row["seed"]) for row in rows}
    for seed, (name, way) in itertools.product(range(1, seeds + 1), WAYS.items()):
        if (seed == 1 or way.as_bits_of is None) and (name, seed) not in done:
            yield name, seed


def write_images(path: Path, images: int, tested: int) -> None:
    """Write the first of Fashion-MNIST's training and test images, with their classes, as arrays."""
    from taihu.core.settings import DataSettings  # noqa: PLC0415 - drawing needs none of this
    from taihu.worker.data.load import load_dataset  # noqa: PLC0415

    dataset = load_dataset(DataSettings(name="fashion-mnist"))
    x_train, y_train = _first(dataset.train, dataset.input_shape, images)
    x_test, y_test = _first(dataset.test, dataset.input_shape, tested)
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def _first(examples: Examples, shape: tuple[int, ...], count: int) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    rows = np.arange(min(count, len(examples)))
    inputs = np.empty((len(rows), *shape), dtype=np.float32)
    examples.read(rows, inputs)
    return inputs.astype(np.uint8), examples.targets(rows)


def train(name: str, seed: int, data: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The row of one run by `taihu train` on the arrays in `data`."""
    way = WAYS[name]
    command = [sys.executable, "-P", "-m", "taihu", "train", "--model", "cifar10_quick", "--data", str(data)]
    command += ["--workers", str(way.workers), "--batch", str(options.batch // way.workers), *way.flags]
    command += ["--epochs", str(options.epochs), "--seed", str(seed), "--run-dir", "none"]
    settings = {
        "optimizer.learning_rate": 0.03,
        "optimizer.schedule": "cosine",
        "optimizer.warmup_steps": 50,
        "optimizer.weight_decay": 5e-4,
        "cluster.threads": 1,
    }
    command += [f"--set={key}={value}" for key, value in settings.items()]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        subprocess.run([*command, "--json", str(result)], check=True, stdout=subprocess.DEVNULL)
        results = json.loads(result.read_text())
    row = {"way": name, "seed": seed, "batch": options.batch, "images": options.images}
    return {**row, **{key: results[key] for key in _KEYS}}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Final accuracies and hashes as Markdown; the difference is that of the means over the seeds both have."""
    lines = [
        "| way | seeds | mean accuracy, % | to one node | sha256 of seed 1 | same bits as |",
        "|---|---|---|---|---|---|",
    ]
    alone = _by_seed(rows, "one node")
    for name, way in WAYS.items():
        own = _by_seed(rows, name)
        both = own.keys() & alone.keys()
        if not own:
            lines.append(f"| {name} | - | - | - | - | |")
            continue
        difference = fmean(100 * (own[s]["test_accuracy"] - alone[s]["test_accuracy"]) for s in both) if both else 0.0
        to_alone = "" if name == "one node" or not both else f"{difference:+.2f}"
        mean = 100 * fmean(row["test_accuracy"] for row in own.values())
        digest = own[1]["parameters_sha256"][:8] if 1 in own else "-"
        lines.append(f"| {name} | {len(own)} | {mean:.2f} | {to_alone} | {digest} | {way.as_bits_of or ''} |")
    return "\n".join(lines)


def _by_seed(rows: Sequence[dict[str, Any]], name: str) -> dict[int, dict[str, Any]]:
    return {row["seed"]: row for row in sorted(rows, key=lambda row: int(row["seed"])) if row["way"] == name}


def differing(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The runs that have not ended with the bits of the way that promises them."""
    found = []
    for name, way in WAYS.items():
        if way.as_bits_of is not None:
            promised = _by_seed(rows, way.as_bits_of)
            found += [
                f"{name}, seed {seed}: {row['parameters_sha256'][:16]}, expected those of {way.as_bits_of}"
                for seed, row in _by_seed(rows, name).items()
                if seed in promised and row["parameters_sha256"] != promised[seed]["parameters_sha256"]
            ]
    return found


def draw(rows: Sequence[dict[str, Any]], picture: Path) -> None:
    """Training loss and test accuracy over the epochs: means over the seeds, and their range."""
    import matplotlib as mpl  # noqa: PLC0415 - only drawing needs it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for number, name in enumerate(name for name, way in WAYS.items() if way.as_bits_of is None):
        curves = [row["evaluations"] for row in _by_seed(rows, name).values()]
        if not curves:
            continue
        epochs = [evaluation["epoch"] for evaluation in curves[0]]
        for panel, (key, scale) in zip(panels, (("train_loss", 1), ("test_accuracy", 100)), strict=True):
            values = [[scale * evaluation[key] for evaluation in of] for of in zip(*curves, strict=True)]
            panel.plot(epochs, [fmean(of) for of in values], marker="osv"[number], label=name, alpha=0.8)
            panel.fill_between(epochs, [min(of) for of in values], [max(of) for of in values], alpha=0.15)
    panels[0].set(xlabel="epoch", ylabel="training loss")
    panels[1].set(xlabel="epoch", ylabel="test accuracy, %")
    for panel in panels:
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid(alpha=0.3)
        panel.legend()
    figure.savefig(picture, dpi=110)


def main() -> None:
    """Train the runs that are missing, or draw those that are there; exits with 1 where promised bits differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=96, help="of all workers together")
    parser.add_argument("--images", type=int, default=9600, help="the first so many are trained on")
    parser.add_argument("--tested", type=int, default=5000, help="the first so many are tested on")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the runs, and train those that it lacks")
    parser.add_argument("--draw", type=Path, metavar="PICTURE", help="draw the runs of --json, train nothing")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table between its marks there")
    options = parser.parse_args()
    rows = load_rows(options.json)
    if options.draw is None:
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "images.npz"
            write_images(data, options.images, options.tested)
            for name, seed in missing(rows, options.seeds):
                rows.append(train(name, seed, data, options))
                save_rows(options.json, rows)
                print(f"{name}, seed {seed}: {100 * rows[-1]['test_accuracy']:.2f} %", flush=True)
    print(table(rows))
    if options.draw is not None:
        draw(rows, options.draw)
    if options.docs is not None:
        options.docs.write_text(in_page(options.docs.read_text(), _PAGE, table(rows)))
    if wrong := differing(rows):
        raise SystemExit("error: bits differ: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
