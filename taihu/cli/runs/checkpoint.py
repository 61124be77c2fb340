"""`taihu checkpoint`: what checkpoints there are, whether they are whole, and what becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from taihu.core.base.errors import CheckpointError
from taihu.core.base.whole_file import writing
from taihu.core.base.words import aligned, counted
from taihu.core.checkpoint.manifest import SCRIPT
from taihu.core.checkpoint.places import Place, place_of
from taihu.core.checkpoint.resharding import reshard
from taihu.core.checkpoint.store import CheckpointStore, newest_in
from taihu.core.job.run_folder import CHECKPOINTS
from taihu.core.process.results import check_writable
from taihu.local.display.display import human_bytes
from taihu.worker.saved.exporting import export_model

_Folder = Annotated[
    str, typer.Argument(metavar="DIR", help="A run's folder, that of its checkpoints, or one of them; or a URL.")
]


def ls(folder: _Folder) -> None:
    """List the checkpoints of a run that a run can go on from: step, size, and who wrote them.

    \b
    Examples:
      taihu checkpoint ls runs/small_cnn-on-digits-20260728-120005
      taihu checkpoint ls s3://bucket/checkpoints
    """  # noqa: D301
    store = CheckpointStore(_inside(place_of(folder)))
    rows = [("step", "of", "size", "written by", "folder")]
    for step in store.steps():
        manifest = store.open(step).manifest
        writers = f"{counted(manifest.servers, 'server')}, {counted(manifest.workers, 'worker')}"
        rows.append(
            (
                str(step),
                str(manifest.total_steps),
                human_bytes(manifest.size_bytes),
                writers,
                str(store.folder_of(step)),
            )
        )
    if len(rows) == 1:
        raise CheckpointError(f"{store.folder}: no checkpoint is complete there; give the folder of a run")
    for line in aligned(rows):
        typer.echo(line)


def verify(folder: _Folder) -> None:
    """Read all files of checkpoints, and compare them with what their manifests say.

    Ends with exit code 2 if one is damaged.

    \b
    Examples:
      taihu checkpoint verify runs/small_cnn-on-digits-20260728-120005
      taihu checkpoint verify runs/small_cnn-on-digits-20260728-120005/checkpoints/step-000120
    """  # noqa: D301
    store, steps = _store_of(place_of(folder))
    damaged = []
    for step in steps:
        try:
            checkpoint = store.open(step)
            checkpoint.verify()
        except CheckpointError as error:
            damaged.append(str(error))
            typer.echo(f"step {step}: damaged: {error}")
        else:
            files = counted(len(checkpoint.manifest.files), "file")
            typer.echo(f"step {step}: {files}, {human_bytes(checkpoint.manifest.size_bytes)}, whole")
    if damaged:
        raise CheckpointError(f"{counted(len(damaged), 'checkpoint')} of {len(steps)} damaged, first {damaged[0]}")


def export(
    folder: _Folder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
) -> None:
    """Write the model of a checkpoint, the newest that is whole, as `taihu train --save` does.

    Of a PyTorch script all objects of its taihu.torch.state are written: FILE.pt for torch.load, FILE.safetensors
    with all tensors by OBJECT.NAME, or a folder for torch.distributed.checkpoint.

    \b
    Examples:
      taihu checkpoint export runs/small_cnn-on-digits-20260728-120005 model.safetensors
      taihu checkpoint export runs/train-20260728-120005 state.pt
      taihu evaluate runs/small_cnn-on-digits-20260728-120005/checkpoints/step-000120     without a file of its own
    """  # noqa: D301
    check_writable(file)
    checkpoint = newest_in(_inside(place_of(folder)))
    is_script = checkpoint.manifest.settings == SCRIPT
    if is_script:
        from taihu.torch.kept.exporting import export_objects  # noqa: PLC0415 - PyTorch, which others need not have

        export_objects(checkpoint, file)
    else:
        export_model(checkpoint, file)
    what = "the state" if is_script else "the model"
    typer.echo(f"{file}: {what} after {counted(checkpoint.step, 'step')}")


def reshard_checkpoint(
    folder: _Folder,
    out: Annotated[str, typer.Argument(metavar="OUT", help="The folder, or URL, that gets the checkpoint.")],
    servers: Annotated[int, typer.Option(metavar="N", min=0, help="Servers that go on from it; 0 for a ring.")],
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Workers that go on from it.")],
) -> None:
    """Write a checkpoint as another number of servers and workers would have.

    A run goes on from any checkpoint whatever its numbers are; a process then reads the files of others, too. Where
    each host has a disk of its own, give it the file that has its name.

    \b
    Examples:
      taihu checkpoint reshard runs/first/checkpoints/step-000120 moved --servers 3 --workers 2
    """  # noqa: D301
    checkpoint, target = newest_in(_inside(place_of(folder))), place_of(out)
    with writing(target):
        place = reshard(checkpoint, target, servers=servers, workers=workers)
    typer.echo(f"{place}: for {counted(servers, 'server')} and {counted(workers, 'worker')}")


def _inside(folder: Place) -> Place:
    """The folder of a run's checkpoints, where that of the run was given."""
    inside = folder / CHECKPOINTS
    return inside if inside.is_dir() else folder


def _store_of(folder: Place) -> tuple[CheckpointStore, list[int]]:
    """The store, and the steps that are meant."""
    inside = _inside(folder)
    store = CheckpointStore(inside)
    if steps := store.steps():
        return store, steps
    step = CheckpointStore.step_of(inside)
    if step is None:
        raise CheckpointError(f"{inside}: no checkpoint is complete there; give the folder of a run")
    return CheckpointStore(inside.parent), [step]
