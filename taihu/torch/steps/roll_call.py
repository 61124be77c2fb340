"""Roll calls: before workers exchange anything together each says what it is about to do, and all hear it at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.small_sums import SmallSums
from taihu.core.base.errors import RunError
from taihu.core.base.words import listed

_WORDS: Final = 5
_TEXT_BYTES: Final = 400
_REMEDY: Final = "make and change models and optimizers on all workers alike, between the same two backwards"


class DisagreementError(RunError):
    """Workers do not do the same: all of them are told so."""


class Call(IntEnum):
    """Something that all workers do together."""

    BACKWARD = 1
    STEP = 2
    WRAP = 3
    BRING = 4
    LOSS = 5

    def said_of(self, step: int) -> str:
        """The act of a worker behind `step` - 1 exchanges of gradients, in words."""
        return {
            Call.BACKWARD: f"is in backward {step}",
            Call.STEP: f"is in step() with gradients that no backward has exchanged, behind {step - 1} exchanges",
            Call.WRAP: f"makes a DistributedOptimizer behind {step - 1} backwards",
            Call.BRING: f"takes over worker 0's values behind {step - 1} backwards",
            Call.LOSS: f"has evaluated the closure of step() behind {step - 1} backwards",
        }[self]


@dataclass(frozen=True)
class Word:
    """A worker's answer in a roll call.

    Attributes:
        call: what it is about to do.
        step: the number of the exchange that it belongs to, from 1.
        digest: of what it exchanges, less than 2^48; 0 where that is not compared.
        checksum: of its parameters, less than 2^48; 0 where they are not compared.
        number: of its own.
    """

    call: Call
    step: int
    digest: int = 0
    checksum: int = 0
    number: float = 0.0


@dataclass(frozen=True)
class Heard:
    """The answers of all workers, by rank, and the sums of their flags, shape (n,)."""

    words: tuple[Word, ...]
    flags: NDArray[np.float64]


def disagreement(words: Sequence[Word]) -> str:
    """The workers and their acts, in words, where these differ; "" where all do the same."""
    first = words[0]
    if all(word is first or (word.call, word.step) == (first.call, first.step) for word in words):
        return ""
    said = listed([f"worker {rank} {word.call.said_of(word.step)}" for rank, word in enumerate(words)])
    return f"{said}: all workers make the same backwards and steps; give each as many batches, or use join()"


def first_difference(names: Sequence[str], checksums: NDArray[np.float64]) -> tuple[str, list[int]] | None:
    """The first parameter whose checksums, shape (workers, n), are not all alike, and who differs from rank 0.

    Of parameters in the order of backward it is the last one. None where all are alike.
    """
    differs = (checksums != checksums[0]).any(axis=0)
    if not differs.any():
        return None
    first = int(np.flatnonzero(differs)[-1])
    return names[first], np.flatnonzero(checksums[:, first] != checksums[0, first]).tolist()


class RollCall:
    """The roll calls of this worker; one thread calls it.

    Args:
        rank: of this worker.
        size: number of workers.
        sums: of all workers.
        waiting: a block in which this worker waits for others.
    """

    def __init__(self, rank: int, size: int, sums: SmallSums, waiting: AbstractContextManager[None]) -> None:
        self._rank, self._size = rank, size
        self._sums = sums
        self._waiting = waiting
        self._compared_step = 0

    def begin(self, word: Word, flags: NDArray[np.float64]) -> Callable[[], Heard]:
        """Say `word`, and `flags` of shape (n,), n being the same on all workers; returns what waits for the others.

        Waiting raises RunError on all workers where they do not do the same.
        """
        size, own = self._size, self._rank * _WORDS
        said = np.zeros(size * _WORDS + len(flags))
        said[own : own + _WORDS] = word.call, word.step, word.digest, word.checksum, word.number
        said[size * _WORDS :] = flags
        return partial(self._hear, word, self._sums.begin(said), said)

    def _hear(self, own: Word, wait: Callable[[], None], said: NDArray[np.float64]) -> Heard:
        with self._waiting:
            wait()
        numbers = said[: self._size * _WORDS].tolist()
        rows = [numbers[start : start + _WORDS] for start in range(0, len(numbers), _WORDS)]
        words = (own,) * self._size
        if any(row != rows[self._rank] for row in rows):
            words = tuple(Word(Call(int(c)), int(s), int(d), int(p), n) for c, s, d, p, n in rows)
        if shown := disagreement(words):
            raise DisagreementError(shown)
        return Heard(words, said[self._size * _WORDS :])

    def agree_on(self, word: Word, flags: int, own: str) -> None:
        """Say `word`, in a roll call of so many flags, and go on when all workers have said the same.

        Raises:
            RunError: on all workers, where another one does something else, or with something else: `own` tells.
        """
        heard = self.begin(word, np.zeros(flags))()
        if len({each.digest for each in heard.words}) > 1:
            self.refuse_others(word.step, own)

    def sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sums of values, shape (n,), over all workers, who all call this."""
        summed = values.astype(np.float64, copy=True)
        with self._waiting:
            self._sums.begin(summed)()
        return summed

    def refuse_others(self, step: int, own: str) -> NoReturn:
        """Raise an error with what has changed on each worker, which `own` says of this one; all call this."""
        texts = np.zeros((self._size, _TEXT_BYTES))
        said = own.encode()[:_TEXT_BYTES]
        texts[self._rank, : len(said)] = np.frombuffer(said, dtype=np.uint8)
        rows = self.sums(texts.ravel()).reshape(texts.shape).astype(np.uint8)
        each = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]
        shown = "; ".join(f"worker {rank}: {text}" for rank, text in enumerate(each))
        raise RunError(f"step {step}: workers train different parameters ({shown}): {_REMEDY}")

    def compared(self, heard: Heard, names: Sequence[str], checksums: Callable[[], NDArray[np.float64]]) -> None:
        """Look whether parameters are alike where their checksums were told; `checksums` are those of each, (n,).

        Raises:
            RunError: on all workers, with the first one that differs.
        """
        told = {word.checksum for word in heard.words}
        step = heard.words[0].step - 1
        if told == {0}:
            return
        if len(told) == 1:
            self._compared_step = step
            return
        size, rank = self._size, self._rank
        table = np.zeros((size, len(names)))
        table[rank] = checksums()
        found = first_difference(names, self.sums(table.ravel()).reshape(table.shape))
        name, others = ("the order of parameters", [0]) if found is None else found
        before = f"behind step {self._compared_step}" if self._compared_step else "when training began"
        raise RunError(
            f"the workers' parameters differ behind step {step}: {name} is the first, on "
            f"{listed([f'worker {each}' for each in others])}; they were alike {before}. Something "
            "changed them, or gradients, otherwise than on other workers: change them on all alike"
        )
