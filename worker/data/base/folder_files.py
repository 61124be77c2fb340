"""Files of folders that are looked for by their names; whatever else lies there is counted."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from taihu.core.base.errors import DataError
from taihu.core.base.words import counted

# All that Pillow decodes by itself.
_IMAGE_ENDINGS: Final = frozenset(
    f".{ending}"
    for endings in (
        ("png", "apng", "jpg", "jpeg", "jpe", "jfif", "jif", "webp", "gif", "bmp", "dib", "tif", "tiff", "avif"),
        ("ppm", "pgm", "pbm", "pnm", "pfm", "jp2", "j2k", "jpx", "tga", "ico", "pcx", "sgi", "qoi"),
    )
    for ending in endings
)
# Left by systems beside what people put there.
_OF_SYSTEMS: Final = frozenset({"__macosx", "thumbs.db", "desktop.ini", "ehthumbs.db", "@eadir", "$recycle.bin"})
# First bytes of images, for files whose names have no ending.
_BEGINNINGS: Final = re.compile(
    rb"\xff\xd8\xff|\x89PNG|GIF8[79]a|BM|RIFF....WEBP|II\*\0|MM\0\*|P[1-6f]\s|\0\0\0\x0cjP|\xff\x4f\xff\x51|....ftypavi",
    re.DOTALL,
)
_KINDS_TOLD: Final = 6


@dataclass(frozen=True)
class Wanted:
    """Files that are looked for: by the `endings` of their names, and of those without by their first bytes.

    Behind an ending may stand one of the `packings`.
    """

    endings: frozenset[str]
    beginnings: re.Pattern[bytes] | None = None
    packings: tuple[str, ...] = ()

    def kind(self, entry: os.DirEntry[str]) -> str:
        """The kind of a file that is not wanted, in a word; a broken link is, and told when it is read."""
        try:
            if not entry.is_file() and not entry.is_symlink():
                return "no files (pipes, sockets)"
        except OSError:
            pass  # a link that leads to itself
        name = entry.name.lower()
        packing = next(filter(name.endswith, self.packings), "")
        suffix = os.path.splitext(name.removesuffix(packing))[1]  # noqa: PTH122 - of every file
        if suffix in self.endings:
            return ""
        if suffix:
            return suffix
        return "" if self.beginnings is not None and _begins(entry.path, self.beginnings) else "without an ending"


IMAGES: Final = Wanted(_IMAGE_ENDINGS, _BEGINNINGS)


def find_files(folder: Path, wanted: Wanted, left_out: Counter[str], remedy: str, *, below: bool = True) -> list[str]:
    """Files of `folder` and, with `below`, of its folders, in the order of their paths; others are counted by kind.

    Links are followed, each folder once.

    Raises:
        DataError: a folder cannot be read.
    """
    return sorted(_files(folder, wanted, left_out, remedy, below=below))


def words_on(left_out: Counter[str]) -> str:
    """Words on what is left out, for example `37 files left out: 30 .txt, 7 hidden`; nothing where nothing is."""
    if not left_out:
        return ""
    kinds = [f"{count:,} {kind}" for kind, count in left_out.most_common(_KINDS_TOLD)]
    more = "" if len(left_out) <= _KINDS_TOLD else ", ..."
    return f"{counted(left_out.total(), 'file')} left out: {', '.join(kinds)}{more}"


def is_hidden(name: str) -> bool:
    """Whether a name is that of a hidden file or folder, or of one that systems put beside the user's."""
    return name[0] == "." or name.lower() in _OF_SYSTEMS


def entries(folder: Path, remedy: str) -> list[os.DirEntry[str]]:
    """All that lies in a folder, in the order of names.

    Raises:
        DataError: it cannot be read.
    """
    try:
        with os.scandir(folder) as listed:
            return sorted(listed, key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"data folder {folder}: cannot be read ({error.strerror}); {remedy}") from None


def _files(folder: Path, wanted: Wanted, left_out: Counter[str], remedy: str, *, below: bool) -> Iterator[str]:
    folders, seen = [folder], set()
    while folders:
        folder = folders.pop()
        status = os.stat(folder)  # noqa: PTH116 - of very many
        if (status.st_dev, status.st_ino) in seen:
            left_out["folders linked again"] += 1
            continue
        seen.add((status.st_dev, status.st_ino))
        for entry in entries(folder, remedy):
            if is_hidden(entry.name):
                left_out["hidden"] += 1
            elif is_folder(entry):
                folders += [Path(entry.path)] if below else []
            elif kind := wanted.kind(entry):
                left_out[kind] += 1
            else:
                yield entry.path


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry, or what it links to, is a folder."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _begins(path: str, beginnings: re.Pattern[bytes]) -> bool:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - of every file
            return beginnings.match(file.read(16)) is not None
    except OSError:
        return False
