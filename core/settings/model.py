"""`[model]`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from taihu.core.model.names import DEFAULT_MODEL, check_model_name
from taihu.core.settings.base import FilePath, Section, accepted_by


class ModelSettings(Section):
    """`[model]`: what is trained, and from where on.

    With `init_from` worker 0 begins with the values in a file that `taihu train --save` wrote, and brings them to the
    others; where fully connected layers are spread over the workers every worker needs the file. Layers have to be of
    the same shapes; `init_skip` leaves some out, such as the last one where there are other classes.
    """

    name: Annotated[str, accepted_by(check_model_name)] = Field(
        default=DEFAULT_MODEL,
        description="a model of the zoo, path/to/file.py:function for one of your own, or path/to/net.prototxt of "
        "Caffe's; for a table (.csv, .tsv, .parquet) mlp is the default",
    )
    init_from: FilePath | None = Field(
        default=None, description="a saved model whose parameters and running moments training begins with"
    )
    init_skip: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(), description="with init_from: layers that begin anew all the same, for example ['fc2']"
    )
