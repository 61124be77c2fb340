"""`taihu dev bench engine`."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol, get_args

import typer
from threadpoolctl import threadpool_limits

from taihu.cli.bench.torch_twin import TorchLayout, TorchStep, import_torch
from taihu.core.base.errors import ConfigError, RunError
from taihu.core.base.measure import spread
from taihu.core.base.words import counted
from taihu.core.process.options import JsonOption, SupervisorOption
from taihu.core.process.results import check_writable, write_json
from taihu.core.system.clocks import perf_counter
from taihu.kernels.nn.peak import multiply_add_rate
from taihu.local.display.display import waiting
from taihu.local.processes.processes import LocalProcesses
from taihu.worker.bench.engine import EngineStep, LayerTime

_BATCHES: Final = {
    "cifar10_quick": 100,
    **dict.fromkeys(("alexnet", "alexnet_lrn", "vgg16", "googlenet", "resnet50"), 8),
}
_USUAL_BATCH: Final = 32
# Steps that a contestant takes one after another before it is the next one's turn.
_STEPS_OF_A_TURN: Final = 4
# Of the losses of the first steps, which both compute from the same parameters and images.
_SAME_LOSS: Final = 1e-3

Contestant = Literal["engine", "nchw", "channels_last"]


def engine(
    models: Annotated[
        str, typer.Option("--model", metavar="M,...", help="Models of the zoo, or path/to/file.py:function.")
    ] = "cifar10_quick,resnet20,vgg16_cifar",
    threads: Annotated[str, typer.Option(metavar="T,...", help="Numbers of threads.")] = "1,2",
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, help="Images in a step; if not given 100 for cifar10_quick, 8 for models of large images, else 32."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contestant, of 4 steps that count.")] = 5,
    against: Annotated[
        Literal["auto", "torch", "none"], typer.Option(help="Time PyTorch too; auto: where torch is installed.")
    ] = "auto",
    layers: Annotated[bool, typer.Option("--layers", help="Tell what each layer takes.")] = False,
    json_file: JsonOption = None,
    contestant: Annotated[str | None, typer.Option(hidden=True, help="Be a contestant.")] = None,
    supervisor: SupervisorOption = None,
) -> None:
    """Time whole training steps of models on this machine's processor, and the same in PyTorch.

    A step is forward, loss, backward and an update by SGD with momentum, in fp32, of images of 32 x 32
    pixels, or 224 x 224 for models made for such. PyTorch runs
    the same layers from the same parameters, eagerly, in both of its layouts, of which the better one counts. Each
    contestant is a process of its own; they take turns.

    \b
    Examples:
      taihu dev bench engine
      taihu dev bench engine --model resnet20 --threads 1 --layers
      taihu dev bench engine --against torch --json engine.json
    """  # noqa: D301
    names, counts = models.split(","), _numbers(threads)
    if contestant is not None:
        _take_part(_as_contestant(contestant), names[0], batch or _USUAL_BATCH, counts[0])
        return
    check_writable(json_file)
    if against == "torch":
        import_torch()
    peers: tuple[Contestant, ...] = ()
    if against == "torch" or (against == "auto" and importlib.util.find_spec("torch") is not None):
        peers = get_args(TorchLayout)
    rate = multiply_add_rate()
    typer.echo(f"multiplications and additions in registers: {rate / 1e9:.0f} GF/s a thread")
    rows = []
    for name in names:
        for count in counts:
            size = batch or _BATCHES.get(name, _USUAL_BATCH)
            with waiting(f"measuring {name} on {_threads(count)}"):
                rows.append(_row(name, count, size, peers, rounds, rate, layers=layers))
            _tell(rows[-1])
    if json_file is not None:
        write_json(json_file, {"flops_per_second": rate, "rows": rows})


def _numbers(text: str) -> list[int]:
    counts = [int(item) if item.isdecimal() else 0 for item in text.split(",")]
    if not all(counts):
        raise ConfigError(f"--threads {text}: expected numbers of at least 1, for example 1,2")
    return counts


def _as_contestant(name: str) -> Contestant:
    known: tuple[Contestant, ...] = get_args(Contestant)
    for contestant in known:
        if name == contestant:
            return contestant
    raise ConfigError(f"--contestant {name}: expected one of {', '.join(get_args(Contestant))}")


class _Step(Protocol):
    def step(self) -> float: ...


def _take_part(contestant: Contestant, name: str, batch: int, threads: int) -> None:
    """Answer lines of stdin until it ends: a number of steps with their seconds, "layers" with a table."""
    ours: EngineStep | None = None
    if contestant == "engine":
        # Where the engine's own threads compute, those of BLAS would only be in their way.
        threadpool_limits(1)
        ours = EngineStep(name, batch, threads)
    step: _Step = ours or TorchStep(name, batch, threads, "nchw" if contestant == "nchw" else "channels_last")
    _say({"loss": step.step(), "flops": 0 if ours is None else ours.flops})
    for line in sys.stdin:
        if line.strip() == "layers" and ours is not None:
            _say(ours.layer_times(_STEPS_OF_A_TURN))
        else:
            _say(_timed(step.step, int(line)))


def _timed(step: Callable[[], object], count: int) -> list[float]:
    """Seconds of each of `count` steps; one before them finds the caches as the other contestants left them."""
    seconds = []
    for _ in range(1 + count):
        begin = perf_counter()
        step()
        seconds.append(perf_counter() - begin)
    return seconds[1:]


def _say(value: object) -> None:
    typer.echo(json.dumps(value, default=vars))


class _Process:
    """A contestant."""

    def __init__(self, processes: LocalProcesses, contestant: Contestant, arguments: Sequence[str]) -> None:
        self._name = contestant
        self._processes = processes
        self._process = processes.start(
            contestant, "taihu", ["dev", "bench", "engine", "--contestant", contestant, *arguments]
        )
        self.first: dict[str, Any] = {}
        self.seconds: list[float] = []

    def begin(self) -> None:
        """Wait for the first step."""
        self.first = self._answer()

    def take_turn(self) -> None:
        self.seconds += self.ask(str(_STEPS_OF_A_TURN))

    def ask(self, question: str) -> Any:
        assert self._process.stdin is not None  # noqa: S101
        self._process.stdin.write(f"{question}\n".encode())
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None  # noqa: S101
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._processes.check()
            raise RunError(f"{self._name} ended before it answered")
        return json.loads(line)


def _row(
    name: str, threads: int, batch: int, peers: Sequence[Contestant], rounds: int, rate: float, *, layers: bool
) -> dict[str, Any]:
    arguments = ["--model", name, "--threads", str(threads), "--batch", str(batch)]
    with (
        tempfile.TemporaryDirectory(prefix="taihu-bench-") as folder,
        # Beside others it is a process that was started as theirs are.
        LocalProcesses(Path(folder), fork=not peers) as processes,
    ):
        contestants: dict[Contestant, _Process] = {}
        for contestant in ("engine", *peers):
            typer.echo(f"{name}, {_threads(threads)}: {contestant} compiles and takes its first step", err=True)
            contestants[contestant] = _Process(processes, contestant, arguments)
            contestants[contestant].begin()
        ours = contestants["engine"]
        for peer in peers:
            _expect_same_loss(name, ours, contestants[peer])
        for _ in range(rounds):
            for process in contestants.values():
                process.take_turn()
        table: list[dict[str, Any]] = ours.ask("layers") if layers else []
    seconds = {contestant: spread(process.seconds) for contestant, process in contestants.items()}
    best = min(peers, key=lambda peer: seconds[peer]["median"], default=None)
    return {
        "model": name,
        "threads": threads,
        "batch": batch,
        "seconds": seconds["engine"],
        "torch_seconds": None if best is None else seconds[best],
        "torch_layout": best,
        "flops": ours.first["flops"],
        "floor_seconds": ours.first["flops"] / (rate * threads),
        **({"layers": table} if layers else {}),
    }


def _expect_same_loss(name: str, ours: _Process, peer: _Process) -> None:
    loss, other = ours.first["loss"], peer.first["loss"]
    if abs(loss - other) > _SAME_LOSS * max(1.0, abs(other)):
        raise RunError(f"{name}: the engine's loss is {loss:.6f} and PyTorch's {other:.6f}: not the same computation")


def _tell(row: dict[str, Any]) -> None:
    seconds, floor = row["seconds"]["median"], row["floor_seconds"]
    text = f"{row['model']}, batch {row['batch']}, {_threads(row['threads'])}: {seconds * 1e3:.1f} ms a step"
    text += f", products alone {floor * 1e3:.1f}"
    if row["torch_seconds"] is not None:
        other = row["torch_seconds"]["median"]
        text += f", torch ({row['torch_layout']}) {other * 1e3:.1f}: ratio {seconds / other:.2f}"
    typer.echo(text)
    for layer in row.get("layers", ()):
        _tell_layer(LayerTime(**layer))


def _threads(count: int) -> str:
    return counted(count, "thread")


def _tell_layer(layer: LayerTime) -> None:
    both = layer.forward_seconds + layer.backward_seconds
    text = (
        f"  {layer.name:28}{layer.forward_seconds * 1e3:9.2f} ms forward{layer.backward_seconds * 1e3:9.2f} backward"
    )
    typer.echo(text + (f"{layer.flops / both / 1e9:8.0f} GF/s" if layer.flops else ""))
