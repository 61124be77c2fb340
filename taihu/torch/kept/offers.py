"""The choice of the held step from which a script goes on, of all that lies in memory of its hosts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from taihu.core.checkpoint.held_steps import Label


class Held(NamedTuple):
    """A held step.

    Attributes:
        writer: the worker that has held it.
        label: its generation and its step.
        workers: their number in that life of the script.
    """

    writer: int
    label: Label
    workers: int


@dataclass(frozen=True)
class Offer:
    """All that one worker finds in memory of its host.

    Attributes:
        host: a number of that memory: workers of one host have the same.
        alike: whole states of what all workers have alike.
        own: what single workers had of their own.
    """

    host: int
    alike: frozenset[Held] = frozenset()
    own: frozenset[Held] = frozenset()

    def told(self) -> dict[str, Any]:
        """The offer, as JSON holds it."""
        return {"host": self.host, "alike": sorted(self.alike), "own": sorted(self.own)}

    @classmethod
    def heard(cls, told: dict[str, Any]) -> Self:
        """The offer that another worker has told."""
        alike, own = (
            frozenset(Held(writer, Label(*label), n) for writer, label, n in told[k]) for k in ("alike", "own")
        )
        return cls(told["host"], alike, own)


@dataclass(frozen=True)
class Chosen:
    """The step from which all go on.

    Attributes:
        held: the state of what all workers have alike.
        reader: the worker that finds it in memory of its host.
        own: for each worker that finds its own part anywhere, the worker in whose host's memory that lies.
    """

    held: Held
    reader: int
    own: dict[int, int]


def choose(offers: Sequence[Offer]) -> Chosen | None:
    """The newest step of which all workers find all; where there is none, the newest that all have alike.

    A kill falls into one step: the step behind which all are whole is one of the last two. Where only older ones
    are whole, or other numbers of workers go on, something is lost, and the newest state counts for more.

    Args:
        offers: of all workers, by rank.

    Returns:
        None where nothing is held.
    """
    size = len(offers)
    labels = sorted({each.label for offer in offers for each in offer.alike}, reverse=True)
    found = [_found(offers, label) for label in labels]
    whole = [each for each in found[:2] if each.held.workers == size and len(each.own) == size]
    return next(iter([*whole, *found]), None)


def _found(offers: Sequence[Offer], label: Label) -> Chosen:
    held, reader = min(_readers(label, (offer.alike for offer in offers)))
    own = {each.writer: rank for each, rank in sorted(_readers(label, (offer.own for offer in offers)), reverse=True)}
    near = {rank: rank for rank in range(len(offers)) if any(_is(label, rank, each) for each in offers[rank].own)}
    kept = {**own, **near} if held.workers == len(offers) else {}
    return Chosen(held, reader, kept)


def _readers(label: Label, found: Iterable[Iterable[Held]]) -> list[tuple[Held, int]]:
    """Those who have held a label, each beside a worker that finds it."""
    return [(each, rank) for rank, held in enumerate(found) for each in held if each.label == label]


def _is(label: Label, writer: int, held: Held) -> bool:
    return held.label == label and held.writer == writer
