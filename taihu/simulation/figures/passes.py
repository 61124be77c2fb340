"""Figures of docs/methods.md section 4: passes of all workers' examples through fully connected layers.

The passes are `plan_passes`', and what moves is what `taihu.simulation.fc` moves: the next pass's features are on
their way while one computes, and its gradients go back while the next one does. The order is the paper's, though, all
of whose products are in their pass; our workers leave the weights' gradients to the end, so that less hides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

from taihu.kernels.sw26010.layer_costs import linear_cost
from taihu.kernels.sw26010.machine import CORE_GROUPS
from taihu.simulation.events import EventQueue
from taihu.simulation.figures.figure import Figure, Panel, Row, Series
from taihu.simulation.machines import Network, taihulight
from taihu.simulation.network import Fabric
from taihu.worker.fc.passes import Pass, Scheme, plan_passes

_BATCH: Final = 128
_WORKERS: Final = (2, 4, 8)
_SCHEMES: Final[tuple[tuple[str, Scheme], ...]] = (("a", "gather"), ("b", "turns"), ("c", "slices"))
# AlexNet's fully connected layers, inputs and outputs.
_LAYERS: Final = ((9216, 4096), (4096, 4096), (4096, 1000))
_COLUMNS: Final = 512
_VALUE_BYTES: Final = 4
_BEHIND: Final = "columns between the layers wait at the one port that sends the next features; in (c) all ports do"
_OWN: Final = "a worker's own examples do not travel: (K - 1)/K"

Seconds = Callable[[int, int, int], tuple[float, float]]
Wanted = float | Callable[[], bool]
Layers = Sequence[tuple[int, int]]
Products = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Timed:
    """Seconds of a step's passes.

    Attributes:
        seconds: of all.
        waited: by which the step is longer than if all features were everywhere.
        transfers: that the features' transfers take, one after another and with nothing else on the network.
        products: of one worker.
    """

    seconds: float
    waited: float
    transfers: float
    products: float

    @property
    def hidden(self) -> float:
        """The share of the transfers' time that the step is not longer by."""
        return max(0.0, round(1.0 - self.waited / self.transfers, 9))


def product_seconds(rows: int, inputs: int, columns: int) -> tuple[float, float]:
    """Seconds forward and backward of a layer's columns for so many examples, on an SW26010."""
    cost = linear_cost(rows, inputs, columns, core_groups=CORE_GROUPS)
    return cost.forward.seconds, cost.backward.seconds


def timed(
    scheme: Scheme,
    workers: int,
    batch: int,
    layers: Layers,
    network: Network,
    *,
    seconds: Seconds = product_seconds,
) -> Timed:
    """Time the passes of `workers`, each with `batch` examples and 1/`workers` of all columns.

    `seconds` is `product_seconds`, or remembers what that said.
    """
    passes = plan_passes(scheme, workers, batch)
    columns = [(inputs, -(-outputs // workers)) for inputs, outputs in layers]
    products = [[seconds(one.rows[-1], *shape) for shape in columns] for one in passes]
    whole, without = (
        _Ranks(passes, workers, layers, products, network).run(features=features) for features in (layers[0][0], 0)
    )
    return Timed(
        whole,
        whole - without,
        sum(_alone(one, workers, layers[0][0], network) for one in passes),
        sum(forward + backward for of_pass in products for forward, backward in of_pass),
    )


def _alone(one: Pass, workers: int, inputs: int, network: Network) -> float:
    """Seconds of the features' transfer of one pass: that of the busiest port."""
    counts = [stop - start for start, stop in zip(one.starts, one.stops, strict=True)]
    busiest = max(max((workers - 1) * count, sum(counts) - count) for count in counts)
    return network.alpha_seconds + _VALUE_BYTES * inputs * busiest / network.bytes_per_second


class _Ranks:
    """All workers on the virtual clock."""

    def __init__(
        self, passes: Sequence[Pass], workers: int, layers: Layers, products: Sequence[Products], network: Network
    ) -> None:
        self.queue = EventQueue()
        self._passes = passes
        self._workers = workers
        self._layers = layers
        self._products = products
        fabric = Fabric(self.queue, network, 0)
        hosts = [fabric.host(1) for _ in range(workers)]
        self._paths = [[fabric.to_neighbour(source, target, 1) for target in hosts] for source in hosts]
        self._came: list[Counter[object]] = [Counter() for _ in hosts]
        self._awaited: dict[int, Callable[[], bool]] = {}
        self._loops: list[Iterator[Wanted]] = []

    def run(self, features: int) -> float:
        """Take all passes, of examples with so many features; returns when the last gradient has come back."""
        for rank in range(self._workers):
            self._loops.append(self._steps(rank, features))
            self.queue.at(0.0, self._go_on, rank)
        self.queue.run()
        return self.queue.now

    def _steps(self, rank: int, features: int) -> Iterator[Wanted]:
        arrivals = (
            self._from_owners(rank, one, (number, "features"), features) for number, one in enumerate(self._passes)
        )
        arriving, returning = next(arrivals), list[Callable[[], bool]]()
        for number, one in enumerate(self._passes):
            yield arriving
            # The next ones are on their way while this pass is taken.
            arriving = next(arrivals, arriving)
            yield from self._through(rank, number, one)
            returning.append(self._to_owners(rank, one, (number, "gradients"), self._layers[0][0]))
        yield from returning

    def _through(self, rank: int, number: int, one: Pass) -> Iterator[Wanted]:
        """Forward and backward: between layers columns go to all, and sums of their gradients back."""
        products, results = self._products[number], self._layers[-1][1] / self._workers
        for place, (forward, _) in enumerate(products):
            if place:
                yield self._columns(rank, one, (number, "forward", place), self._layers[place][0])
            yield forward
        yield self._to_owners(rank, one, (number, "results"), results)
        yield self._from_owners(rank, one, (number, "of results"), results)
        for place, (_, backward) in reversed(list(enumerate(products))):
            yield backward
            if place:
                yield self._columns(rank, one, (number, "backward", place), self._layers[place][0])

    def _from_owners(self, rank: int, one: Pass, key: object, values: float) -> Callable[[], bool]:
        """Every owner of examples sends so many values of each to all others."""
        return self._move(rank, key, lambda source, _: values * (one.stops[source] - one.starts[source]))

    def _to_owners(self, rank: int, one: Pass, key: object, values: float) -> Callable[[], bool]:
        """Everybody sends so many values of each example to its owner."""
        return self._move(rank, key, lambda _, target: values * (one.stops[target] - one.starts[target]))

    def _columns(self, rank: int, one: Pass, key: object, inputs: int) -> Callable[[], bool]:
        """Everybody sends its columns of all examples to all others."""
        own = one.rows[-1] * inputs / self._workers
        return self._move(rank, key, lambda *_: own)

    def _move(self, rank: int, key: object, count: Callable[[int, int], float]) -> Callable[[], bool]:
        """Send what `count` says of a source and a target; returns whether all has come."""
        # Everybody begins with the next one, so that no port gets all at once.
        others = [(rank + hop) % self._workers for hop in range(1, self._workers)]
        for other in others:
            if values := count(rank, other):
                self._paths[rank][other].send(_VALUE_BYTES * values, self._arrived, other, key)
        missing = sum(bool(count(other, rank)) for other in others)
        return partial(self._has_come, rank, key, missing)

    def _has_come(self, rank: int, key: object, missing: int) -> bool:
        return self._came[rank][key] == missing

    def _arrived(self, rank: int, key: object) -> None:
        self._came[rank][key] += 1
        if rank in self._awaited and self._awaited[rank]():
            del self._awaited[rank]
            self.queue.at(self.queue.now, self._go_on, rank)

    def _go_on(self, rank: int) -> None:
        for wanted in self._loops[rank]:
            if isinstance(wanted, float):
                self.queue.at(self.queue.now + wanted, self._go_on, rank)
                return
            if not wanted():
                self._awaited[rank] = wanted
                return


def one_weird_trick() -> Figure:
    """The transfers that passes hide, how they grow, and the batches that layers are updated by."""
    network, _ = taihulight()
    seconds = cache(product_seconds)
    steps = {
        (name, workers): timed(scheme, workers, _BATCH, _LAYERS, network, seconds=seconds)
        for name, scheme in _SCHEMES
        for workers in _WORKERS
    }
    hidden = {at: at[1] * each.hidden for at, each in steps.items()}
    rows = [_hidden_row(*at, transfers) for at, transfers in hidden.items()]
    growths = {(name, scheme): _growths(scheme, network, seconds) for name, scheme in _SCHEMES}
    rows += [row for (name, _), growth in growths.items() for row in _growth_rows(name, growth)]
    rows += [row for name, scheme in _SCHEMES[1:] for row in _batch_rows(name, scheme)]
    return Figure(
        "AlexNet's fully connected layers on K workers, 128 examples each: (a) gather, (b) turns, (c) slices",
        "1 us and 12 GB/s of the TaihuLight, products as modelled on its SW26010 (docs/methods.md section 6); the "
        "paper's are GPUs; nothing from these figures",
        rows,
        _panels(steps, hidden, {name: growth for (name, _), growth in growths.items()}),
    )


def _hidden_row(name: str, workers: int, hidden: float) -> Row:
    paper = 0.0 if name == "a" else workers - 1.0
    term = _BEHIND if hidden < 0.8 * paper else ""
    return Row(
        f"({name}), K={workers}: transfers of features that passes hide, of {workers}",
        (paper,),
        hidden,
        term,
        basis="predicted",
    )


def _growths(scheme: Scheme, network: Network, seconds: Seconds) -> list[float]:
    """Transfers over products of a layer of which every worker has as many columns, over that of two workers."""
    inputs = _LAYERS[0][0]
    steps = [
        timed(scheme, count, _BATCH, ((inputs, _COLUMNS * count),), network, seconds=seconds) for count in _WORKERS
    ]
    ratios = [each.transfers / each.products for each in steps]
    return [ratio / ratios[0] for ratio in ratios]


def _growth_rows(name: str, growth: Sequence[float]) -> Iterator[Row]:
    for workers, ours in list(zip(_WORKERS, growth, strict=True))[1:]:
        if name == "a":
            yield Row(_grown(name, workers), (), ours, basis="not printed")
            continue
        paper = 1.0 if name == "c" else float(workers - 1)
        term = _OWN if abs(ours / paper - 1.0) > 0.2 else ""
        yield Row(_grown(name, workers), (paper,), ours, term, basis="predicted")


def _grown(name: str, workers: int) -> str:
    return f"({name}), K={workers}: transfers over products, to those of K=2"


def _batch_rows(name: str, scheme: Scheme) -> Iterator[Row]:
    for workers in _WORKERS:
        passes = plan_passes(scheme, workers, _BATCH)
        most = max(one.rows[-1] for one in passes)
        whole = sum(one.rows[-1] for one in passes)
        yield Row(
            f"({name}), K={workers}: examples of an update of these layers",
            (float(_BATCH),),
            float(most),
            basis="definition",
        )
        yield Row(
            f"({name}), K={workers}: of the convolutions",
            (float(_BATCH * workers),),
            float(whole),
            basis="definition",
        )


def _panels(
    steps: dict[tuple[str, int], Timed], hidden: dict[tuple[str, int], float], growths: dict[str, list[float]]
) -> tuple[Panel, ...]:
    names = [name for name, _ in _SCHEMES]
    counts = [Series(f"({name})", _WORKERS, [hidden[name, count] for count in _WORKERS]) for name in names]
    all_but_one = Series("printed, (b) and (c)", _WORKERS, [count - 1.0 for count in _WORKERS], "points")
    taken = [
        Series(f"({name})", _WORKERS, [1e3 * steps[name, count].seconds for count in _WORKERS]) for name in names
    ]
    grown = [Series(f"({name})", _WORKERS, growth) for name, growth in growths.items()]
    printed = Series("printed, (b)", _WORKERS, [float(count - 1) for count in _WORKERS], "points")
    return (
        Panel("transfers that passes hide, of K", "K, workers", "transfers", (*counts, all_but_one), "x"),
        Panel("transfers over products, to K = 2", "K, workers", "times", (*grown, printed), "x"),
        Panel("all passes of a step", "K, workers", "ms", taken, "x"),
    )
