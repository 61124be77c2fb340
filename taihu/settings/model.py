"""`[model]`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from taihu.names import check_model_name
from taihu.settings.base import Section, accepted_by

__all__ = ["ModelSettings"]


class ModelSettings(Section):
    """`[model]`: what is trained."""

    name: Annotated[str, accepted_by(check_model_name)] = Field(
        default="small_cnn", description="a model of the zoo, or path/to/file.py:function for one of your own"
    )
