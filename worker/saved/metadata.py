"""Metadata of a saved model's file: data, never code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from taihu.core.base.errors import ModelError
from taihu.core.settings import DataSettings
from taihu.worker.data.base.depth import Depth, Kind
from taihu.worker.data.base.reading import AsTrained, Column, Form, TableReading
from taihu.worker.data.base.statistics import Statistics

LARGEST_SAMPLE: Final = 1 << 26
_FORMAT: Final = 2
LONGEST_TEXT: Final = 4096
LARGEST_METADATA: Final = 1 << 24
_OF_FILES: Final = ("header", "encoding", "decimal")
_LARGEST_SIDE: Final = 1 << 24
_FIRST_FORMAT: Final = ("model", "input_shape", "classes", "data", "steps")


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("text with control characters")
    return text


_Text = Annotated[str, Field(max_length=LONGEST_TEXT), AfterValidator(_printable)]
# Each becomes an input of every row: a table of few bytes would take much memory. Training takes 100.
_Categories = Annotated[tuple[_Text, ...], Field(max_length=1000)]
_Side = Annotated[int, Field(ge=1, le=_LARGEST_SIDE)]


class SavedModel(BaseModel):
    """Facts about the model in a file.

    Attributes:
        format: version of this table.
        model: what built it, a name of the zoo or `path/to/file.py:function`; told, and never executed.
        definition: the layers, see `Layer.definition`; None where some are of the user's own.
        input_shape: of one sample: (height, width, channels), (features,) or (time,).
        outputs: of the last layer.
        targets: whether it tells classes or values, or the token that follows each of a sequence.
        loss: that it was trained for: cross-entropy, mse, bce.
        mean: of the training inputs by channel or feature, in units of the raw inputs; empty if not known.
        scale: standard deviation, like `mean`: the first layer gets (x - mean) / scale.
        offset: what is taken away from raw inputs in float64, before they are rounded to float32, and is part of
            `mean`; empty where nothing is.
        class_names: in the order of the outputs; may be empty.
        columns: of a table that became the features, see `Dataset.columns`.
        depth: kind and white of images of more than 8 bits, see `Dataset.depth`; None where files tell it.
        forms: of these columns, see `Column`; empty in older files, of numbers and texts alone.
        fills: what is put in the place of their missing values, null where nothing is; empty like `forms`.
        decimal: the sign before decimals in tables that do not tell.
        data: the name of the data set that it was trained on.
        steps: that it was trained for.
        job: the tables of the job.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    format: Literal[2] = _FORMAT
    model: _Text
    definition: dict[str, Any] | None = None
    input_shape: Annotated[tuple[_Side, ...], Field(min_length=1, max_length=3)]
    outputs: _Side
    targets: Literal["classes", "values", "tokens"] = "classes"
    loss: Literal["cross-entropy", "mse", "bce"] = "cross-entropy"
    mean: tuple[float, ...] = ()
    scale: tuple[Annotated[float, Field(gt=0)], ...] = ()
    offset: tuple[float, ...] = ()
    class_names: tuple[_Text, ...] = ()
    columns: tuple[tuple[_Text, _Categories], ...] = ()
    depth: tuple[Kind, Annotated[int, Field(ge=1, lt=2**32)]] | None = None
    forms: tuple[Form, ...] = ()
    fills: tuple[float | _Text | None, ...] = ()
    decimal: Literal[".", ","] = "."
    data: _Text
    steps: Annotated[int, Field(ge=0, lt=2**63)]
    job: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if math.prod(self.input_shape) > LARGEST_SAMPLE:
            raise ValueError(f"input_shape {self.input_shape}: expected at most {LARGEST_SAMPLE} values for a sample")
        if len(self.mean) != len(self.scale) or len(self.mean) not in (0, self.input_shape[-1]):
            raise ValueError(
                f"mean and scale: expected {self.input_shape[-1]} values each, seen {len(self.mean)} and "
                f"{len(self.scale)}"
            )
        if len(self.offset) not in (0, len(self.mean)):
            raise ValueError(f"offset: expected {len(self.mean)} values as mean has, seen {len(self.offset)}")
        if len(self.class_names) not in (0, self.classes):
            raise ValueError(f"class_names: expected {self.classes} names, seen {len(self.class_names)}")
        features = sum(len(texts) or 1 for _, texts in self.columns)
        if self.columns and self.input_shape != (features,):
            raise ValueError(f"columns: expected {features} features, seen the input_shape {self.input_shape}")
        if {len(self.forms), len(self.fills)} - {0, len(self.columns)}:
            raise ValueError(f"forms and fills: expected {len(self.columns)}, as there are columns")
        for column in self.reading.columns:
            suits = column.fill is None or isinstance(column.fill, str) is bool(column.texts)
            if (column.form == "text") is not bool(column.texts) or not suits:
                raise ValueError(f"column {column.name}: its form, texts and fill do not fit together")
        return self

    @property
    def classes(self) -> int:
        """The number of classes that the outputs tell apart; 0 for values. One output tells two."""
        if self.targets == "values":
            return 0
        return 2 if self.loss == "bce" else self.outputs

    @property
    def reading(self) -> TableReading:
        """The reading of a table's columns."""
        forms = self.forms or tuple("text" if texts else "number" for _, texts in self.columns)
        fills = self.fills or (None,) * len(self.columns)
        columns = zip(self.columns, forms, fills, strict=True)
        made = tuple(Column(name, form, texts, fill) for (name, texts), form, fill in columns)
        return TableReading(made, self.decimal, wide=bool(self.offset))

    @property
    def as_trained(self) -> AsTrained:
        """The reading of the data that the model was trained on."""
        return AsTrained(self.pixel_range, self.reading if self.columns else None, self.class_names)

    @property
    def table_settings(self) -> DataSettings:
        """The settings that say how a CSV file is written: those of training, where the job has such."""
        told = self.job.get("data")
        known = told if isinstance(told, dict) else {}
        try:
            return DataSettings.model_validate({key: known[key] for key in _OF_FILES if key in known})
        except ValidationError:
            return DataSettings()

    @property
    def statistics(self) -> Statistics:
        """The normalisation of inputs, whose mean is that of inputs less the offset."""
        offset = np.array(self.offset) if self.offset else None
        mean = np.array(self.mean) - (0.0 if offset is None else offset)
        return Statistics(mean.astype(np.float32), np.array(self.scale, np.float32), offset)

    @property
    def pixel_range(self) -> Depth | None:
        """The range of images of more than 8 bits, as in training."""
        return None if self.depth is None else Depth(*self.depth)

    def to_metadata(self) -> str:
        """The text that `parse_metadata` reads."""
        return json.dumps(self.model_dump(mode="json"), allow_nan=False)


def parse_metadata(text: str) -> SavedModel:
    """Read the text of `SavedModel.to_metadata`, or of the first format, which had no definitions.

    Raises:
        ModelError: it says something else; nothing that it says is larger than a model can be.
    """
    if len(text) > LARGEST_METADATA:
        raise ModelError(f"its metadata has {len(text):,} characters, expected at most {LARGEST_METADATA:,}")
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ModelError("its metadata is no table")
        known = fields.get("format", 1)
        if isinstance(known, int) and known > _FORMAT:
            raise ModelError(f"written by a newer taihu (format {known}, this one reads up to {_FORMAT}); update it")
        if "format" not in fields:
            text = json.dumps(_from_first_format(fields))
        return SavedModel.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"][:2])
        raise ModelError(f"its metadata is damaged: {where} {first['msg']}".replace("  ", " ")) from None
    except (ValueError, RecursionError):
        raise ModelError("its metadata is damaged: not JSON") from None


def _from_first_format(fields: Mapping[str, object]) -> dict[str, object]:
    if missing := sorted(set(_FIRST_FORMAT) - fields.keys()):
        raise ModelError(f"its metadata lacks {missing[0]}")
    return {
        "model": fields["model"],
        "input_shape": fields["input_shape"],
        "outputs": fields["classes"],
        "data": fields["data"],
        "steps": fields["steps"],
    }
