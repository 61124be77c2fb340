"""A checkpoint that counts: checked against its manifest, and read for any number of processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, NamedTuple
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import CheckpointError
from taihu.core.checkpoint.blocks import Block, Held, Overlap, blocks_of
from taihu.core.checkpoint.files import Kind, StoredPart, hash_of, open_part
from taihu.core.checkpoint.manifest import MANIFEST, Manifest, parse_manifest
from taihu.core.checkpoint.part import RESIDUAL, SpreadLayer, State, column_blocks
from taihu.core.checkpoint.places import Place, copied, remove_folder
from taihu.core.model.layout import Layout

_FIRST: Final = "worker 0"
_KINDS: Final[tuple[Kind, ...]] = ("shared", "columns")
_VALUES_AT_ONCE: Final = 1 << 18


class _Contents(NamedTuple):
    """Names of the arrays of elements in a file, and the blocks that they have values for, by kind."""

    names: Mapping[Kind, frozenset[str]]
    held: Mapping[Kind, Held]


class Checkpoint:
    """A checkpoint in `folder`; its files are opened when they are read.

    Files of a store are copied to this machine then, into a temporary folder that goes with this object.
    """

    def __init__(self, folder: Place, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._verified: set[str] = set()
        self._known: dict[str, _Contents] = {}
        self._copies: Path | None = None

    @property
    def step(self) -> int:
        """The last step that all parameters have been updated by."""
        return self.manifest.step

    @cached_property
    def spread(self) -> tuple[SpreadLayer, ...]:
        """The layers that are spread over the workers, with the columns of worker 0."""
        if _FIRST not in self.manifest.files:
            return ()
        with self._open(_FIRST) as part:
            return part.spread

    @cached_property
    def layout(self) -> Layout:
        """All layers of the model, also those that are not exchanged."""
        layers = list(self.manifest.layout.layers)
        for spread in sorted(self.spread, key=lambda each: each.position):
            layers.insert(spread.position, spread.layer)
        return Layout(tuple(layers))

    def difference(self, exchanged: Layout, *, spreads: bool) -> str | None:
        """The first place where a model that exchanges these layers is another one; None if it may be the same.

        Where it `spreads` layers it has others, of which is nothing known here.
        """
        there = self.layout
        if spreads:
            names = {layer.name for layer in exchanged.layers}
            there = Layout(tuple(layer for layer in there.layers if layer.name in names))
        return exchanged.difference(there)

    def verify(self) -> None:
        """Read all files; raises CheckpointError, which names the file, unless each is what the manifest says."""
        self._copies = None
        for member in self.manifest.files:
            self._verify(member)

    def state_of(self, member: str) -> State | None:
        """The whole state of a member; None where it had nothing to keep."""
        if member not in self.manifest.files:
            return None
        with self._open(member) as part:
            return part.state()

    def own_of(self, member: str) -> dict[str, NDArray[Any]]:
        """The arrays of a member alone, by name; none where it had nothing to keep."""
        if member not in self.manifest.files:
            return {}
        with self._open(member) as part:
            return part.own()

    def names(self, *kinds: Kind) -> frozenset[str]:
        """Names of arrays of elements of some kinds."""
        contents = map(self._contents, self.manifest.files)
        return frozenset(name for each in contents for kind in kinds for name in each.names[kind])

    def read_shared(self, name: str, layout: Layout, bounds: NDArray[np.int64], into: NDArray[Any]) -> None:
        """Fill `into`, shape (n,), with an array's values of the elements in `bounds`, one range after the other.

        Args:
            name: of the array, as `parameters`.
            layout: of the arena that the ranges are of, which need not be the one that was exchanged.
            bounds: shape (k, 2), int64; disjoint ranges.
            into: their values.

        Raises:
            CheckpointError: no part has some of them.
        """
        self.read(name, blocks_of(layout, bounds), into)

    def read(self, name: str, blocks: Iterable[Block], into: NDArray[Any]) -> None:
        """Fill `into`, shape (n,), with an array's values of `blocks`, which are disjoint.

        Whoever held them then: servers and workers may be more or fewer now, and other layers spread.

        Raises:
            CheckpointError: no part has some of them.
        """
        wanted = list(blocks)
        total = sum(block.elements for block in wanted)
        if name == RESIDUAL and self.spread:
            wanted = self._without_spread(wanted, into)
        missing = sum(block.elements for block in wanted)
        for member in self.manifest.files:
            missing -= self._read_from(member, name, wanted, into)
        if missing:
            raise CheckpointError(
                f"{self.folder}: {missing:,} of {total:,} values of {name!r} are in none of its files"
            )

    def _without_spread(self, blocks: list[Block], into: NDArray[Any]) -> list[Block]:
        """The blocks of tensors that were exchanged; of others, which are never compressed, nothing is held back."""
        spread = Held(column_blocks(self.spread))
        for block in blocks:
            if block.tensor in spread:
                into[block.place : block.stop] = 0
        return [block for block in blocks if block.tensor not in spread]

    def _read_from(self, member: str, name: str, wanted: list[Block], into: NDArray[Any]) -> int:
        """Read what a member's file has of it; returns the number of values."""
        contents = self._contents(member)
        found = [
            (kind, overlap)
            for kind in _KINDS
            if name in contents.names[kind]
            for overlap in contents.held[kind].overlaps(wanted)
        ]
        if not found:
            return 0  # of a file that is not read nothing is verified
        with self._open(member) as part:
            for kind, overlap in found:
                _copy(part, kind, name, overlap, into)
        return sum(len(overlap.rows) * len(overlap.columns) for _, overlap in found)

    def _contents(self, member: str) -> _Contents:
        if member not in self._known:
            with self._unverified(member) as part:
                names = {kind: frozenset(part.names(kind)) for kind in _KINDS}
                shared = Held(blocks_of(self.manifest.layout, part.bounds))
                held: dict[Kind, Held] = {"shared": shared, "columns": Held(column_blocks(part.spread))}
                self._known[member] = _Contents(names, held)
        return self._known[member]

    def facts_of(self, member: str) -> Mapping[str, Any]:
        """The facts of a member; none where it had nothing to keep."""
        if member not in self.manifest.files:
            return {}
        with self._open(member) as part:
            return part.facts

    @contextmanager
    def _open(self, member: str) -> Iterator[StoredPart]:
        """A member's part during the block; what is read for the first time is verified."""
        self._verify_once(member)
        with self._unverified(member) as part:
            yield part

    @contextmanager
    def _unverified(self, member: str) -> Iterator[StoredPart]:
        with open_part(self.file_of(member)) as part:
            if (part.member, part.step) != (member, self.step):
                raise CheckpointError(
                    f"{self.folder}: the file of {member} is of {part.member} after step {part.step}, "
                    f"expected step {self.step}"
                )
            yield part

    def file_of(self, member: str) -> Path:
        """A member's file on this machine; raises CheckpointError where it cannot be read."""
        path = self.folder / self.manifest.files[member].name
        try:
            return copied(path, self._folder_of_copies)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None

    def _folder_of_copies(self) -> Path:
        if self._copies is None:
            self._copies = Path(mkdtemp(prefix="taihu-checkpoint-"))
            finalize(self, remove_folder, self._copies)
        return self._copies

    def _verify_once(self, member: str) -> None:
        if member not in self._verified:
            self._verify(member)

    def _verify(self, member: str) -> None:
        entry = self.manifest.files[member]
        path, local = self.folder / entry.name, self.file_of(member)
        try:
            size, found = local.stat().st_size, hash_of(local)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
        if size != entry.size_bytes:
            raise CheckpointError(f"{path}: {size:,} bytes, expected {entry.size_bytes:,}; it is damaged")
        if found != entry.sha256:
            raise CheckpointError(f"{path}: its SHA-256 is not the manifest's; it is damaged")
        self._verified.add(member)


def open_checkpoint(folder: Place) -> Checkpoint:
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


def _copy(part: StoredPart, kind: Kind, name: str, overlap: Overlap, into: NDArray[Any]) -> None:
    """Copy what is wanted of a block that the part has, some rows at a time."""
    held, columns = overlap.held, overlap.columns
    width = len(held.columns)
    at_once = max(1, _VALUES_AT_ONCE // width)
    for first in range(overlap.rows.start, overlap.rows.stop, at_once):
        rows = range(first, min(first + at_once, overlap.rows.stop))
        start = held.place + (first - held.rows.start) * width
        values = part.read(kind, name, start, start + len(rows) * width)
        read = held._replace(rows=rows, place=0)
        overlap.wanted.view(into, rows, columns)[...] = read.view(values, rows, columns)
