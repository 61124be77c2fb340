"""`taihu check-model`."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from taihu.core.base.errors import ConfigError, RunError
from taihu.core.process.options import JsonOption
from taihu.core.process.results import check_writable, write_json
from taihu.local.display.display import waiting

if TYPE_CHECKING:
    from taihu.worker.engine.model_check import CheckedModel, PlacedLayer

_COLUMNS = ("layer", "kind", "output", "parameters", "gradients")


def check_model(
    model: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="Your model, or one of the zoo.")],
    input_shape: Annotated[
        str, typer.Option(metavar="CxHxW|N", help="Channels, height and width of images, or a number of features.")
    ] = "3x32x32",
    outputs: Annotated[int, typer.Option(metavar="K", min=1, help="Classes, or values, of a sample.")] = 10,
    seed: Annotated[
        int, typer.Option(min=0, help="Draws parameters, inputs, and the elements that are checked.")
    ] = 0,
    json_file: JsonOption = None,
) -> None:
    """Show the layers of a model, and check the gradients of each of them against central differences.

    Every layer must also keep what layers promise: the same output for the same batch, no sample that depends on the
    others in a test, the dtype of its input, and inputs left alone.

    \b
    Examples:
      taihu check-model mine.py:build
      taihu check-model mine.py:build --input-shape 1x28x28 --outputs 10
      taihu check-model table.py:build --input-shape 20 --outputs 1
    """  # noqa: D301
    from taihu.worker.engine import build_layers
    from taihu.worker.engine.model_check import CheckedModel

    shape = _parse_shape(input_shape)
    check_writable(json_file)
    checked = CheckedModel(partial(build_layers, model, shape, outputs), shape, outputs)
    console = Console()
    faults, rows = _check(checked, seed)
    _show(console, rows)
    parameters = sum(layer.parameters for layer in checked.layers)
    console.print(
        f"model {model}: {len(rows)} layers, {parameters:,} parameters, inputs {shape}, "
        f"outputs {checked.model.output_shape}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    if json_file is not None:
        write_json(json_file, _as_json(checked, faults))
    if faults:
        for fault in faults[1:]:
            typer.echo(f"fault: {fault}", err=True)
        raise RunError(f"{faults[0]} ({len(faults)} faults in all)" if len(faults) > 1 else faults[0])
    typer.echo("all gradients agree with central differences")


def _parse_shape(text: str) -> tuple[int, ...]:
    sizes = re.fullmatch(r"([1-9]\d{0,5})(?:x([1-9]\d{0,5})x([1-9]\d{0,5}))?", text)
    if sizes is None:
        raise ConfigError(
            f"--input-shape {text}: expected channels, height and width, for example 3x32x32, or a number of "
            "features, for example 20"
        )
    if sizes[2] is None:
        return (int(sizes[1]),)
    return (int(sizes[2]), int(sizes[3]), int(sizes[1]))


def _check(checked: CheckedModel, seed: int) -> tuple[list[str], list[tuple[str, ...]]]:
    from taihu.worker.engine.gradient_check import CheckOptions

    options = CheckOptions(seed=seed)
    faults: list[str] = []
    rows: list[tuple[str, ...]] = []
    for index, layer in enumerate(checked.layers):
        with waiting(f"checking {layer.name}"):
            found = checked.layer_faults(index, options)
        faults += found
        rows.append(_row(layer, "wrong" if found else "ok"))
    if not faults:
        with waiting("checking the whole model"):
            faults += checked.model_faults(options)
    return faults, rows


def _row(layer: PlacedLayer, verdict: str) -> tuple[str, ...]:
    shape = "x".join(map(str, layer.output_shape))
    return layer.name, layer.kind, shape, str(layer.parameters), verdict


def _show(console: Console, rows: list[tuple[str, ...]]) -> None:
    if console.is_terminal:
        table = Table(*_COLUMNS)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    for row in (_COLUMNS, *rows):
        console.print("  ".join(row), markup=False, highlight=False, soft_wrap=True)


def _as_json(checked: CheckedModel, faults: list[str]) -> dict[str, Any]:
    layers = [
        {
            "name": layer.name,
            "kind": layer.kind,
            "input_shape": list(layer.input_shape),
            "output_shape": list(layer.output_shape),
            "parameters": layer.parameters,
        }
        for layer in checked.layers
    ]
    return {"parameters": sum(layer.parameters for layer in checked.layers), "layers": layers, "faults": faults}
