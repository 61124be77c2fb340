"""`[data]`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from taihu.core.model.names import check_data_name
from taihu.core.settings.base import FilePath, Form, Section, accepted_by


def _known(encoding: str) -> str:
    try:
        "".encode(encoding)
    except (LookupError, ValueError):
        raise ValueError(f"expected an encoding that Python knows, for example 'cp1252', got {encoding!r}") from None
    return encoding


_Size = Annotated[
    str, Form(r"[1-9][0-9]{0,3}x[1-9][0-9]{0,3}", "HEIGHTxWIDTH in pixels, each from 1 to 9999", "64x64")
]

_Encoding = Annotated[
    str,
    Form(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", "the name of an encoding that Python knows", "cp1252"),
    AfterValidator(_known),
]


def _listed(value: Any) -> Any:
    """One text as a list of it, and a table as `key=value` each: as people write them."""
    if isinstance(value, dict):
        return [f"{key}={each}" for key, each in value.items()]
    return [str(value)] if isinstance(value, str | int | float) and not isinstance(value, bool) else value


def _with_columns(fills: tuple[str, ...]) -> tuple[str, ...]:
    if (columns := [fill.rpartition("=")[0] for fill in fills]) and len(set(columns)) < len(columns):
        raise ValueError(f"expected one value for a column, got {', '.join(fills)}")
    return fills


_Columns = Annotated[tuple[str, ...], Field(strict=False), BeforeValidator(_listed)]
_Fills = Annotated[_Columns, AfterValidator(_with_columns)]


class DataSettings(Section):
    """`[data]`: the data set, where its files lie, and what is done to its inputs.

    `name` may be a file or folder of the user's own (docs/data.md): arrays (.npz, or a folder of .npy), a table (.csv
    or .parquet), text (.txt, or a folder of them), a folder of images by class, or a function in a Python file. Where
    such data have no part for testing, `test_share` of them, drawn by `split_seed`, becomes that part. Images are
    brought to the size `resize`. Text is cut into sequences of `sequence` bytes. With `normalise` auto inputs lose
    the mean of the training inputs and are divided by their standard deviation, per channel of images and per feature
    of vectors; tokens of text stay as they are. `target` is the column of a table that is to be predicted, by default
    the last one; columns `drop` are left out, missing values are filled by `fill`, and `texts` are columns of texts
    whatever they look like. `header`, `encoding` and `decimal` say of CSV files what these do not show. At most
    `skip_bad` rows with a defect, or images that cannot be decoded, are left out. `task` says whether targets are
    classes or values; by default whole numbers and texts are classes, floating-point numbers values.
    """

    name: Annotated[str, accepted_by(check_data_name)] = Field(
        default="digits",
        description="the data set: digits, fashion-mnist, cifar10, python-source, synthetic:CxHxW, or a file or "
        "folder of your own: FILE.npz, FILE.csv, FILE.parquet, FILE.txt, ./FOLDER, FILE.py:function",
    )
    path: FilePath | None = Field(default=None, description="the folder of the data set's files")
    augment: Literal["none", "flip", "crop-flip"] = Field(
        default="none", description="what is done to training images at random: mirrored, or shifted and mirrored"
    )
    resize: _Size | None = Field(
        default=None, description="HEIGHTxWIDTH to which images are resized, for example 64x64"
    )
    normalise: Literal["auto", "none"] = Field(
        default="auto",
        description="whether inputs are brought to mean 0 and deviation 1, per channel of images or per feature",
    )
    test_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.2, description="share of your own data that is set apart for testing where they have no such part"
    )
    split_seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        default=0, description="draws the part for testing: the same in every run, whatever train.seed is"
    )
    target: str | None = Field(default=None, description="the column of a table to predict; by default its last one")
    drop: _Columns = Field(default=(), description="columns of a table that are left out: ['id', 'name']")
    fill: _Fills = Field(
        default=(),
        description="what missing values of a table become: 'mean', 'median', 'most' (the most frequent one) or a "
        "value; of one column 'price=mean'",
    )
    texts: _Columns = Field(
        default=(), description="columns of a table that are texts, though they may look like numbers: ['zip']"
    )
    header: bool | None = Field(
        default=None,
        description="whether the first line of a CSV file has the names of its columns; by default told by it",
    )
    encoding: _Encoding | None = Field(
        default=None, description="how a CSV file writes characters, by default utf-8, or what its first bytes say"
    )
    decimal: Literal["auto", ".", ","] = Field(
        default="auto", description="what stands before the decimals of numbers in a CSV file; auto: told by them"
    )
    skip_bad: Annotated[int, Field(ge=0, le=10**9)] = Field(
        default=0, description="how many bad samples may be left out: rows with a defect, images that are damaged"
    )
    sequence: Annotated[int, Field(ge=1, le=65536)] = Field(
        default=128, description="bytes of text in a sample: a model tells at each place which one follows"
    )
    task: Literal["auto", "classes", "values"] = Field(
        default="auto", description="what targets are; auto: whole numbers and texts are classes, others values"
    )

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width that `resize` asks for."""
        if self.resize is None:
            return None
        height, _, width = self.resize.partition("x")
        return int(height), int(width)

    def samples_for_testing(self, samples: int) -> int:
        """The number of samples, of at least 2, set apart where the data have no part for testing: 1 to all but 1."""
        return min(samples - 1, max(1, round(samples * self.test_share)))
