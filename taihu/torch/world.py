"""This process's part in a run: joined once it is known what is exchanged, left when the script ends."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType

import numpy as np
import torch

from allreduce.communicator import Communicator
from allreduce.rendezvous import listen_for_peers
from taihu.coordination.members import Progress
from taihu.errors import ConfigError, RunError, TaihuError
from taihu.job import settled
from taihu.layout import Layout
from taihu.process.last_will import LastWill
from taihu.torch.gradients import GradientArena, views_of
from taihu.torch.place import Place
from taihu.torch.server_updates import ServerUpdates
from taihu.torch.steps import BackwardSteps
from taihu.wire.clock import SystemClock
from taihu.wire.metrics import WorkerMetrics
from worker.memory.arenas import arenas_of
from worker.reporting.activity import Activity
from worker.reporting.observer import Observer
from worker.reporting.run_log import RunLog
from worker.session import Exchanged, Reporting, Session, take_part_after_meeting

__all__ = ["World"]

_VALUES_AT_A_TIME = 1 << 22


class World:
    """The workers that train together, of which this process is one.

    One thread calls everything, but `leave`, which the end of the process calls.
    """

    def __init__(self, place: Place) -> None:
        self.job = place.job
        self.rank = place.rank
        self.size = place.job.cluster.workers
        self._stack = ExitStack()
        self._session: Session | None = None
        self._steps: BackwardSteps | None = None
        self._is_waiting = False
        self._has_left = False
        self._activity = Activity(SystemClock())
        self._last_will = LastWill(place.job.patience.still_after_s)
        self._observer = Observer(
            place.rank,
            total_steps=0,
            batch=place.job.train.batch,
            metrics=WorkerMetrics(place.rank),
            run_log=RunLog([], steps_per_epoch=1, learning_rate=lambda _: 0.0),
            activity=self._activity,
        )
        self._listener = None if place.is_alone else listen_for_peers(place.job, place.rank, place.listen)

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody to exchange anything with."""
        return self.size == 1

    def train(
        self,
        layout: Layout,
        parameters: Sequence[torch.nn.Parameter],
        brings: Sequence[torch.Tensor],
        updates: ServerUpdates | None = None,
    ) -> BackwardSteps:
        """Join, take over worker 0's values, and exchange gradients from the next backward on.

        Args:
            layout: a layer for each parameter.
            parameters: in the layout's order.
            brings: all tensors that are to be worker 0's everywhere.
            updates: of the servers, where these update: they bring the parameters, which lie in the arena then.

        Raises:
            ConfigError: the servers cannot.
            RunError: this process does so already.
            TaihuError: the others cannot be reached, or train something else.
        """
        if self._session is not None:
            raise RunError(
                "this process has a DistributedOptimizer already: give one optimizer all parameters, in groups of "
                "their own where they are updated differently"
            )
        rules = None if updates is None else updates.script.rules
        job = settled(self.job, rules)
        if rules is not None and job.zero == 3:
            raise ConfigError(
                'update="servers": parameters of a script stay on every worker; set exchange.zero to 1 or 2'
            )
        arenas = arenas_of(job, layout.elements)
        places = views_of(layout, parameters, arenas.parameters)

        def initialize(layer: int) -> None:
            places[layer].copy_(parameters[layer].detach())

        def prepare(communicator: Communicator) -> Exchanged:
            bring(communicator, brings)
            if rules is not None and self.rank == 0 and arenas.parameter_pages is None:
                for layer in range(len(places)):
                    initialize(layer)
            return Exchanged(layout, arenas, initialize, rules)

        reporting = Reporting(self._progress, self._observer.compressed, ended=self._last_will.begin)
        session = self._session = self._stack.enter_context(
            take_part_after_meeting(self.job, self.rank, prepare, reporting, listener=self._listener)
        )
        self._stack.callback(self._last_will.cancel)
        self._activity.takes_part(session)
        if rules is not None:
            for parameter, place in zip(parameters, places, strict=True):
                parameter.data = place
        gradients = GradientArena(layout, parameters, arenas.gradients, keeps=job.zero < 2, seals=rules is not None)
        self._steps = BackwardSteps(
            job, layout, gradients, session, self._observer, waits=self._waits, updates=updates
        )
        return self._steps

    def bring(self, tensors: Sequence[torch.Tensor], root: int = 0) -> None:
        """Have the values of worker `root` in `tensors`, which all workers have alike; nothing may be under way."""
        if self._session is not None and self._session.communicator is not None:
            bring(self._session.communicator, tensors, root)

    def leave(self, error: BaseException | None = None) -> None:
        """End this process's part: in order when all others have done theirs, or with what went wrong here."""
        if self._has_left:
            return
        self._has_left = True
        kind: type[BaseException] | None = None
        trace: TracebackType | None = None
        if error is not None:
            kind, trace = type(error), error.__traceback__
        elif self._session is not None:
            try:
                if self._steps is not None:
                    self._steps.settle()
                self._session.client.finish_with_all(progress=self._progress(), parameters_sha256="")
            except TaihuError as failure:
                kind, error, trace = type(failure), failure, failure.__traceback__
        if self._session is None and self._listener is not None:
            self._listener.close()
        self._stack.__exit__(kind, error, trace)

    def _waits(self, is_waiting: bool) -> None:
        self._is_waiting = is_waiting

    def _progress(self) -> Progress:
        if self._is_waiting:
            return self._observer.progress()
        # What the script does between two steps is its own affair, however long it takes.
        self._activity.moved()
        return replace(self._observer.progress(), waits_for="", in_step_seconds=0.0)


def bring(communicator: Communicator, tensors: Sequence[torch.Tensor], root: int = 0) -> None:
    """Have the values of worker `root` in all `tensors`, to the bit, whatever their types and devices."""
    with torch.no_grad():
        for tensor in tensors:
            here = tensor.detach().to("cpu", copy=True).contiguous()
            # As bytes in the clothes of fp32: broadcasting moves them, and computes nothing.
            raw = here.view(-1).view(torch.uint8).numpy() if here.numel() else np.zeros(0, dtype=np.uint8)
            padded = np.zeros(-(-len(raw) // 4) * 4, dtype=np.uint8)
            padded[: len(raw)] = raw
            for start in range(0, len(padded) // 4, _VALUES_AT_A_TIME):
                communicator.broadcast(padded.view(np.float32)[start : start + _VALUES_AT_A_TIME], root=root)
            if here.numel():
                brought = torch.from_numpy(padded[: len(raw)]).view(here.dtype).view(here.shape)
                tensor.copy_(brought)
