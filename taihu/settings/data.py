"""`[data]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from taihu.names import check_data_name
from taihu.settings.base import FilePath, Section, accepted_by

__all__ = ["DataSettings"]


class DataSettings(Section):
    """`[data]`: the data set, where its files lie, and how training images are augmented."""

    name: Annotated[str, accepted_by(check_data_name)] = Field(
        default="digits", description="the data set: digits, fashion-mnist, cifar10, synthetic:CxHxW"
    )
    path: FilePath | None = Field(default=None, description="the folder of the data set's files")
    augment: Literal["none", "flip", "crop-flip"] = Field(
        default="none", description="what is done to training images at random: mirrored, or shifted and mirrored"
    )
