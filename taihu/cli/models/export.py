"""`taihu export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from taihu.cli.models.model_argument import ModelArgument
from taihu.core.base.errors import ConfigError
from taihu.core.checkpoint.places import place_of
from taihu.core.process.options import OwnModelOption
from taihu.core.process.results import check_writable
from taihu.export.to_torch import write_torch
from taihu.worker.saved.prediction import LoadedModel, load_model_file


def export(
    file: ModelArgument,
    to: Annotated[Literal["onnx", "torch"], typer.Option(metavar="onnx|torch", help="The format.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="What is written; torch: a .py file of that name too.")],
    inputs: Annotated[
        Literal["floats", "bytes"],
        typer.Option(metavar="floats|bytes", help="Of ONNX: the type of its input, float32 or uint8."),
    ] = "floats",
    model: OwnModelOption = None,
) -> None:
    """Write a saved model for another library; both take raw inputs, as the data had them, channels last.

    With `--inputs bytes` an ONNX file takes images as decoders give them, uint8; it normalises them itself.

    \b
    Examples:
      taihu export model.safetensors --to onnx --out model.onnx
      taihu export model.safetensors --to onnx --inputs bytes --out model.onnx
      taihu export model.safetensors --to torch --out torch_model.safetensors      and torch_model.py beside it
    """  # noqa: D301
    place = place_of(file)
    if isinstance(place, Path) and out.exists() and place.exists() and out.samefile(place):
        raise ConfigError(f"--out {out}: is the model that is exported; give another name")
    if to == "torch" and inputs != "floats":
        raise ConfigError("--inputs bytes: is for --to onnx; the module of PyTorch takes tensors of any type")
    check_writable(out)
    loaded = load_model_file(place, model)
    written = _write_onnx(loaded, out, inputs) if to == "onnx" else write_torch(loaded, out)
    typer.echo(f"written: {', '.join(map(str, written))}")


def _write_onnx(loaded: LoadedModel, out: Path, inputs: Literal["floats", "bytes"]) -> tuple[Path, ...]:
    try:
        from taihu.export.to_onnx import write_onnx  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError("--to onnx: needs the package onnx; install it with: pip install 'taihu[onnx]'") from None
    return write_onnx(loaded, out, inputs)
