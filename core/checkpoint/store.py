"""The folder of a run's checkpoints: committed by their manifest, the newest kept, older ones removed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from taihu.core.base.errors import CheckpointError
from taihu.core.checkpoint.manifest import MANIFEST, Manifest
from taihu.core.checkpoint.places import Place, inside, remove_folder, write_durably
from taihu.core.checkpoint.reading import Checkpoint, open_checkpoint
from taihu.core.job.sizes import are_of_one_run

_STEP: Final = re.compile(r"step-([0-9]{1,15})")


class CheckpointStore:
    """The checkpoints in `folder`, each in a folder of its own, `step-000120`.

    Whoever asks what there is gets CheckpointError where that cannot be found out: a store that does not answer is
    not an empty one.
    """

    def __init__(self, folder: Place) -> None:
        self.folder = folder

    def folder_of(self, step: int) -> Place:
        """The folder of the checkpoint of `step`, whether or not it is there."""
        return self.folder / f"step-{step:06d}"

    @staticmethod
    def step_of(folder: Place) -> int | None:
        """The step of a checkpoint, by the name of its folder; None where that is none."""
        match = _STEP.fullmatch(folder.resolve().name)
        return None if match is None else int(match[1])

    def open(self, step: int) -> Checkpoint:
        """The checkpoint of `step`; raises CheckpointError where there is none, or its manifest is damaged."""
        return open_checkpoint(self.folder_of(step))

    def commit(self, manifest: Manifest) -> None:
        """All files of the checkpoint are durable: from now on it counts.

        Raises:
            OSError: the manifest cannot be written.
        """
        with write_durably(self.folder_of(manifest.step) / MANIFEST) as file:
            file.write(manifest.to_json().encode())

    def steps(self) -> list[int]:
        """Steps of the checkpoints that count, the newest first."""
        try:
            return sorted((step for step, path in self._folders() if (path / MANIFEST).is_file()), reverse=True)
        except OSError as error:
            why = f"cannot be read: {error.strerror or error}"
            raise CheckpointError(f"{self.folder}: {why}; is the store there, and may it be read?") from None

    def prune(self, keep: int, upto: int) -> None:
        """Remove all but the newest `keep` up to a step that count, and whatever is older; newer ones stay.

        They are on their way or, where the run has gone back to an older one, are there when it comes to them again.
        """
        kept = [step for step in self.steps() if step <= upto][:keep]
        if not kept:
            return
        for step, path in self._folders():
            if step < kept[0] and step not in kept:
                # Without its manifest it does not count any more, however far this gets.
                (path / MANIFEST).unlink(missing_ok=True)
                remove_folder(path)

    def withdraw(self, step: int) -> None:
        """Have a checkpoint count no more before its parts are written anew; nothing if there is none.

        Raises:
            OSError: its manifest cannot be removed.
        """
        (self.folder_of(step) / MANIFEST).unlink(missing_ok=True)

    def discard(self, before: int) -> None:
        """Remove what there is of checkpoints of earlier steps that are not complete."""
        for step, path in self._folders():
            if step < before and not (path / MANIFEST).is_file():
                remove_folder(path)

    def newest(self) -> tuple[Checkpoint, list[str]]:
        """The newest one that counts and whose files are what its manifest says, and what is wrong with newer ones.

        Raises:
            CheckpointError: there is none.
        """
        problems: list[str] = []
        for step in self.steps():
            try:
                checkpoint = self.open(step)
                checkpoint.verify()
                return checkpoint, problems
            except CheckpointError as error:
                problems.append(str(error))
        why = "; ".join(problems) if problems else "no checkpoint is complete there"
        raise CheckpointError(f"{self.folder}: nothing to go on from: {why}")

    def going_on(self, settings: Mapping[str, str]) -> Checkpoint | None:
        """The newest one that is whole and has steps left, of a run with these settings; None where there is none.

        Raises:
            CheckpointError: those that are there are damaged, or of other settings.
        """
        problems: list[str] = []
        for step in self.steps():
            try:
                checkpoint = self.open(step)
                if not are_of_one_run(checkpoint.manifest.settings, settings):
                    problems.append(f"{checkpoint.folder} is of a job with other settings")
                elif step < checkpoint.manifest.total_steps:
                    checkpoint.verify()
                    return checkpoint
            except CheckpointError as error:
                problems.append(str(error))
        if problems:
            raise CheckpointError(f"{'; '.join(problems)}; name another checkpoint.dir, or remove it")
        return None

    def whole(self, settings: Mapping[str, str], *, newer_than: int) -> frozenset[int]:
        """Steps later than `newer_than` of the checkpoints that are whole, and of a run with these settings."""
        found = set()
        for step in self.steps():
            with suppress(CheckpointError):
                checkpoint = self.open(step)
                if step > newer_than and are_of_one_run(checkpoint.manifest.settings, settings):
                    checkpoint.verify()
                    found.add(step)
        return frozenset(found)

    def _folders(self) -> Iterator[tuple[int, Place]]:
        if not self.folder.is_dir():
            return
        for path in inside(self.folder):
            step = self.step_of(path)
            if step is not None:
                yield step, path


def newest_in(folder: Place) -> Checkpoint:
    """The checkpoint in `folder`, or the newest of those in it that are not damaged.

    Raises:
        CheckpointError: there is none.
    """
    if (folder / MANIFEST).is_file():
        checkpoint = open_checkpoint(folder)
        checkpoint.verify()
        return checkpoint
    return CheckpointStore(folder).newest()[0]
