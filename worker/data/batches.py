"""The batches of one rank, drawn so that they do not depend on how many workers share the global batch."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError, DataError
from taihu.core.base.words import counted
from taihu.worker.data.base.dataset import Dataset, Rows, Targets, standardise
from taihu.worker.data.base.sources import check_batch

Augment = Literal["none", "flip", "crop-flip"]

# As for CIFAR-10 in the ResNet paper, section 4.2; the padding is black here.
_PAD = 4
# Keeps the generator of a step's augmentation apart from the generator of an epoch's order.
_AUGMENT_STREAM = 1


class BatchSource(Protocol):
    """The source of a trainer's batches."""

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in one pass over the training set."""
        ...

    def batch(self, step: int) -> tuple[NDArray[np.float32], Targets]:
        """Inputs and targets of `step`, from 1; the inputs may be overwritten when the next batch is asked for."""
        ...


class Batches:
    """The batches of one rank; a pure function of (seed, number), with numbers from 1, of the step where it has one.

    The global batch of G = workers * batch samples is cut from the epoch's random order, and rank r gets its rows
    r*batch..(r+1)*batch: 1 worker with batch 3b sees the same samples, augmented alike, as 3 workers with batch b.
    What does not fill a global batch at the end of an epoch is left out of that epoch, and so are global batches that
    are fewer than the `in_step` that a step has.

    Attributes:
        shape: of the inputs of a batch, (batch, *input_shape).

    Raises:
        ConfigError: `batch` or `workers` is below 1, `rank` is not in 0..workers-1, or `augment` is unknown.
        DataError: the training set has fewer examples than a step takes, or what is no image is to be augmented.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch: int,
        workers: int,
        rank: int,
        seed: int,
        augment: Augment = "none",
        in_step: int = 1,
    ) -> None:
        _check(dataset, batch, workers, rank, augment, in_step)
        self._in_step = in_step
        self._dataset = dataset
        self._global_batch = batch * workers
        self._share = slice(rank * batch, (rank + 1) * batch)
        self._seed = seed
        self._augment = augment
        self._order: tuple[int, NDArray[np.int64]] | None = None
        self.shape = (batch, *dataset.input_shape)

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in one pass over the training set."""
        return len(self._dataset.train) // (self._global_batch * self._in_step)

    def batch(self, step: int, out: NDArray[np.float32] | None = None) -> tuple[NDArray[np.float32], Targets]:
        """Return this rank's normalised inputs (batch, *input_shape) float32 and the targets of `step`.

        The inputs are written to `out` where it is given, which then is what is returned.

        Raises:
            ValueError: `step` is below 1, or `out` does not have this shape and dtype.
        """
        if step < 1:
            raise ValueError(f"step {step}: steps count from 1")
        inputs = np.empty(self.shape, np.float32) if out is None else out
        if inputs.shape != self.shape or inputs.dtype != np.float32:
            raise ValueError(f"out is {inputs.dtype} {inputs.shape}, expected float32 {self.shape}")
        rows = self._rows(step)
        self._dataset.train.read(rows, inputs)
        if self._augment != "none":
            self._move(step, inputs)
        standardise(self._dataset, inputs)
        return inputs, self._dataset.train.targets(rows)

    def _rows(self, step: int) -> Rows:
        epoch, index = divmod(step - 1, self.steps_per_epoch * self._in_step)
        # Read once and replaced as a whole: a thread that loads ahead may be in another epoch.
        known = self._order
        if known is None or known[0] != epoch:
            samples = len(self._dataset.train)
            known = self._order = epoch, np.random.default_rng([self._seed, epoch]).permutation(samples)
        first = index * self._global_batch
        return known[1][first : first + self._global_batch][self._share]

    def _move(self, step: int, images: NDArray[np.float32]) -> None:
        """Move each of the raw `images` by up to 4 pixels and perhaps mirror it, in place.

        Moving by (dy, dx) with black moving in is the crop at (4 + dy, 4 + dx) of the image padded by 4.
        """
        shifts, flips = self._parameters(step)
        _, height, width, _ = self.shape
        source = np.empty(self.shape[1:], np.float32)
        black = 0 if self._dataset.offset is None else -self._dataset.offset
        for image, (dy, dx), flip in zip(images, shifts.tolist(), flips.tolist(), strict=True):
            if not (dy or dx or flip):
                continue
            source[...] = image
            image[...] = black
            target = image[:, ::-1] if flip else image
            from_y, to_y = _overlap(dy, height)
            from_x, to_x = _overlap(dx, width)
            target[to_y, to_x] = source[from_y, from_x]

    def _parameters(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Shifts (batch, 2) in -4..4 and flips (batch,), this rank's rows of those of the global batch."""
        rng = np.random.default_rng([self._seed, step, _AUGMENT_STREAM])
        flips = rng.random(self._global_batch) < 0.5
        shifts = np.zeros((self._global_batch, 2), np.int64)
        if self._augment == "crop-flip":
            shifts = rng.integers(-_PAD, _PAD + 1, shifts.shape)
        return shifts[self._share], flips[self._share]


def _overlap(shift: int, size: int) -> tuple[slice, slice]:
    """The part of an axis that stays in the picture: where it is read, and where it is written."""
    length = max(0, size - abs(shift))
    start, target = max(0, shift), max(0, -shift)
    return slice(start, start + length), slice(target, target + length)


def _check(  # noqa: PLR0917 - what `Batches` is given
    dataset: Dataset, batch: int, workers: int, rank: int, augment: str, in_step: int
) -> None:
    if batch < 1:
        raise ConfigError(f"batch {batch}: must be at least 1")
    if workers < 1:
        raise ConfigError(f"workers {workers}: must be at least 1")
    if not 0 <= rank < workers:
        raise ConfigError(f"rank {rank}: must be in 0..{workers - 1} with {counted(workers, 'worker')}")
    if augment not in get_args(Augment):
        raise ConfigError(f"augment {augment!r}: must be one of {', '.join(get_args(Augment))}")
    if augment != "none" and len(dataset.input_shape) != 3:
        shape = "x".join(map(str, dataset.input_shape))
        raise DataError(
            f"{dataset.name}: data.augment '{augment}' moves images of (height, width, channels), its inputs are "
            f"vectors of {shape}; set data.augment = 'none'"
        )
    check_batch(dataset.name, len(dataset.train), batch, workers, in_step)
