"""Files of a folder that a saved model can be given: by what it was trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from taihu.core.base.errors import DataError
from taihu.worker.data.base.folder_files import IMAGES, Wanted, find_files, words_on
from taihu.worker.saved.metadata import SavedModel

_MOST_TOLD: Final = 4
_ARRAYS: Final = frozenset({".npy", ".npz"})
_TABLES: Final = frozenset({".csv", ".tsv", ".parquet"})


def files_for(saved: SavedModel) -> Wanted:
    """Files that hold what the model takes."""
    if saved.targets == "tokens":
        return Wanted(frozenset({".txt"}))
    if saved.columns:
        return Wanted(_TABLES, packings=(".gz", ".bz2", ".xz"))
    if len(saved.input_shape) == 3:
        return Wanted(IMAGES.endings | _ARRAYS, IMAGES.beginnings)
    return Wanted(_ARRAYS)


def in_folders(places: Sequence[Path], saved: SavedModel) -> Iterator[tuple[list[Path], str]]:
    """Each of `places`, or where it is a folder the files below it in the order of their paths.

    With each goes a line on files of the folder that are left out; it is empty where there are none.

    Raises:
        DataError: a folder cannot be read, or has no file that the model takes.
    """
    wanted = files_for(saved)
    for place in places:
        if not place.is_dir():
            yield [place], ""
            continue
        remedy = (
            f"the model takes {', '.join(sorted(wanted.endings)[:4])}{', ...' if len(wanted.endings) > 4 else ''}"
        )
        left_out: Counter[str] = Counter()
        files = find_files(place, wanted, left_out, remedy)
        if not files:
            raise DataError(f"{place}: no files to predict; {words_on(left_out) or 'it is empty'}; {remedy}")
        yield [Path(file) for file in files], f"{place}: {words_on(left_out)}" if left_out else ""
