"""Parts of checkpoints as files: written whole and durable, or not at all, and read range by range."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from taihu.core.base.errors import CheckpointError
from taihu.core.base.tensor_file import TensorSlot, header_of, write_values
from taihu.core.chaos.points import Chaos, NoChaos, Point, Written
from taihu.core.checkpoint.part import NOTHING, Columns, Elements, Part, SpreadLayer, State
from taihu.core.checkpoint.places import Place, make_folder, write_durably
from taihu.core.model.layout import LayerSpec, TensorSpec

Kind = Literal["shared", "columns"]
"""Of arrays with a value for each element: of an arena's ranges, or of columns of spread layers."""

_METADATA: Final = "taihu.core.checkpoint"
_BOUNDS: Final = "bounds"
_OWN: Final = "own/"
_BLOCK: Final = 1 << 20


class PartFile(NamedTuple):
    """A file of a checkpoint: its name in the checkpoint's folder, its size, and the SHA-256 of all of it."""

    name: str
    size_bytes: int
    sha256: str


def file_name(member: str) -> str:
    """The name of a member's file: `server-0.safetensors`."""
    return f"{member.replace(' ', '-')}.safetensors"


def write_part(folder: Place, part: Part, chaos: Chaos | None = None) -> PartFile:
    """Write a part into `folder`, which is made; when this returns, the file outlives a failure of the machine.

    Raises:
        OSError: it cannot be written; nothing of it stays.
    """
    chaos, tensors = chaos or NoChaos(), tensors_of(part.state)
    header = header_of(slots_of(tensors), metadata_of(part))
    make_folder(folder)
    path = folder / file_name(part.member)
    with write_durably(path, lambda: chaos.passes(Point.CHECKPOINT_RENAME, part.step)) as file:
        chaos.passes(Point.CHECKPOINT_WRITE, part.step)
        hashing = _Hashing(chaos.disk(file))
        hashing.write(header)
        for values in tensors.values():
            write_values(hashing, values, values.dtype)
    return PartFile(path.name, hashing.size_bytes, hashing.sha256.hexdigest())


def part_bytes(part: Part) -> bytes:
    """A part as `write_part` writes it, for one that is small."""
    tensors = tensors_of(part.state)
    return b"".join((header_of(slots_of(tensors), metadata_of(part)), *(each.tobytes() for each in tensors.values())))


def tensors_of(state: State) -> dict[str, NDArray[Any]]:
    """All of a state that is an array, by its name in a file, sorted: equal states make equal files."""
    return {_BOUNDS: state.shared.bounds, **dict(sorted(arrays_of(state).items()))}


def arrays_of(state: State) -> dict[str, NDArray[Any]]:
    """The arrays of a state that its steps change, by their names in a file."""
    kinds: dict[Kind, Mapping[str, NDArray[Any]]] = {"shared": state.shared.arrays, "columns": state.columns.arrays}
    named = {f"{kind}/{name}": values for kind, arrays in kinds.items() for name, values in arrays.items()}
    named |= {f"{_OWN}{name}": values for name, values in state.own.items()}
    return named


def slots_of(tensors: Mapping[str, NDArray[Any]]) -> dict[str, TensorSlot]:
    """The shapes and dtypes of arrays."""
    return {name: TensorSlot(values.shape, values.dtype) for name, values in tensors.items()}


def metadata_of(part: Part) -> dict[str, str]:
    """The words of a file beside its arrays."""
    columns = [_told(spread) for spread in part.state.columns.layers]
    told = {"member": part.member, "step": part.step, "facts": part.state.facts, "columns": columns}
    return {_METADATA: json.dumps(told)}


class _Hashing:
    """Writes to `file`, and hashes what it writes block by block, while it is in the processor's cache."""

    def __init__(self, file: Written) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        """Write all of `data`."""
        view = memoryview(data)
        for start in range(0, len(view), _BLOCK):
            block = view[start : start + _BLOCK]
            self.sha256.update(block)
            self._file.write(block)
        self.size_bytes += len(view)


def hash_of(path: Path) -> str:
    """The SHA-256 of a file; OSError where it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class StoredPart:
    """An open file: what it says, and its arrays, which are read one by one, or a range at a time."""

    def __init__(self, path: Path, handle: Any) -> None:
        self._handle = handle
        try:
            self.metadata: Mapping[str, str] = handle.metadata() or {}
            told = json.loads(self.metadata[_METADATA])
            self.member, self.step, self.facts = str(told["member"]), int(told["step"]), dict(told["facts"])
            self.spread = tuple(map(_spread, told.get("columns", ())))
        except (KeyError, TypeError, ValueError):
            raise CheckpointError(f"{path}: not a part of a checkpoint of taihu's") from None
        self._names = list(handle.keys())
        self.bounds: NDArray[np.int64] = handle.get_tensor(_BOUNDS)

    def names(self, kind: Kind) -> list[str]:
        """Names of the arrays of elements of a kind."""
        start = f"{kind}/"
        return [name.removeprefix(start) for name in self._names if name.startswith(start)]

    def read(self, kind: Kind, name: str, start: int, stop: int) -> NDArray[Any]:
        """Values [start, stop) of an array of elements."""
        if start == stop:
            return np.empty(0, dtype=np.float32)  # the library takes no such slice of an empty array
        values: NDArray[Any] = self._handle.get_slice(f"{kind}/{name}")[start:stop]
        return values

    def tensor(self, name: str) -> NDArray[Any]:
        """An array by its name in the file."""
        values: NDArray[Any] = self._handle.get_tensor(name)
        return values

    def own(self) -> dict[str, NDArray[Any]]:
        """The arrays of the process alone, by name."""
        names = [name for name in self._names if name.startswith(_OWN)]
        return {name.removeprefix(_OWN): self._handle.get_tensor(name) for name in names}

    def state(self) -> State:
        """All of it."""
        shared = self._arrays("shared")
        return State(
            Elements(self.bounds, shared) if shared else NOTHING,
            self.own(),
            self.facts,
            Columns(self.spread, self._arrays("columns")),
        )

    def _arrays(self, kind: Kind) -> dict[str, NDArray[Any]]:
        return {name: self._handle.get_tensor(f"{kind}/{name}") for name in self.names(kind)}


def _told(spread: SpreadLayer) -> dict[str, Any]:
    """The words of a part for a spread layer, as JSON holds them."""
    return {
        "layer": spread.layer.name,
        "tensors": [[tensor.name, list(tensor.shape)] for tensor in spread.layer.tensors],
        "position": spread.position,
        "columns": [spread.columns.start, spread.columns.stop],
    }


def _spread(told: Mapping[str, Any]) -> SpreadLayer:
    """The spread layer of which `_told` was."""
    tensors = tuple(TensorSpec(str(name), tuple(map(int, shape))) for name, shape in told["tensors"])
    start, stop = map(int, told["columns"])
    return SpreadLayer(LayerSpec(str(told["layer"]), tensors), int(told["position"]), range(start, stop))


@contextmanager
def open_part(path: Path) -> Iterator[StoredPart]:
    """Open a part during the block; its arrays are mapped, not read.

    Raises:
        CheckpointError: the file is missing, damaged, or no part of a checkpoint.
    """
    try:
        with safe_open(path, framework="np") as handle:
            yield StoredPart(path, handle)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: not readable: {error}") from None
