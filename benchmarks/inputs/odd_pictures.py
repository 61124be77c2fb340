"""Folders of odd pictures against what a viewer shows: `python -m benchmarks odd_pictures`.

Each case is a folder of two classes with six pictures: of one of about 60 formats, modes and depths, each with an
orientation of its own, under one of the endings of its format, another one or none, in folders below, beside what
systems and people leave there, some damaged, some resized. They are read as training reads them. Lossless pictures
are compared with what was written, turned by NumPy; others with what Pillow's own functions make of the file. A case
is right, or refused in one line that names the file; what Pillow cannot read has to be refused, or left out and
counted where data.skip_bad allows it. Prints a row for each format, and what went wrong; the exit code tells.

Examples:
  python -m benchmarks odd_pictures
  python -m benchmarks odd_pictures --count 2000 --seed 7
  python -m benchmarks odd_pictures --only "tiff of 12 bits" --count 20
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.inputs.pictures import TURNS, WAYS, Way, shown_by_pillow
from taihu.core.base.errors import DataError
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset, Examples
from taihu.worker.data.load import load_dataset

__all__ = ["OUTCOMES", "Case", "main", "outcome_of"]

OUTCOMES: Final = ("right", "refused", "wrong")
_DAMAGES: Final = ("cut", "empty", "junk", "flipped", "another size")
_BESIDE: Final = (
    "cat/notes.txt",
    "cat/._1.png",
    "__MACOSX/cat/1.png",
    "cat/Thumbs.db",
    ".DS_Store",
    "cat/labels.json",
)
Pixels = NDArray[Any]


@dataclass
class Case:
    """A folder of pictures that was drawn.

    Attributes:
        name: of the way in which they are written.
        folder: where they lie.
        shown: what a viewer shows of each, (height, width, channels); None where it cannot be read.
        resize: the size that is asked for, or None.
        skip_bad: how many may be left out.
        beside: how many files are to be counted as left out.
        words: on what was drawn, for who looks into a case.
    """

    name: str
    folder: Path
    shown: dict[str, Pixels | None] = field(default_factory=dict)
    resize: tuple[int, int] | None = None
    skip_bad: int = 0
    beside: int = 0
    words: list[str] = field(default_factory=list)

    @property
    def way(self) -> Way:
        """The way in which its pictures are written."""
        return WAYS[self.name]

    @property
    def bad(self) -> int:
        """The number of files that have to be refused."""
        return sum(each is None for each in self.shown.values())


def drawn(rng: np.random.Generator, name: str, folder: Path) -> Case:
    """Write a case of the way called `name` into `folder`."""
    case = Case(name, folder)
    way = case.way
    height, width = (int(side) for side in rng.integers(1, 40, 2)) if rng.random() < 0.9 else (1, 300)
    width += 1  # for black and white
    if rng.random() < 0.4:
        case.resize = tuple(int(side) for side in rng.integers(1, 30, 2))  # type: ignore[assignment]
        case.words.append(f"resized to {case.resize}")
    below = ["", "2024/", "a/b/"][int(rng.integers(3))]
    for number in range(6):
        orientation = int(rng.integers(1, 9)) if way.turns else 1
        path = folder / ("cat", "dog")[number % 2] / f"{below}{number}{_ending(rng, case)}"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = _picture(rng, (width, height) if orientation > 4 else (height, width))
        way.write(rng, pixels, orientation, path)
        case.shown[str(path)] = _shown(case, path, pixels, orientation)
    if rng.random() < 0.3:
        _damage(rng, case)
    if rng.random() < 0.3:
        for each in _BESIDE:
            (folder / each).parent.mkdir(parents=True, exist_ok=True)
            (folder / each).write_bytes(b"x")
        case.beside = len(_BESIDE)
    return case


def _picture(rng: np.random.Generator, size: tuple[int, int]) -> Pixels:
    """Smooth colours with some noise and transparent parts, from black to white."""
    height, width = size
    rows, columns = np.mgrid[0:height, 0:width]
    waves = rng.uniform(0.05, 0.5, (4, 2))
    pixels = np.stack([np.sin(rows * a + columns * b + 6 * b) * 120 + 128 for a, b in waves], axis=2)
    pixels += rng.normal(0, 4, pixels.shape)
    pixels = pixels.clip(0, 255).astype(np.uint8)
    pixels[0, 0], pixels[-1, -1, :3] = 255, 0
    pixels[-1, -1, 3] = 0 if rng.random() < 0.5 else 255
    return pixels


def _ending(rng: np.random.Generator, case: Case) -> str:
    if rng.random() < 0.1:
        case.words.append("the ending of another format")
        return ".png"
    return str(rng.choice(case.way.endings))


def _shown(case: Case, path: Path, pixels: Pixels, orientation: int) -> Pixels | None:
    way = case.way
    if way.refused:
        return None
    if not way.exact or (case.resize is not None and "bits" not in case.name and not case.name.startswith("tiff of")):
        return shown_by_pillow(path, way, case.resize)
    shown = pixels[..., :1] if way.grey else pixels[..., :3]
    if way.alpha:
        share = pixels[..., 3:] / 255
        shown = np.rint(shown * share + 255 * (1 - share))
    turned: Pixels = TURNS[orientation](shown).astype(np.float64)
    return turned if case.resize is None else _resized(turned, case.resize)


def _is_deep(case: Case) -> bool:
    return "bits" in case.name or case.name.startswith("tiff of")


def _resized(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    from PIL import Image  # noqa: PLC0415 - what is resized is an array

    bands = [
        Image.fromarray(pixels[..., each].astype(np.uint8)).resize(size[::-1], Image.Resampling.BILINEAR)
        for each in range(pixels.shape[2])
    ]
    return np.stack([np.asarray(band, np.float64) for band in bands], axis=2)


def _damage(rng: np.random.Generator, case: Case) -> None:
    """Damage one of the files; whether it can still be read, Pillow says."""
    path = Path(str(rng.choice(sorted(case.shown))))
    kind = str(rng.choice(_DAMAGES))
    if kind == "flipped" and (_is_deep(case) or case.way.grey):
        kind = "cut"  # Pillow's own functions show deep pixels as they are not, and palettes may get colours
    content = path.read_bytes()
    case.words.append(f"{path.name}: {kind}")
    case.skip_bad = int(rng.integers(2))
    if kind == "another size":
        if case.resize is None and case.shown[str(path)] is not None:
            case.way.write(rng, _picture(rng, (50, 51)), 1, path)
            case.shown[str(path)] = None
        return
    if kind == "flipped":
        place = int(rng.integers(len(content)))
        content = content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]
    path.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "junk": b"junk" * 9}.get(kind, content))
    if not path.suffix and kind in {"empty", "junk"}:
        del case.shown[str(path)]  # no image by its first bytes: counted
        case.beside += 1
    else:
        shown = None if _is_deep(case) else _after(case, path)
        as_others = shown is not None and shown.shape == next(
            each.shape for each in case.shown.values() if each is not None
        )
        case.shown[str(path)] = shown if as_others else None


def _after(case: Case, path: Path) -> Pixels | None:
    try:
        return shown_by_pillow(path, case.way, case.resize)
    except Exception:  # decoders raise whatever they like
        return None


def outcome_of(case: Case) -> tuple[str, str]:
    """One of `OUTCOMES`, and words on it."""
    size = None if case.resize is None else "x".join(map(str, case.resize))
    settings = DataSettings(name=str(case.folder), resize=size, skip_bad=case.skip_bad)
    try:
        dataset = load_dataset(settings)
        read = dict(_read(dataset))
    except DataError as error:
        return _refused(case, str(error))
    except Exception as error:  # whatever else is a fault
        return "wrong", f"{type(error).__name__}: {error}"
    told = " ".join(dataset.told)
    if fault := _fault(case, read, told):
        return "wrong", fault
    return "right", told


def _fault(case: Case, read: dict[str, Pixels], told: str) -> str:
    """Words on what is wrong with pictures that were read; none where nothing is."""
    good = {path for path, shown in case.shown.items() if shown is not None}
    if set(read) != good:
        return f"read {sorted(set(read) - good)}, not {sorted(good - set(read))}"
    for path, pixels in read.items():
        expected: Any = case.shown[path]
        if pixels.shape != expected.shape:
            return f"{path}: {pixels.shape}, expected {expected.shape}"
        if (far := np.abs(pixels - expected).max()) > case.way.tolerance:
            return f"{path}: differs by {far:g}"
    return "files are left out and not told" if case.beside and "left out" not in told else ""


def _refused(case: Case, message: str) -> tuple[str, str]:
    if "\n" in message or str(case.folder) not in message or len(message) > 3000:
        return "wrong", f"names nothing: {message}"
    if case.bad and not any(path in message for path, shown in case.shown.items() if shown is None):
        return "wrong", f"names another file: {message}"
    if case.bad and not case.way.refused and case.bad <= case.skip_bad:
        return "wrong", f"refused, though it may be left out: {message}"
    return "refused", message if case.bad else f"could be read: {message}"


def _read(dataset: Dataset) -> Iterator[tuple[str, Pixels]]:
    parts: Sequence[Examples] = (dataset.train, dataset.test)
    for part in parts:
        whole: Any = part
        out = np.empty((len(part), *dataset.input_shape), np.float32)
        part.read(np.arange(len(part)), out)
        yield from ((whole.inputs.files[row], pixels) for row, pixels in zip(whole.rows, out, strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw cases, and print how each ends; 1 where one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="cases, of six pictures each (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default: 0)")
    parser.add_argument("--only", help="the name of one format, as it is printed")
    asked = parser.parse_args(arguments)
    if asked.only is not None and asked.only not in WAYS:
        parser.error(f"--only {asked.only}: expected one of {', '.join(WAYS)}")
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for number in range(asked.count):
        rng = np.random.default_rng([asked.seed, number])
        name = asked.only or list(WAYS)[number % len(WAYS)]
        with TemporaryDirectory() as folder:
            case = drawn(rng, name, Path(folder))
            outcome, words = outcome_of(case)
        rows[name][outcome] += 1
        if outcome == "wrong" or words.startswith("could be read"):
            print(f"case {number}, {name} ({', '.join(case.words)}): {outcome}: {words}", file=sys.stderr)
    print(f"{'format':<32}" + "".join(f"{each:>9}" for each in OUTCOMES))
    for name, counts in rows.items():
        print(f"{name:<32}" + "".join(f"{counts[each]:>9}" for each in OUTCOMES))
    total = sum(rows.values(), Counter())
    print(f"{'all':<32}" + "".join(f"{total[each]:>9}" for each in OUTCOMES))
    return int(total["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
