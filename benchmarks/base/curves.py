"""Curves of losses over steps."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["first_at"]


def first_at(reached: Sequence[float], goal: float) -> float | None:
    """The place in a falling curve, from 1, at which it comes to `goal`; None where it does not."""
    place = next((place for place, value in enumerate(reached) if value <= goal), None)
    if place is None or not place:
        return None if place is None else 1.0
    before = reached[place - 1]
    return place + (before - goal) / (before - reached[place])
