"""A checkpoint that counts: checked against its manifest, and read for any number of processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.checkpoint.files import StoredPart, hash_of, open_part
from taihu.checkpoint.manifest import MANIFEST, Manifest, parse_manifest
from taihu.checkpoint.part import State
from taihu.errors import CheckpointError

__all__ = ["Checkpoint", "open_checkpoint"]


class Checkpoint:
    """A checkpoint in `folder`; its files are opened when they are read."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._verified: set[str] = set()

    @property
    def step(self) -> int:
        """The last step that all parameters have been updated by."""
        return self.manifest.step

    def verify(self) -> None:
        """Read all files; raises CheckpointError, which names the file, unless each is what the manifest says."""
        for member in self.manifest.files:
            self._verify(member)

    def state_of(self, member: str) -> State | None:
        """The whole state of a member; None where it had nothing to keep."""
        if member not in self.manifest.files:
            return None
        with self._open(member) as part:
            return part.state()

    def shared_names(self) -> frozenset[str]:
        """Names of all arrays of elements."""
        with ExitStack() as opened:
            return frozenset(name for part in self._parts(opened) for name in part.shared_names)

    def read_shared(self, name: str, bounds: NDArray[np.int64], into: NDArray[Any]) -> None:
        """Fill `into`, shape (n,), with an array's values of the elements in `bounds`, one range after the other.

        Whoever held them then: servers and workers may be more or fewer now.

        Args:
            name: of the array, as `parameters`.
            bounds: shape (k, 2), int64; disjoint ranges of the layout.
            into: their values.

        Raises:
            CheckpointError: no part has some of them.
        """
        filled = 0
        for member in self.manifest.files:
            with self._unverified(member) as part:
                overlaps = _overlaps(bounds, part.bounds) if name in part.shared_names else []
                if overlaps:
                    self._verify_once(member)  # of a file that is not read nothing is
                for here, there, count in overlaps:
                    into[here : here + count] = part.read_shared(name, there, there + count)
                    filled += count
        if filled < len(into):
            raise CheckpointError(
                f"{self.folder}: {len(into) - filled:,} of {len(into):,} values of {name!r} are in none of its files"
            )

    def held_back_by(self, rank: int, workers: int) -> dict[str, NDArray[Any]]:
        """The state of compression of worker `rank`, of so many, see `CompressionState.arrays`.

        Where there were more or fewer, what all of them held back is divided anew: each gets the mean, so that the
        mean of the gradients that are sent later stays what it was.

        Raises:
            CheckpointError: gradients were not compressed.
        """
        names = [f"worker {each}" for each in range(self.manifest.workers)]
        states = [self.state_of(names[rank])] if workers == len(names) else [self.state_of(name) for name in names]
        own = [state.own for state in states if state is not None and "residual" in state.own]
        if len(own) < len(states):
            raise CheckpointError(
                f"{self.folder}: its gradients were not compressed; set compression.method = 'none'"
            )
        held = dict(own[0])
        if len(own) > 1:
            for name in ("residual", "velocity"):
                held[name] = np.array(np.mean([each[name] for each in own], axis=0, dtype=np.float64), np.float32)
        return held

    def facts_of(self, member: str) -> Mapping[str, Any]:
        """The facts of a member; none where it had nothing to keep."""
        if member not in self.manifest.files:
            return {}
        with self._open(member) as part:
            return part.facts

    def _parts(self, opened: ExitStack) -> list[StoredPart]:
        return [opened.enter_context(self._open(member)) for member in self.manifest.files]

    @contextmanager
    def _open(self, member: str) -> Iterator[StoredPart]:
        """A member's part during the block; what is read for the first time is verified."""
        self._verify_once(member)
        with self._unverified(member) as part:
            yield part

    @contextmanager
    def _unverified(self, member: str) -> Iterator[StoredPart]:
        with open_part(self.folder / self.manifest.files[member].name) as part:
            if (part.member, part.step) != (member, self.step):
                raise CheckpointError(
                    f"{self.folder}: the file of {member} is of {part.member} after step {part.step}, "
                    f"expected step {self.step}"
                )
            yield part

    def _verify_once(self, member: str) -> None:
        if member not in self._verified:
            self._verify(member)

    def _verify(self, member: str) -> None:
        entry = self.manifest.files[member]
        path = self.folder / entry.name
        try:
            size, found = path.stat().st_size, hash_of(path)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
        if size != entry.size_bytes:
            raise CheckpointError(f"{path}: {size:,} bytes, expected {entry.size_bytes:,}; it is damaged")
        if found != entry.sha256:
            raise CheckpointError(f"{path}: its SHA-256 is not the manifest's; it is damaged")
        self._verified.add(member)


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`.

    Raises:
        CheckpointError: there is none, or its manifest is damaged.
    """
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}; a checkpoint without it is none") from None
    try:
        return Checkpoint(folder, parse_manifest(text))
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _overlaps(wanted: NDArray[np.int64], held: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """The ranges that two lists of ranges share: place in the values of the first, in those of the second, length."""
    order = np.argsort(held[:, 0], kind="stable")
    starts, stops = held[order].T if len(held) else (np.zeros(0, np.int64),) * 2
    places = _places(held)[order] if len(held) else starts
    found = []
    for (start, stop), place in zip(wanted.tolist(), _places(wanted).tolist(), strict=True):
        first = int(np.searchsorted(stops, start, side="right"))
        for index in range(first, len(starts)):
            low, high = max(start, int(starts[index])), min(stop, int(stops[index]))
            if starts[index] >= stop:
                break
            if low == high:
                continue  # a layer of fewer values than there were parts
            found.append((place + low - start, int(places[index]) + low - int(starts[index]), high - low))
    return found


def _places(bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each range's first value."""
    sizes = bounds[:, 1] - bounds[:, 0]
    places: NDArray[np.int64] = np.cumsum(sizes) - sizes
    return places
