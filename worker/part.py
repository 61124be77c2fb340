"""A worker's part in one generation of a run: join, train, keep, save, and end when the generation ends."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import structlog

from taihu.allreduce.communicator import Communicator
from taihu.core.base.errors import ConfigError, RecoveringError, WriteError
from taihu.core.base.words import one_line
from taihu.core.chaos.points import Point
from taihu.core.checkpoint.files import PartFile
from taihu.core.checkpoint.held_steps import Label
from taihu.core.checkpoint.keepers import keepers
from taihu.core.checkpoint.run_memory import holds_steps
from taihu.core.checkpoint.writer import maybe_writing
from taihu.core.coordination.coordinator.coordinator import Coordinator
from taihu.core.coordination.membership.members import MemberId, Role
from taihu.core.coordination.metrics import CoordinatorMetrics
from taihu.core.history.records import End
from taihu.core.job import Job
from taihu.core.job.advice import advice
from taihu.core.model.caffe_net import notes_on_model
from taihu.core.optimization import in_steps
from taihu.core.planner.groups import group_of_layer
from taihu.core.process.last_will import LastWill
from taihu.core.process.memory.use import MemoryGrowth
from taihu.core.process.programs.user_code import own_mistakes_told
from taihu.core.process.results import RESULTS_FORMAT
from taihu.core.trace.clock_offset import ClockOffset
from taihu.core.wire.base.clock import SystemClock
from taihu.core.wire.frames.headers import ValueType
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.ending import Ending, save_at_end
from taihu.worker.engine import Model
from taihu.worker.exchange.session import Exchanged, Joining, Reporting, Session, take_part, take_part_after_meeting
from taihu.worker.opening import Opened, Who, opened
from taihu.worker.reporting.activity import Activity
from taihu.worker.reporting.observer import Observer
from taihu.worker.saved.beginning import begin_from
from taihu.worker.saved.writing import describe_model
from taihu.worker.steps import TrainingLoop
from taihu.worker.training.calibration import Measuring
from taihu.worker.training.checkpoints import Keeper, WorkerState, holding_of
from taihu.worker.training.clipping import LayerClipping
from taihu.worker.training.copying import copying
from taihu.worker.training.local_steps import LocalSteps
from taihu.worker.training.objective import model_for
from taihu.worker.training.pacing import Pacing
from taihu.worker.training.plan_follower import PlanFollower
from taihu.worker.training.planned_memory import PlannedMemory
from taihu.worker.training.replica import Replica, Uses, WholeReplica, prepare_hybrid
from taihu.worker.training.step_record import StepRecord
from taihu.worker.training.stopping import LastStep
from taihu.worker.training.trainer import Trainer

if TYPE_CHECKING:
    from taihu.worker.training.modelled_compute import ModelledCompute


@dataclass(frozen=True)
class _Prepared:
    """The model, its planned memory, and the growth of the process since."""

    model: Model
    planned: PlannedMemory
    growth: MemoryGrowth


@dataclass(frozen=True)
class _Made:
    """The replica, its local steps and its state, how its model was prepared, its modelled compute, and the pace."""

    replica: Replica
    local: LocalSteps | None
    state: WorkerState
    prepared: _Prepared
    modelled: ModelledCompute | None
    pacing: Pacing | None


class Participant:
    """The part of a worker; `take_part` is called once.

    Args:
        opened: the worker.
        last_will: ends the process where a stuck thread cannot.
    """

    def __init__(self, opened: Opened, last_will: LastWill) -> None:
        who = opened.who
        self._opened = opened
        self._job = who.job
        self._options = who.options
        self._generation = who.generation
        self._dataset = who.dataset
        self._metrics = who.metrics
        self._stop = who.stop
        self._log = structlog.get_logger().bind(role="worker", rank=who.options.rank)
        self._clock = SystemClock()
        self._activity = Activity(self._clock)
        self._last_will = last_will

    def take_part(self) -> dict[str, Any]:
        """Take part in the run, from joining to finishing; returns this worker's results.

        Raises:
            RecoveringError: a member was lost, and another generation begins.
            TaihuError: what went wrong; the coordinator has been told.
        """
        train, rank, begun = self._job.train, self._options.rank, self._generation.begun
        total = self._opened.length.total_steps
        if self._opened.begun_after >= total:
            raise ConfigError(
                f"checkpoint.resume {self._job.checkpoint.resume}: all {total:,} steps have been made; raise "
                "train.epochs or train.steps to go on"
            )
        observer = Observer(
            rank,
            total_steps=total,
            batch=train.batch * self._job.exchange.local_steps,
            metrics=self._metrics,
            run_log=self._opened.run_log,
            activity=self._activity,
        )
        observer.goes_on(self._opened.begun_after)
        self._metrics.last_step.set(total)
        with self._joined(observer) as (session, made), self._stopping_in_order(observer):
            replica = made.replica
            self._activity.takes_part(session)
            replica.uses = replica.uses.agreed(session.exchange.agree)
            exchanged = replica.exchanged.layout.elements
            if rank == 0:
                for line in (*advice(self._job, self._opened.length), *notes_on_model(self._job.model.name)):
                    self._log.warning("advice", text=line)
                for line in self._dataset.told:
                    self._log.warning("data", text=line)
                    self._opened.run_log.happened("data", text=line)
            if rank == 0 and begun.compression and not begun.is_trial:
                because = begun.because or "as this run has chosen before"
                self._opened.run_log.happened("chosen", compression=self._job.compression.method.key, because=because)
            self._log.info("training", steps=total, exchanged=exchanged, plan=self._job.exchange.plan)
            self._opened.run_log.happened("training", workers=self._job.world.workers, steps=total)
            apart = not self._job.consistency.is_strict
            last = LastStep(session.client, self._stop, total, self._job.exchange.timeout_s, apart=apart)
            steps = self._make_steps(session, observer, made, last)
            if last.is_early and self._stop.goes_on:
                self._hand_over(session, observer, replica.digest(session.exchange))
            with self._activity.busy("the end of the run"):
                ending = self._save(session, replica, steps, stopped=last.is_early)
            # All workers take part in the hash: none leaves before worker 0 has what it saves.
            digest = replica.digest(session.exchange)
            profile = session.client.get_profile() if rank == 0 else None
            results = {
                "parameters_sha256": digest,
                **self._results(session, ending, made, stopped=last.is_early),
                **observer.results(session.exchange.plan, profile),
                **replica.results(steps),
            }
            # Behind the farewell nobody makes another process of a lost one: what there is to tell is told before.
            self._options.tell(results)
            self._finish(session, observer, digest, stopped=last.is_early)
        self._opened.recorder.add(End(steps))
        how, where = (
            "stopped" if last.is_early else "finished",
            {} if ending.path is None else {"saved": str(ending.path)},
        )
        self._log.info(how, steps=steps, parameters_sha256=digest, **where)
        self._opened.run_log.happened(how, **({"reason": self._stop.reason} if last.is_early else {}))
        return results

    @contextmanager
    def _joined(self, observer: Observer) -> Iterator[tuple[Session, _Made]]:
        """Take part with a replica; worker 0's parameters are the job's."""
        job, options = self._job, self._options
        prepared = self._prepared()
        reporting = Reporting(
            observer.progress,
            observer.compressed,
            options.tracer,
            self._last_will.begin,
            self._hosting,
            self._stop,
            self._opened.recorder,
            options.chaos,
        )
        test_images = len(self._dataset.test)
        uses = Uses(tests=job.train.evaluate, saves=options.files.model is not None, test_images=test_images)
        if uses.saves:
            describe_model(
                job, self._dataset, prepared.model, 0
            )  # what cannot be saved is said before hours of training
        joining = Joining(options.listener, self._opened.length, self._generation)
        if job.exchange.fc == "data":
            whole = self._made(prepared, WholeReplica(prepared.model, job, options.rank, uses))
            with take_part(job, options.rank, self._exchanged(whole), reporting, joining) as session:
                yield session, whole
            return
        made: list[_Made] = []

        def prepare(communicator: Communicator) -> Exchanged:
            made.append(self._made(prepared, self._prepare(communicator, prepared.model, uses)))
            return self._exchanged(made[0])

        with take_part_after_meeting(job, options.rank, prepare, reporting, joining) as session:
            yield session, made[0]

    def _prepared(self) -> _Prepared:
        """The job's model, with the parameters that the run begins with where they are those of a file."""
        growth = MemoryGrowth()
        model = model_for(self._job, self._dataset)
        model.use_threads(threads_of(self._job))
        planned = PlannedMemory(self._job, model)
        if self._opened.beginning is not None:
            begin_from(self._opened.beginning, model, self._job.model.init_skip)
        return _Prepared(model, planned, growth)

    def _made(self, prepared: _Prepared, replica: Replica) -> _Made:
        modelled = _modelled(self._job, replica, self._dataset)
        local, rank = self._local_steps(replica), self._options.rank
        describe = partial(describe_model, self._job, self._dataset, replica.model, 0)
        state = WorkerState(replica, describe, local, is_first=rank == 0)
        if modelled is None:
            return _Made(replica, local, state, prepared, None, None)
        self._metrics.exported.put(modelled.collector(rank))
        return _Made(replica, local, state, prepared, modelled, modelled.pacing(self._clock))

    def _exchanged(self, made: _Made) -> Exchanged:
        """The arenas of a replica, whose steps are held where the job says so."""
        member = str(MemberId(Role.WORKER, self._options.rank))
        hold = partial(holding_of, self._job, member, self._generation.number, made.state)
        return replace(made.replica.exchanged, hold=hold)

    def _hosting(self, coordinator: Coordinator) -> None:
        host = MemberId(Role.WORKER, self._options.rank)
        self._metrics.exported.put(CoordinatorMetrics(coordinator, host, self._generation))

    def _note_resumption(self) -> None:
        """Keep why this generation began, where there was one before it, and which agents run its workers."""
        begun, agents, run_log = self._generation.begun, self._generation.agents, self._opened.run_log
        if not self._opened.begun_after and not begun.follows:
            return
        shared_out = begun.shared_out if agents is None else agents.shared_out
        told = {"because": begun.follows, "agents": shared_out}
        run_log.happened(
            "resumed",
            after_step=self._opened.begun_after,
            made_again=run_log.made_again,
            **{key: words for key, words in told.items() if words},
        )
        run_log.flush()

    def _prepare(self, communicator: Communicator, model: Model, uses: Uses) -> Replica:
        # Sharded layers are updated here, by the same schedule as the servers' shards.
        optimizer = in_steps(self._job.optimizer, self._opened.length)
        job = self._job.model_copy(update={"optimizer": optimizer})
        return prepare_hybrid(job, communicator, model, uses, self._clock, self._options.tracer)

    def _make_steps(self, session: Session, observer: Observer, made: _Made, last: LastStep) -> int:
        """Make all steps, from the checkpoint that the run goes on from, and keep more; returns the last one."""
        replica, local = made.replica, made.local
        if self._opened.begun is not None:
            session.exchange.resume(self._opened.begun, self._options.rank)
            replica.resume(self._opened.begun)
            if local is not None:
                local.resume(self._opened.begun, self._options.rank, self._job.world.workers)

        def stored(step: int, file: PartFile) -> None:
            # Where the run goes on from here, its tables have all steps before.
            self._opened.run_log.flush()
            session.client.stored(step, file)

        try:
            writing = maybe_writing(
                self._job,
                stored,
                session.client.left_out,
                self._options.chaos,
                has_to_end=lambda: self._last_will.is_near,
            )
            bring = partial(self._bring, session) if self._is_copied else None
            copied = copying(str(session.client.member), self._generation.number, bring)
            with own_mistakes_told(), writing as writer, copied as copies:
                keeper = Keeper(
                    self._job,
                    session.client,
                    session.exchange,
                    made.state,
                    writer=writer,
                    generation=self._generation.number,
                    begun_after=self._opened.begun_after,
                    copying=copies,
                )
                return self._train(session, observer, made, last, keeper)
        finally:
            self._write_trace(session.client.coordinator_clock)

    @property
    def _is_copied(self) -> bool:
        """Whether this worker alone has little that would be lost with its host: servers have all else."""
        job, rank = self._job, self._options.rank
        workers = [name for name in keepers(job) if name.startswith("worker")]
        alone = job.servers > 0 and job.stage.divides_optimizer and workers == [f"worker {rank}"]
        return alone and self._options.agent != 0 and holds_steps(job)

    @staticmethod
    def _bring(session: Session, label: Label, part: bytes, stays: bool) -> None:
        session.client.bring_copy(label, part, stays=stays)

    def _train(
        self,
        session: Session,
        observer: Observer,
        made: _Made,
        last: LastStep,
        keeper: Keeper,
    ) -> int:
        """Make all steps; returns the last one."""
        settings = self._job.exchange
        measuring = Measuring(settings.calibration_steps, settings.replan_every, self._opened.begun_after)
        follower = PlanFollower(measuring, session.client, settings.timeout_s)

        def on_step(record: StepRecord) -> None:
            if made.modelled is not None:
                made.modelled.enter(record, self._options.tracer)
            follower.observe(record)
            observer.stepped(record)
            if record.step == self._opened.begun_after + 1:
                self._note_resumption()
            observer.travels(session.exchange.path)

        trainer = Trainer(
            job=self._job,
            rank=self._options.rank,
            model=made.replica,
            batches=self._opened.batches,
            exchange=session.exchange,
            measuring=measuring,
            clock=self._clock,
            tracer=self._options.tracer,
            on_step=on_step,
            on_move=self._activity.moved,
            clipping=self._clipping(made.replica),
            local=made.local,
            pacing=made.pacing,
        )
        loop = TrainingLoop(
            job=self._job,
            dataset=self._dataset,
            client=session.client,
            exchange=session.exchange,
            replica=made.replica,
            trainer=trainer,
            measuring=measuring,
            follower=follower,
            keeper=keeper,
            last=last,
            stop=self._stop,
            observer=observer,
            activity=self._activity,
            chaos=self._options.chaos,
            clock=self._clock,
            per_epoch=self._opened.length.steps_per_epoch,
            begun_after=self._opened.begun_after,
            is_untested=self._is_untested(session, made.replica),
        )
        return loop.run()

    def _is_untested(self, session: Session, replica: Replica) -> bool:
        """Whether the test behind the step that the run goes on from was lost with the process that was to make it.

        A checkpoint that members keep together comes behind that; one of the steps that they held may not. Worker 0
        knows, and tells those that have to take part.
        """
        step, per_epoch = self._opened.begun_after, self._opened.length.steps_per_epoch
        if not step or step % per_epoch:
            return False
        flag = np.array([self._options.rank == 0 and not self._opened.run_log.has_test(step)], dtype=np.float64)
        if replica.reads_together and session.communicator is not None:
            session.communicator.broadcast(flag, ValueType.FP64)
        return bool(flag[0])

    def _save(self, session: Session, replica: Replica, steps: int, *, stopped: bool) -> Ending:
        """Worker 0 saves the model after `steps`, and the others read along."""
        if stopped or replica.uses.saves:
            self._options.chaos.passes(Point.SAVE, steps)
        group_of = group_of_layer(session.exchange.plan.groups)

        def read_layer(layer: int) -> None:
            self._activity.moved()
            session.exchange.recall(group_of[layer])

        rank = self._options.rank
        return save_at_end(
            self._job,
            self._dataset,
            self._options.files,
            replica,
            read_layer,
            rank=rank,
            steps=steps,
            stopped=stopped,
            notices=self._options.notices,
        )

    def _clipping(self, replica: Replica) -> LayerClipping | None:
        largest, exchanged = self._job.optimizer.clip_norm, replica.exchanged
        if largest is None or self._job.local_norm is not None:
            return None
        return LayerClipping(exchanged.layout, exchanged.arenas.gradients, largest)

    def _local_steps(self, replica: Replica) -> LocalSteps | None:
        job, exchanged = self._job, replica.exchanged
        if not job.updates_locally:
            return None
        settings, count = in_steps(job.optimizer, self._opened.length), job.exchange.local_steps
        return LocalSteps(exchanged.layout, exchanged.arenas, settings, count, job.local_norm)

    def _results(self, session: Session, ending: Ending, made: _Made, *, stopped: bool) -> dict[str, Any]:
        """The results but for those of steps and replica."""
        begun = self._generation.begun
        late_s = 0.0 if made.pacing is None else made.pacing.late_s
        return {
            "format": RESULTS_FORMAT,
            "rank": self._options.rank,
            "stopped": stopped,
            "stop_reason": self._stop.reason if stopped else None,
            "total_steps": self._opened.length.total_steps,
            "saved": str(ending.path) if ending.path is not None else None,
            "not_saved": ending.problem or None,
            "data_notes": list(self._dataset.told),
            "chosen_compression": {key: json.loads(value) for key, value in begun.compression.items()},
            "chosen_because": begun.because or None,
            "plan": self._job.exchange.plan,
            "path": session.exchange.path,
            "skipped_steps": session.exchange.skipped_steps,
            "memory": {**made.prepared.growth.results(), **made.prepared.planned.results()},
            "modelled": None if made.modelled is None else made.modelled.results(late_s),
        }

    @contextmanager
    def _stopping_in_order(self, observer: Observer) -> Iterator[None]:
        """During the block, an interrupt is a wish that the coordinator is told, once there is something to save."""

        def take(reason: str) -> bool:
            if not observer.progress().step:
                return False
            self._stop.ask(reason, leaves=self._options.interrupts.leaves)
            return True

        with self._options.interrupts.offered_to(take):
            yield

    def _finish(self, session: Session, observer: Observer, digest: str, *, stopped: bool) -> None:
        # Nobody leaves before all are done with the same parameters: one that is lost until then would be missed, and
        # a launcher ends all others as soon as one exits with another code than 0.
        self._options.chaos.passes(Point.FAREWELL)
        session.client.finish_with_all(progress=observer.progress(), parameters_sha256=digest)
        if stopped:
            self._options.interrupts.ignore()

    def _hand_over(self, session: Session, observer: Observer, digest: str) -> NoReturn:
        """End this generation in order, behind a step that has been kept: one of the members leaves."""
        session.client.finish_with_all(progress=observer.progress(), parameters_sha256=digest)
        raise RecoveringError(self._stop.reason)

    def _write_trace(self, clock: ClockOffset) -> None:
        if self._options.trace is None:
            return
        try:
            self._options.tracer.write_part(
                self._options.trace,
                f"worker {self._options.rank}",
                self._job.servers + self._options.rank,
                offset_s=clock.offset_s,
                error_s=clock.error_s,
            )
        except WriteError as error:
            self._options.notices.say(str(error))


def participate(who: Who) -> dict[str, Any]:
    """Train to the end of the generation; returns this worker's results.

    Raises:
        RecoveringError: a member was lost, and another generation begins.
        TaihuError: what went wrong; the coordinator has been told.
    """
    last_will = LastWill(who.job.patience.still_after_s)
    try:
        with opened(who) as worker:
            try:
                return Participant(worker, last_will).take_part()
            except RecoveringError as error:
                worker.run_log.happened("recovering", reason=one_line(str(error)))
                raise
            except Exception as error:
                worker.run_log.happened("failed", reason=one_line(str(error)))
                raise
    finally:
        last_will.cancel()


def _modelled(job: Job, replica: Replica, dataset: Dataset) -> ModelledCompute | None:
    if not job.models_compute:
        return None
    from taihu.worker.training.modelled_compute import model_compute  # noqa: PLC0415 - most workers do not need it

    layers, end = len(replica.exchanged.layout.layers), replica.end_parts(job.train.batch)
    return model_compute(job, replica.model, dataset.input_shape, layers, end)


def threads_of(job: Job) -> int:
    """The threads that a worker computes with."""
    return job.cluster.threads or len(os.sched_getaffinity(0))
