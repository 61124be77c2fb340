"""The models and data sets that a job can name, told apart without the engine and without arrays.

The engine's zoo and the loaders of `worker` have one of each name here.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from taihu.core.base.errors import DataError, ModelError

_FileKind = Literal["arrays", "table", "text"]
MODEL_NAMES: Final = (
    "small_cnn",
    "cifar10_quick",
    "resnet20",
    "vgg16_cifar",
    "alexnet",
    "alexnet_lrn",
    "vgg16",
    "googlenet",
    "resnet50",
    "mlp",
    "small_gpt",
)
DEFAULT_MODEL: Final = "small_cnn"
_SYNTHETIC: Final = "synthetic"
TEXT_DATA: Final = "python-source"
# Text is read byte by byte.
TOKENS: Final = 256
DATA_NAMES: Final = ("digits", "fashion-mnist", "cifar10", TEXT_DATA, f"{_SYNTHETIC}:CxHxW")
_OWN_MODEL: Final = "path/to/file.py:function"
_FORM: Final = "synthetic:CxHxW[:classes=K][:samples=N], for example synthetic:3x32x32:classes=10:samples=2048"
_MOST_BYTES: Final = 4 << 30
OWN_DATA: Final = "FILE.npz, FILE.csv, FILE.parquet, FILE.txt, ./FOLDER or FILE.py:function"
_DATA_FILES: Final[Mapping[str, _FileKind]] = MappingProxyType(
    {".npz": "arrays", ".csv": "table", ".tsv": "table", ".parquet": "table", ".txt": "text"}
)


@dataclass(frozen=True)
class SyntheticData:
    """The data of `synthetic:CxHxW[:classes=K][:samples=N]`; there are a quarter as many test images."""

    shape: tuple[int, int, int]  # H, W, C
    classes: int
    samples: int

    @property
    def test_samples(self) -> int:
        """Number of test images."""
        return max(1, self.samples // 4)


@dataclass(frozen=True)
class OwnData:
    """Place of data of the user's own: a function, a file of arrays, a table, text, or a folder of any of them.

    `path` is relative to the current folder as long as the name was; `~` is expanded. `function` is empty but for
    functions.
    """

    kind: Literal["function", "arrays", "table", "text", "folder"]
    path: Path
    function: str = ""


_BUILT_IN: Final = MappingProxyType(
    {
        "digits": SyntheticData((8, 8, 1), 10, 1437),
        "fashion-mnist": SyntheticData((28, 28, 1), 10, 60_000),
        "cifar10": SyntheticData((32, 32, 3), 10, 50_000),
    }
)


def check_model_name(name: str) -> None:
    """Accept a model of the zoo, and everything of the form `FILE.py:function`, `FILE.json` or `FILE.prototxt`.

    Raises:
        ModelError: it is neither; the nearest name is suggested.
    """
    if name not in MODEL_NAMES and ":" not in name and layers_file(name) is None and net_file(name) is None:
        near = _nearest(name, MODEL_NAMES)
        hint = f"did you mean {near}? " if near else ""
        own = f"{_OWN_MODEL} or a network of Caffe, path/to/net.prototxt"
        raise ModelError(f"unknown model {name}; {hint}known are {', '.join(MODEL_NAMES)}, or give {own}")


def layers_file(name: str) -> Path | None:
    """The file of layer definitions that `path/to/layers.json` names, None for other names."""
    return Path(name).expanduser() if name.endswith(".json") else None


def net_file(name: str) -> Path | None:
    """The file of a network of Caffe that `path/to/net.prototxt` names, None for other names.

    Raises:
        ModelError: there is no such file.
    """
    if not name.endswith(".prototxt"):
        return None
    path = Path(name).expanduser()
    if not path.is_file():
        raise ModelError(f"model file {path} does not exist; give a network of Caffe's")
    return path


def own_model(name: str) -> tuple[Path, str] | None:
    """File and function of a model of the user's own, None for one of the zoo.

    Raises:
        ModelError: there is no such file.
    """
    file, separator, function = name.rpartition(":")
    if not separator:
        return None
    path = Path(file).expanduser()
    if not path.is_file():
        raise ModelError(f"model file {path} does not exist; give {_OWN_MODEL}")
    return path, function


def check_data_name(name: str) -> None:
    """Accept a data set whose loader is known, a synthetic one that can be made, and what names a file or folder.

    Raises:
        DataError: it is none of them; the nearest name is suggested.
    """
    if name.partition(":")[0] == _SYNTHETIC:
        parse_synthetic(name)
    elif name not in DATA_NAMES and own_data(name) is None:
        near = _nearest(name.lower(), DATA_NAMES)
        hint = f": did you mean {near}?" if near else ""
        if Path(name).is_dir():
            hint = f": is the folder meant? then write ./{name}"
        raise DataError(f"unknown data set {name!r}{hint}; known: {', '.join(DATA_NAMES)}; your own: {OWN_DATA}")


def own_data(name: str) -> OwnData | None:
    """Data of the user's own that a name stands for, by its form alone; None for names of other forms.

    `path/to/file.py:function` is a function. A name that ends in .npz holds arrays; one in .csv or .tsv (perhaps with
    .gz, .bz2 or .xz) or .parquet a table; one in .txt (perhaps with .gz) is text. Every other name with a slash is a
    folder, as are `.`, `..` and `~`.
    """
    if not name.isprintable():
        return None
    file, separator, function = name.rpartition(":")
    if separator and file.endswith(".py") and function.isidentifier():
        return OwnData("function", _expanded(file), function)
    kind = _file_kind(name)
    if kind is not None:
        return OwnData(kind, _expanded(name))
    if name in {".", "..", "~"} or ("/" in name and not separator):
        return OwnData("folder", _expanded(name))
    return None


def _file_kind(name: str) -> _FileKind | None:
    """The kind of data in a file by its name; tables may be packed in more ways than texts."""
    packed = next((each for each in (".gz", ".bz2", ".xz") if name.lower().endswith(each)), "")
    kind = _DATA_FILES.get(Path(name[: len(name) - len(packed)]).suffix.lower())
    return kind if packed in {"", ".gz"} or kind == "table" else None


def shared_data_name(name: str) -> str:
    """The part of `data.name` that the members of a run must have in common: of a file or folder its own name.

    It may lie elsewhere on every host.
    """
    own = own_data(name)
    if own is None:
        return name
    last = own.path.name
    return f"{last}:{own.function}" if own.kind == "function" else f"{own.kind} {last}"


def _expanded(path: str) -> Path:
    # Not `expanduser`: it fails where there is no home.
    return Path(os.path.expanduser(path))  # noqa: PTH111


def parse_synthetic(name: str) -> SyntheticData:
    """The data that a synthetic data set's name asks for: 10 classes and 2,048 samples unless it says otherwise.

    Raises:
        DataError: `name` does not have the form `synthetic:CxHxW[:classes=K][:samples=N]`, or asks for more than
            4 GiB.
    """
    shape, *options = name.removeprefix(_SYNTHETIC).removeprefix(":").split(":")
    sizes = re.fullmatch(r"(\d{1,9})x(\d{1,9})x(\d{1,9})", shape)
    if sizes is None:
        raise DataError(f"{name}: no image shape; expected {_FORM}")
    numbers = {"classes": 10, "samples": 2048}
    for option in options:
        parsed = re.fullmatch(r"(classes|samples)=(\d{1,9})", option)
        if parsed is None:
            raise DataError(f"{name}: unknown option {option!r}; expected {_FORM}")
        numbers[parsed[1]] = int(parsed[2])
    channels, height, width = map(int, sizes.groups())
    if not (channels and height and width and numbers["classes"] and numbers["samples"]):
        raise DataError(f"{name}: every number must be at least 1; expected {_FORM}")
    data = SyntheticData((height, width, channels), numbers["classes"], numbers["samples"])
    pixels = math.prod(data.shape)
    size_bytes = (data.classes + data.samples + data.test_samples) * pixels
    if size_bytes > _MOST_BYTES:
        fitting = max(1, (_MOST_BYTES // pixels - data.classes) * 4 // 5)
        raise DataError(f"{name}: {size_bytes >> 20} MiB of images, at most 4096; try samples={fitting}")
    return data


def built_in_data(name: str) -> SyntheticData | None:
    """Shape and classes of one of taihu's own data sets, as if it were synthetic; None for one of the user's."""
    if name.partition(":")[0] == _SYNTHETIC:
        return parse_synthetic(name)
    return _BUILT_IN.get(name)


def _nearest(name: str, known: Sequence[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.5)), None)
