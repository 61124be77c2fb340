"""`taihu dev bench select`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import typer
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError
from taihu.core.base.measure import spread
from taihu.core.compression.methods import kept_elements
from taihu.core.process.options import JsonOption
from taihu.core.process.results import check_writable, write_json
from taihu.core.system.clocks import perf_counter
from taihu.core.system.pools import ThreadPoolExecutor
from taihu.kernels.packing import pack, packed_bound
from taihu.kernels.selection.select import accumulate_select, kth_largest_magnitude
from taihu.local.display.display import waiting

Values = NDArray[np.float32]


def select(
    elements: Annotated[
        int, typer.Option(min=1, help="Size of the gradient; the default is ResNet-50's.")
    ] = 25_557_032,
    density: Annotated[float, typer.Option(help="Share of the elements that is selected.")] = 0.01,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = 9,
    against: Annotated[
        Literal["auto", "torch", "none"], typer.Option(help="Time torch.topk too; auto: where torch is installed.")
    ] = "auto",
    threads: Annotated[int, typer.Option(min=1, help="Threads that share the gradient, and those of torch.")] = 1,
    json_file: JsonOption = None,
) -> None:
    """Time the selection of sparse gradients: with a reused threshold, with an exact one, and as torch.topk.

    Every round accumulates the same gradient into the same residual, takes what reaches the threshold and packs it.
    One pass, the yardstick, only adds the gradient to the residual. All of them alternate in one run.

    \b
    Examples:
      taihu dev bench select
      taihu dev bench select --density 0.001 --against torch --json select.json
    """  # noqa: D301
    if not 0 < density <= 1:
        raise ConfigError(f"--density {density}: expected a share above 0 and up to 1, for example 0.01")
    check_writable(json_file)
    kept = kept_elements(density, elements)
    rng = np.random.default_rng(0)
    gradient = rng.standard_normal(elements, dtype=np.float32)
    initial = rng.standard_normal(elements, dtype=np.float32)
    residual = initial + gradient
    threshold = kth_largest_magnitude(residual, kept)
    parts = _cut(gradient, residual, threshold, threads)
    with ExitStack() as stack:
        # This thread, which makes the pass, takes a share too: another one may sit on a busier processor.
        pool = stack.enter_context(ThreadPoolExecutor(max(1, threads - 1)))
        timed: dict[str, Callable[[], object]] = {
            "refresh_seconds": lambda: kth_largest_magnitude(residual, kept),
            "pass_seconds": lambda: np.add(residual, gradient, out=residual),
            "seconds": lambda: _reuse_all(parts, pool),
        }
        if against == "torch" or (against == "auto" and importlib.util.find_spec("torch") is not None):
            timed["topk_seconds"] = _torch_topk(np.abs(gradient), kept, threads, stack)
        with waiting(f"measuring {rounds} rounds"):
            seconds = _alternate(timed, rounds, residual, initial)
    results = {
        "elements": elements,
        "density": density,
        "threads": threads,
        "selected": sum(part.selected for part in parts),
        "topk_seconds": None,
        **{name: spread(values) for name, values in seconds.items()},
    }
    _tell(results)
    if json_file is not None:
        write_json(json_file, results)


@dataclass
class _Piece:
    """One thread's share of the gradient and residual, with room for what is selected of it."""

    gradient: Values
    residual: Values
    threshold: float
    indices: NDArray[np.int32]
    values: Values
    packed_values: Values
    packed: NDArray[np.uint8]
    bounds: NDArray[np.int64]
    selected: int = 0

    def reuse(self) -> None:
        count = accumulate_select(self.gradient, self.residual, self.threshold, self.indices, self.values)
        indices, values = self.indices[:count], self.values[:count]
        self.selected, _ = pack(indices, values, self.bounds, self.packed_values, self.packed)


def _reuse_all(parts: list[_Piece], pool: ThreadPoolExecutor) -> None:
    others = [pool.submit(part.reuse) for part in parts[1:]]
    parts[0].reuse()
    for other in others:
        other.result()


def _cut(gradient: Values, residual: Values, threshold: float, threads: int) -> list[_Piece]:
    """Equal parts; `residual` is the one that `threshold` was made for, so that the room each needs is known."""
    parts = []
    for mine, left in zip(np.array_split(gradient, threads), np.array_split(residual, threads), strict=True):
        count = int((np.abs(left) >= threshold).sum())
        parts.append(
            _Piece(
                gradient=mine,
                residual=left,
                threshold=threshold,
                indices=np.empty(count, dtype=np.int32),
                values=np.empty(count, dtype=np.float32),
                packed_values=np.empty(count, dtype=np.float32),
                packed=np.empty(packed_bound(count, 1), dtype=np.uint8),
                bounds=np.array([[0, len(left)]], dtype=np.int64),
            )
        )
    return parts


def _torch_topk(magnitudes: Values, kept: int, threads: int, stack: ExitStack) -> Callable[[], object]:
    """A call of torch.topk; `stack` restores torch's number of threads."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise ConfigError("--against torch: torch is not installed; pip install taihu[torch]") from None
    stack.callback(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(threads)
    tensor = torch.from_numpy(magnitudes)
    return lambda: torch.topk(tensor, kept)


def _alternate(
    timed: dict[str, Callable[[], object]], rounds: int, residual: Values, initial: Values
) -> dict[str, list[float]]:
    """Seconds of each call in each round; one round before them compiles and touches all memory."""
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(1 + rounds):
        for name, call in timed.items():
            np.copyto(residual, initial)
            begin = perf_counter()
            call()
            seconds[name].append(perf_counter() - begin)
    return {name: values[1:] for name, values in seconds.items()}


def _tell(results: dict[str, Any]) -> None:
    names = {
        "pass_seconds": "one pass",
        "seconds": "reused threshold",
        "refresh_seconds": "exact threshold",
        "topk_seconds": "torch.topk",
    }
    yardstick = results["pass_seconds"]["median"]
    typer.echo(f"{results['selected']} of {results['elements']} elements selected, {results['threads']} threads")
    typer.echo(f"{'':18}{'min ms':>10}{'median ms':>11}{'max ms':>10}{'passes':>9}")
    for name, text in names.items():
        if (seconds := results[name]) is not None:
            row = f"{text:18}{1e3 * seconds['min']:10.2f}{1e3 * seconds['median']:11.2f}{1e3 * seconds['max']:10.2f}"
            typer.echo(f"{row}{seconds['median'] / yardstick:9.2f}")
    if results["topk_seconds"] is not None:
        ratio = results["topk_seconds"]["median"] / results["seconds"]["median"]
        typer.echo(f"torch.topk takes {ratio:.1f} times as long as the reused threshold")
