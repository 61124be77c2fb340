"""The replica that a worker trains: a whole one, or one whose fully connected end is spread over the workers."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.parts.shards import gather_rows
from taihu.core.base.errors import ConfigError
from taihu.core.checkpoint.held_back import read_spread_state
from taihu.core.checkpoint.keepers import resumed_from
from taihu.core.checkpoint.part import NO_COLUMNS, PARAMETERS, Columns, named
from taihu.core.checkpoint.reading import Checkpoint
from taihu.core.job import Job
from taihu.core.optimization import OptimizerShard
from taihu.core.planner.fc_mode import FcChoice, FcJob
from taihu.core.trace import Tracer
from taihu.core.wire.base.clock import Clock
from taihu.core.wire.frames.headers import ValueType
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.engine import Array, Model, StepContext, StepHooks
from taihu.worker.engine.base.layer import ignore_layer
from taihu.worker.exchange.session import Exchanged
from taihu.worker.exchange.shell import Exchange
from taihu.worker.fc.connected import spreadable
from taihu.worker.fc.hybrid import HybridModel
from taihu.worker.fc.mover import PeerMover
from taihu.worker.fc.probe import agree_on_fc
from taihu.worker.fc.stage import StagePart
from taihu.worker.memory.arenas import arenas_of
from taihu.worker.saved.writing import bound_pieces
from taihu.worker.training.evaluation import (
    TESTING,
    Scores,
    batch_sizes,
    evaluate,
    read_along,
    samples_at_once,
    scores,
)
from taihu.worker.training.hashing import exchanged_sha256

_DIGEST_BYTES = 32

Write = Callable[[Model, Iterator[Array]], None]


@dataclass(frozen=True)
class Uses:
    """Uses that worker 0 has for the whole model: to test it after every epoch, on so many images, and to save it."""

    tests: bool
    saves: bool
    test_images: int

    def agreed(self, agree: Callable[[NDArray[np.float64]], None]) -> Uses:
        """The uses after `agree`, which replaces flags by worker 0's."""
        flags = np.array([self.tests, self.saves, self.test_images], dtype=np.float64)
        agree(flags)
        return Uses(bool(flags[0]), bool(flags[1]), int(flags[2]))


class Replica(ABC):
    """A model bound to its arenas.

    Attributes:
        exchanged: the layers that are exchanged, and the arenas that hold them.
        uses: when worker 0 needs the whole model; all ranks know.
        reads_together: whether no worker can read all parameters without the others.
    """

    exchanged: Exchanged
    uses: Uses
    reads_together = False

    @abstractmethod
    def train(self, images: Array, labels: Array, context: StepContext, hooks: StepHooks) -> float:
        """Train one step: forward, loss and backward into the gradient arena; returns the loss, as `Model.train`."""

    @abstractmethod
    def save(self, write: Write, read_layer: Callable[[int], None]) -> None:
        """Have rank 0 write the whole model; all ranks call this at the same time.

        `write(model, pieces)` takes the parameters piece by piece, see `save_model`; `read_layer(i)` is called before
        those of an exchanged layer i are read, in the order of the layout.
        """

    @abstractmethod
    def evaluate(self, dataset: Dataset, read_layer: Callable[[int], None]) -> Scores | None:
        """Test the model on rank 0; all ranks call this at the same time.

        `read_layer(i)` is called before the parameters of an exchanged layer i are read.
        """

    @property
    @abstractmethod
    def model(self) -> Model:
        """The model, with what of it lies here."""

    @abstractmethod
    def digest(self, exchange: Exchange) -> str:
        """A hash of all parameters, the same on all ranks; all ranks call this at the same time."""

    def end_parts(self, batch: int) -> tuple[StagePart, ...]:
        """The share of this rank in layers that are spread over the workers; by default none is."""
        return ()

    def columns(self) -> Columns:
        """Live columns of layers that are spread over the workers, with their optimizer state; by default of none."""
        return NO_COLUMNS

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint, whose parameters are here already.

        Raises:
            CheckpointError: it lacks optimizer state of a layer that is spread.
        """
        columns = self.columns()
        for name, array in columns.arrays.items():
            if name != PARAMETERS:
                read_spread_state(checkpoint, name, columns.blocks(), array)

    @abstractmethod
    def results(self, steps: int) -> dict[str, Any]:
        """The replica's share of the results of a run of so many steps."""


def recompute(model: Model, job: Job, stop: int | None = None) -> None:
    """Have `model`, or its layers before `stop`, train with as little memory for activations as the job says."""
    if job.train.recompute != "none":
        model.recompute(job.train.recompute_segments, spill=job.train.recompute == "spill", stop=stop)


class WholeReplica(Replica):
    """A replica that is whole here; all of it is exchanged."""

    def __init__(self, model: Model, job: Job, rank: int, uses: Uses) -> None:
        self.uses = uses
        recompute(model, job)
        arenas = arenas_of(job, model.layout.elements)
        model.bind(arenas.parameters, arenas.gradients)
        self._model = model
        self._rank = rank
        self._seed = job.train.seed
        self._tested = samples_at_once(model, job.train.batch)
        self.reads_together = job.stage.divides_parameters and not job.servers
        if rank == 0 and arenas.parameter_pages is None:
            model.initialize(self._seed)
        self.exchanged = Exchanged(model.layout, arenas, self._initialize)

    def _initialize(self, layer: int) -> None:
        self._model.parameter_layers[layer].initialize(self._seed)

    @override
    def train(self, images: Array, labels: Array, context: StepContext, hooks: StepHooks) -> float:
        return self._model.train(images, labels, context, hooks)

    @override
    def save(self, write: Write, read_layer: Callable[[int], None]) -> None:
        pieces = bound_pieces(self._model, read_layer)
        if self._rank == 0:
            write(self._model, pieces)
        elif self.reads_together:
            for _ in pieces:
                pass

    @override
    def evaluate(self, dataset: Dataset, read_layer: Callable[[int], None]) -> Scores | None:
        if self._rank == 0:
            return evaluate(self._model, dataset, self._tested, before_layer=read_layer)
        if self.reads_together:
            read_along(self.uses.test_images, self._tested, self._model, read_layer)
        return None

    @property
    @override
    def model(self) -> Model:
        return self._model

    @override
    def digest(self, exchange: Exchange) -> str:
        return exchanged_sha256(exchange, self.exchanged.arenas.parameters)

    @override
    def results(self, steps: int) -> dict[str, Any]:
        return {}


class HybridReplica(Replica):
    """A replica with some layers spread over the workers; all of them take part when worker 0 tests or saves it."""

    reads_together = True

    def __init__(
        self,
        model: Model,
        job: Job,
        mover: PeerMover,
        *,
        choices: tuple[FcChoice, ...],
        uses: Uses,
    ) -> None:
        self.uses = uses
        sharded = [choice.layer.name for choice in choices if choice.choice == "shard"]
        exchanged = sum(layer.elements for layer in model.layout.layers if layer.name not in sharded)
        self._hybrid = HybridModel(
            model,
            sharded,
            rank=mover.rank,
            size=mover.size,
            copied=job.stage.divides_gradients,
            gradient_bytes=job.bucket_bytes(exchanged),
        )
        recompute(model, job, self._hybrid.front)
        self._tested_at_once = samples_at_once(model, job.train.batch)
        self._mover = mover
        self._choices = choices
        self._settings = job.exchange
        self._model = model
        # Exchanged layers that worker 0 reads are fetched by all where they lie on all.
        self._reads_along = job.stage.divides_parameters and not job.servers
        arenas = arenas_of(job, self._hybrid.layout.elements)
        self._hybrid.bind(arenas.parameters, arenas.gradients)
        self._hybrid.initialize_shards(job.train.seed)
        if mover.rank == 0 and arenas.parameter_pages is None:
            self._hybrid.initialize(job.train.seed)
        self._optimizer = OptimizerShard(job.optimizer, self._hybrid.shards)
        self._hybrid.attach(
            mover,
            self._optimizer,
            scheme=job.exchange.fc_scheme,
            update_each_pass=job.exchange.fc_update == "pass",
            inputs=job.exchange.fc_inputs,
            check_finite=job.refuses_non_finite,
            tracer=mover.tracer,
        )
        initialize = partial(self._hybrid.initialize_layer, seed=job.train.seed)
        self.exchanged = Exchanged(self._hybrid.layout, arenas, initialize)

    @override
    def train(self, images: Array, labels: Array, context: StepContext, hooks: StepHooks) -> float:
        self._mover.step = context.step
        return self._hybrid.train(images, labels, context, hooks)

    @override
    def save(self, write: Write, read_layer: Callable[[int], None]) -> None:
        self._hybrid.save(self._mover, write, self._reading(read_layer))

    def _reading(self, read_layer: Callable[[int], None]) -> Callable[[int], None]:
        return read_layer if self._mover.rank == 0 or self._reads_along else ignore_layer

    @override
    def evaluate(self, dataset: Dataset, read_layer: Callable[[int], None]) -> Scores | None:
        read = self._reading(read_layer)
        if self._mover.rank == 0:
            return scores(partial(self._tested, read), self._model.loss, dataset, self._tested_at_once)
        for examples in batch_sizes(self.uses.test_images, self._tested_at_once):
            self._hybrid.outputs(None, examples, TESTING, read)
        return None

    def _tested(self, read_layer: Callable[[int], None], inputs: Array) -> Array:
        outputs = self._hybrid.outputs(inputs, len(inputs), TESTING, read_layer)
        assert outputs is not None  # noqa: S101
        return outputs

    @property
    @override
    def model(self) -> Model:
        return self._model

    @override
    def end_parts(self, batch: int) -> tuple[StagePart, ...]:
        return self._hybrid.end_parts(batch)

    @override
    def columns(self) -> Columns:
        return Columns(self._hybrid.spread, named(self._hybrid.shards, self._optimizer.state()))

    @override
    def digest(self, exchange: Exchange) -> str:
        everybody = np.zeros((self._mover.size, _DIGEST_BYTES), dtype=np.float32)
        own = hashlib.sha256(self._hybrid.shards.data).digest()
        everybody[self._mover.rank] = np.frombuffer(own, dtype=np.uint8)
        self._mover.start("digest", gather_rows(self._mover.rank, range(self._mover.size + 1), everybody))()
        rest = bytes.fromhex(exchanged_sha256(exchange, self.exchanged.arenas.parameters))
        return hashlib.sha256(rest + everybody.astype(np.uint8).tobytes()).hexdigest()

    @override
    def results(self, steps: int) -> dict[str, Any]:
        layers = [choice.to_json() for choice in self._choices]
        scheme, update = self._settings.fc_scheme, self._settings.fc_update
        sent = self._mover.sent_bytes // max(1, steps)
        return {"fc": {"scheme": scheme, "update": update, "bytes_sent_per_step": sent, "layers": layers}}


def prepare_hybrid(  # noqa: PLR0917 - what a replica is made of
    job: Job,
    communicator: Communicator,
    model: Model,
    uses: Uses,
    clock: Clock,
    tracer: Tracer,
) -> Replica:
    """Agree with the other workers on what is sharded; they all call this. If nothing is, the replica is a whole one.

    All take over worker 0's `uses`.

    Raises:
        ConfigError: nothing of the model can be sharded as `exchange.fc` demands.
    """
    known = spreadable(model)
    facts = FcJob(job.train.batch, job.world.workers, job.servers)
    insist = job.exchange.fc == "shard"
    choices = agree_on_fc(known.layers, facts, communicator, clock, insist=insist, leave_one=known.leave_one)
    choices = _as_before(job, choices)
    if not any(choice.choice == "shard" for choice in choices):
        if insist and job.world.workers > 1:
            raise ConfigError(
                f"exchange.fc 'shard': model {job.model.name} has no fully connected layer at its end "
                f"that can be split over {job.world.workers} workers; set exchange.fc = 'data'"
            )
        return WholeReplica(model, job, communicator.rank, uses)
    uses = uses.agreed(partial(communicator.broadcast, value_type=ValueType.FP64))
    mover = PeerMover(communicator, clock, tracer)
    return HybridReplica(model, job, mover, choices=choices, uses=uses)


def _as_before(job: Job, choices: tuple[FcChoice, ...]) -> tuple[FcChoice, ...]:
    """The choices of the run that this one goes on from, if it measured for as many workers; else `choices`.

    What is measured now may lead to others, and sums in another order to other bits.
    """
    begun = resumed_from(job)
    if begun is None or job.exchange.fc != "auto" or begun.manifest.workers != job.world.workers:
        return choices
    if begun.manifest.settings.get("exchange.fc") != json.dumps("auto"):
        return choices
    spread = {each.layer.name for each in begun.spread}
    return tuple(replace(each, choice="shard" if each.layer.name in spread else "data") for each in choices)
