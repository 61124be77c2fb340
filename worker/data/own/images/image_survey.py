"""Many images looked over before any is trained on: size, colours and range, and all that is wrong with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Final

import structlog

from taihu.core.base.words import counted
from taihu.core.system.clocks import monotonic
from taihu.worker.data.base.defects import Defects, Fault
from taihu.worker.data.base.depth import Depth, DepthError, Values, depth_of, shown_range
from taihu.worker.data.base.statistics import spread_rows
from taihu.worker.data.own.images.bad_image import BadImageError
from taihu.worker.data.own.images.images import another_size, image_threads
from taihu.worker.data.own.images.pixels import Decode, Look, look_at

_MOST_LOOKED_OVER: Final = 4096
_MOST_DECODED: Final = 1000
_SIZES_TOLD: Final = 3
_TOLD_EVERY_S: Final = 2.0
# One of so many files.
_FEW: Final = 20
# Of 8: the 2 that are left tell no picture.
_BITS_OF_BLACK: Final = 6
# Of 8 upper bits: with 4 of them or less 12 bits are used.
_LEAST_UPPER_BITS: Final = 16


@dataclass(frozen=True)
class Survey:
    """Facts that images have in common.

    Attributes:
        shape: height, width and channels: grey where all are.
        depth: the range of pixels of more than 8 bits; None where there are none, or all files tell it.
        notes: words on what a user would not expect.
    """

    shape: tuple[int, int, int]
    depth: Depth | None
    notes: tuple[str, ...]


def survey(
    files: Sequence[str],
    size: tuple[int, int] | None,
    defects: Defects,
    *,
    decode_all: bool,
    known: Depth | None = None,
) -> Survey:
    """Look over the headers of at most 4,096 of the `files`, evenly spread, and pixels of more than 8 bits of 1,000.

    Args:
        files: paths of images.
        size: height and width to which they are resized, if at all.
        defects: takes down what is wrong.
        decode_all: look at all headers and all pixels.
        known: the range of pixels of more than 8 bits that a model was trained with.
    """
    looks = dict(_looks(files, defects, decode_all=decode_all))
    sizes = Counter(look.size for look in looks.values())
    usual = sizes.most_common(1)[0][0] if sizes else (1, 1)
    if size is None:
        _check_sizes(looks, usual, defects)
    _check_colours(looks, defects)
    depth, note = _depth(looks, defects, known)
    moving = sum(look.is_moving for look in looks.values())
    notes = [note] if note else []
    if moving:
        notes.append(f"{counted(moving, 'image')} of several frames or pages: the first is read")
    channels = 1 if all(look.is_grey for look in looks.values()) else 3
    return Survey((*(size or usual), channels), depth, tuple(notes))


def most_looked_over(files: Sequence[str]) -> list[str]:
    """At most 4,096 of the files, evenly spread."""
    return [files[row] for row in spread_rows(len(files), _MOST_LOOKED_OVER)]


def _looks(files: Sequence[str], defects: Defects, *, decode_all: bool) -> Iterator[tuple[str, Look]]:
    rows = spread_rows(len(files), len(files) if decode_all else _MOST_LOOKED_OVER)
    decoded = set(rows[spread_rows(len(rows), len(rows) if decode_all else _MOST_DECODED)].tolist())

    decode: Decode = "all" if decode_all else "deep"

    def look(row: int) -> Look | BadImageError:
        try:
            return look_at(Path(files[row]), decode if row in decoded else "none")
        except BadImageError as error:
            return error

    told_s = monotonic()
    with image_threads() as threads:
        for done, (row, seen) in enumerate(zip(rows.tolist(), threads.map(look, rows.tolist()), strict=True)):
            if monotonic() - told_s > _TOLD_EVERY_S and structlog.is_configured():
                told_s = monotonic()
                structlog.get_logger().info("looking images over", done=done, of=len(rows))
            if isinstance(seen, Look):
                yield files[row], seen
            else:
                defects.of_samples(seen.fault, [files[row]])


def _check_sizes(looks: Mapping[str, Look], usual: tuple[int, int], defects: Defects) -> None:
    others = {file: look.size for file, look in looks.items() if look.size != usual}
    if len(set(others.values())) <= _SIZES_TOLD:
        for file, size in others.items():
            defects.of_samples(another_size(size, usual), [file])
        return
    heights, widths = ({size[axis] for size in others.values()} for axis in (0, 1))
    told = f"heights from {min(heights)} to {max(heights)} and widths from {min(widths)} to {max(widths)}"
    fault = another_size(usual, usual)
    defects.of_samples(Fault(f"{told}, others are {usual[0]}x{usual[1]} (height x width)", fault.remedy), others)


def _check_colours(looks: Mapping[str, Look], defects: Defects) -> None:
    """Pillow reads the upper 8 bits of colours; of images that use the lower ones alone little would be left."""
    deep = {file: look.upper_bits for file, look in looks.items() if look.upper_bits is not None}
    if deep and max(deep.values()) < _LEAST_UPPER_BITS:
        fault = "16-bit colours of which at most 12 bits are used; the upper 8 would be read"
        defects.of_samples(Fault(fault, "save them with 8 bits"), deep)


def _depth(looks: Mapping[str, Look], defects: Defects, known: Depth | None) -> tuple[Depth | None, str]:
    """The range of pixels whose files do not tell it, and words on it."""
    values = {file: look.values for file, look in looks.items() if look.values is not None}
    # Black alone suits every range.
    values = {file: each for file, each in values.items() if each.least or each.most} or values
    if known is not None or not values:
        return known, ""
    ranges: dict[str, Depth] = {}
    without: dict[str, list[str]] = {}
    for file, each in values.items():
        try:
            ranges[file] = depth_of(each)
        except DepthError:
            without.setdefault(each.kind, []).append(file)
    for bad in without.values():
        try:
            depth_of(reduce(Values.beside, [values[file] for file in bad]))
        except DepthError as error:
            defects.of_samples(Fault(str(error), error.remedy), bad)
    if not ranges:
        return None, ""
    forms = Counter(_form(each, values[file]) for file, each in ranges.items())
    usual = forms.most_common(1)[0][0]
    alike = {}
    for file, found in ranges.items():
        if (form := _form(found, values[file])) == usual:
            alike[file] = found
        else:
            defects.of_samples(Fault(f"{form}, others are {usual}", "bring all of them to one kind"), [file])
    for file in _beyond(alike):
        del alike[file]
        fault = Fault(
            f"{values[file].kind} far above those of others", "replace it, or bring all of them to one range"
        )
        defects.of_samples(fault, [file], [f"up to {values[file].most:,g}"])
    together = reduce(Values.beside, [values[file] for file in alike])
    depth = depth_of(together)
    return depth, shown_range(together, depth)


def _beyond(ranges: Mapping[str, Depth]) -> list[str]:
    """Few files beside whose range all others would be black."""
    bits = {file: each.white.bit_length() for file, each in ranges.items()}
    few = max(1, len(bits) // _FEW)
    if len(bits) < 3:
        return []
    usual = sorted(bits.values())[-1 - few]
    return [file for file, each in bits.items() if each >= usual + _BITS_OF_BLACK]


def _form(depth: Depth, values: Values) -> str:
    """Words on what images of one folder have to have in common."""
    if values.kind != "floating-point pixels":
        return values.kind
    return f"{values.kind} of 0 to 1" if depth.white == 1 else f"{values.kind} of 0 to 255 or more"
