"""The curve of a training run: `python -m benchmarks training_curve RESULT.json PICTURE.png`.

RESULT.json is what `taihu train --json` wrote.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

__all__ = ["draw"]


def draw(result: Path, picture: Path, title: str) -> None:
    """Test accuracy and both losses over the epochs."""
    evaluations = json.loads(result.read_text())["evaluations"]
    epochs = [evaluation["epoch"] for evaluation in evaluations]
    figure, (losses, accuracies) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    losses.plot(epochs, [e["train_loss"] for e in evaluations], marker="o", label="training")
    losses.plot(epochs, [e["test_loss"] for e in evaluations], marker="o", label="test")
    losses.set(xlabel="epoch", ylabel="loss", ylim=(0, None))
    losses.legend()
    accuracies.plot(epochs, [100 * e["test_accuracy"] for e in evaluations], marker="o", color="tab:green")
    accuracies.set(xlabel="epoch", ylabel="test accuracy, %")
    for axes in (losses, accuracies):
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(picture, dpi=110)


def main() -> None:
    """Draw what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--title", default="")
    options = parser.parse_args()
    draw(options.result, options.picture, options.title)


if __name__ == "__main__":
    main()
