"""Test scores in words: a share of right answers in per cent, everything else by its name."""

from __future__ import annotations

from collections.abc import Mapping

ACCURACY = "accuracy"


def score_text(accuracy: float, metric: str, value: float) -> str:
    """The score that a progress report carries: `98.33%`, `rmse 0.1234`, or nothing before the first test.

    Args:
        accuracy: 0..1, or negative where there is none.
        metric: the name of another score, "" where there is none.
        value: of it.
    """
    if accuracy >= 0:
        return f"{accuracy:.2%}"
    return f"{metric} {value:.4g}" if metric else ""


def score_lines(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Name and value of every score of a test, for people: `("test accuracy", "98.89%")`."""
    return [
        (f"test {name}", f"{value:.2%}" if name == ACCURACY else f"{value:.4g}") for name, value in metrics.items()
    ]
