"""The argument of commands that take a saved model."""

from __future__ import annotations

from typing import Annotated

import typer

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL.safetensors", help="What `taihu train --save` wrote; or a checkpoint's folder, or its URL."
    ),
]
