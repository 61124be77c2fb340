"""The state of a member behind its last steps, in memory of its host that outlives the process.

A process that is killed leaves it to whoever begins the next generation there, see `taihu.core.checkpoint.salvage`.
Each of the last two or three steps has a file: while one is written, the others are whole. A kill falls between two
instructions: a file that has the label of a step has all of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import structlog
from numpy.typing import NDArray

from taihu.core.base.errors import CheckpointError, ConfigError
from taihu.core.base.tensor_file import header_of
from taihu.core.checkpoint.files import StoredPart, arrays_of, file_name, metadata_of, open_part, slots_of, tensors_of
from taihu.core.checkpoint.manifest import Manifest, parse_manifest
from taihu.core.checkpoint.part import Part, State
from taihu.core.process.memory.free import free_bytes
from taihu.core.process.memory.mapped_files import make_mapped
from taihu.core.system.threads import Lock
from taihu.core.wire.base.clock import SystemClock

MOST_HELD: Final = 3
"""The most steps that a member holds."""


_LABEL: Final = "label"
_NONE: Final = (0, -1)
_TOUCHED_EVERY_S: Final = 60.0
_FREE_TIMES: Final = 4
_RUN: Final = "run"


class Label(NamedTuple):
    """The generation and the step that a file is of; generation 0 and step -1 while it is being written."""

    generation: int
    step: int


class HeldSteps:
    """Holds the last steps of a member in `folder`; any thread may call, one at a time for the same values.

    Args:
        folder: in memory, see `taihu.core.checkpoint.run_memory.memory_of`.
        member: the name of the member.
        generation: that it takes part in.
        run: of which these steps are.
        steps: are held at once, at most `MOST_HELD`.
        threads: so many bring a step's values, each of which begins and ends it.
    """

    def __init__(
        self, folder: Path, member: str, generation: int, run: Manifest, *, steps: int = 2, threads: int = 1
    ) -> None:
        self._folder = folder
        self._member = member
        self._generation = generation
        self._run = run
        self._steps = steps
        self._threads = threads
        self._files: dict[int, _File] = {}
        self._lock = Lock()
        self._clock = SystemClock()
        self._touched_s = -_TOUCHED_EVERY_S
        self._is_off = False

    def adopt(self, run: Manifest) -> None:
        """Go on by another plan, between two steps."""
        self._run = run
        self._files = {}

    def begin(self, step: int, make_state: Callable[[], State]) -> None:
        """Have room for the state of `step`, whose form `make_state` tells; the oldest step is gone.

        The form, names, shapes and facts, is the same until `adopt`.
        """
        with self._lock:
            file = self._files.get(self._place(step))
            if self._is_off or (file is not None and file.step == step):
                return
            try:
                if file is None:
                    file = self._files[self._place(step)] = self._make(step, make_state())
                self._touch()
            except OSError as error:
                self._is_off, self._files = True, {}
                why = "a process that dies costs the steps since the last checkpoint"
                structlog.get_logger().info(f"no step is held in memory: {why}", reason=str(error))
                return
            file.label[:] = _NONE
            file.step, file.ended = step, 0

    def put(self, step: int, state: State) -> None:
        """Take values of a step that has begun: the arrays of `state`, which may be some of all."""
        self._put(step, arrays_of(state))

    def put_range(self, step: int, arrays: Mapping[str, NDArray[Any]], start: int) -> None:
        """Take values of shared arrays, from the place `start` on, of a step that has begun."""
        if (file := self._files.get(self._place(step))) is not None:
            for name, values in arrays.items():
                np.copyto(file.arrays[f"shared/{name}"][start : start + len(values)], values)

    def put_own(self, step: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take a member's own arrays of a step that has begun."""
        self._put(step, {f"own/{name}": values for name, values in arrays.items()})

    def end(self, step: int) -> None:
        """All values of `step` that this thread brings are there: it is held when the last one says so."""
        with self._lock:
            if (file := self._files.get(self._place(step))) is None:
                return
            file.ended += 1
            if file.ended == self._threads:
                file.label[0] = self._generation
                file.label[1] = step

    def close(self) -> None:
        """Hold nothing more: what its process does from now on is no part of the generation."""
        with self._lock:
            self._is_off, self._files = True, {}

    def _put(self, step: int, tensors: Mapping[str, NDArray[Any]]) -> None:
        if (file := self._files.get(self._place(step))) is not None:
            for name, values in tensors.items():
                np.copyto(file.arrays[name], values)

    def _make(self, step: int, state: State) -> _File:
        _check_room(state.size_bytes)
        path = _path(self._folder, self._member, self._place(step))
        partial = path.with_name(f".{path.name}")
        partial.unlink(missing_ok=True)
        file = _File(partial, self._member, state, self._run)
        partial.replace(path)
        return file

    def _place(self, step: int) -> int:
        return step % self._steps

    def _touch(self) -> None:
        """Show that the folder is in use."""
        now_s = self._clock.now()
        if now_s - self._touched_s >= _TOUCHED_EVERY_S:
            os.utime(self._folder)
            self._touched_s = now_s


def _check_room(size_bytes: int) -> None:
    """Raise OSError where a file of this size would leave others short of memory."""
    with suppress(ConfigError):  # the system does not tell
        if (free := free_bytes()) < _FREE_TIMES * size_bytes:
            raise OSError(f"{size_bytes:,} bytes of {free:,} that are free: expected {_FREE_TIMES} times as many")


class _File:
    """A mapped file of a step, in the form of a checkpoint's part, with a label before its arrays."""

    def __init__(self, path: Path, member: str, state: State, run: Manifest) -> None:
        tensors = {_LABEL: np.array(_NONE, dtype=np.int64), **tensors_of(state)}
        header = header_of(slots_of(tensors), {**metadata_of(Part(member, 0, state)), _RUN: run.to_json()})
        memory = make_mapped(path, len(header) + sum(values.nbytes for values in tensors.values()))
        memory[: len(header)] = np.frombuffer(header, dtype=np.uint8)
        self.arrays: dict[str, NDArray[Any]] = {}
        start = len(header)
        for name, values in tensors.items():
            stop = start + values.nbytes
            self.arrays[name] = memory[start:stop].view(values.dtype).reshape(values.shape)
            np.copyto(self.arrays[name], values)
            start = stop
        self.label = self.arrays[_LABEL]
        self.step, self.ended = -1, 0


def labels_of(folder: Path, member: str) -> frozenset[Label]:
    """The steps that a member holds, or held when its process ended; none where nothing can be read."""
    found = set()
    for place in range(MOST_HELD):
        with suppress(CheckpointError), open_part(_path(folder, member, place)) as stored:
            found.add(_label(stored))
    return frozenset(found - {Label(*_NONE)})


def held_in(folder: Path) -> dict[str, frozenset[Label]]:
    """The steps of all members that hold some in a folder, by their names."""
    members = set()
    for path in folder.glob("[0-9]-*"):
        with suppress(CheckpointError), open_part(path) as stored:
            members.add(stored.member)
    return {member: labels_of(folder, member) for member in members}


def read_held(folder: Path, member: str, label: Label) -> State:
    """The state of a member behind a step, of memory of its own.

    Raises:
        CheckpointError: it does not hold that step, or no more.
    """
    with _opened(folder, member, label) as stored:
        state = stored.state()
        # Whoever lives, and has not heard yet that all begin again, may still write.
        if _label(stored) == label:
            return state
    raise _not_held(folder, member, label)


def read_run(folder: Path, member: str, label: Label) -> Manifest:
    """The run of which a member holds a step; raises CheckpointError where nothing can be read."""
    with _opened(folder, member, label) as stored:
        return parse_manifest(stored.metadata[_RUN])


@contextmanager
def _opened(folder: Path, member: str, label: Label) -> Iterator[StoredPart]:
    """The file of a member that has a label."""
    with ExitStack() as stack:
        for place in range(MOST_HELD):
            with suppress(CheckpointError):
                stored = stack.enter_context(open_part(_path(folder, member, place)))
                if _label(stored) == label:
                    break
        else:
            raise _not_held(folder, member, label)
        yield stored


def _not_held(folder: Path, member: str, label: Label) -> CheckpointError:
    return CheckpointError(f"{folder}: {member} does not hold step {label.step} any more")


def _label(stored: StoredPart) -> Label:
    generation, step = stored.tensor(_LABEL).tolist()
    return Label(generation, step)


def _path(folder: Path, member: str, place: int) -> Path:
    return folder / f"{place}-{file_name(member)}"
