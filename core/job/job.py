"""The whole job: what its sections may not be combined with, and what follows from them together."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator
from pydantic.fields import FieldInfo

from taihu.core.job.loose import loose_mistake
from taihu.core.model.model_defaults import default_learning_rate, default_model
from taihu.core.model.names import shared_data_name
from taihu.core.model.world import World
from taihu.core.settings import (
    ChaosSettings,
    CheckpointSettings,
    ClusterSettings,
    CompressionSettings,
    DataSettings,
    ExchangeSettings,
    ModelSettings,
    OptimizerSettings,
    RunSettings,
    Section,
    SecuritySettings,
    TrainSettings,
)
from taihu.core.settings.base import Form
from taihu.core.traits.consistencies import Consistency
from taihu.core.traits.optimizers import SGD
from taihu.core.traits.stages import STAGES, Stage
from taihu.core.wire.base.patience import Patience

_NAME: Final = Form(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}",
    "at most 100 letters, digits, dots, dashes and underscores that begin with a letter or a digit",
    "fashion-2",
)
_FP32_BYTES: Final = 4
_BUCKET_BYTES: Final = 16 << 20
_LEAST_USUAL_BUCKET_BYTES: Final = 1 << 20
_BUCKETS: Final = 8
# Of DiLoCo (Douillard et al. 2023, section 3.1).
_OUTER_RATE_OF_MOMENTUM: Final = 0.7


class Job(Section):
    """A whole job; every key has a default, so that an empty file is a job."""

    name: Annotated[str, _NAME] = Field(default="taihu", description="the run's name, the same in all its processes")
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    train: TrainSettings = TrainSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    exchange: ExchangeSettings = ExchangeSettings()
    compression: CompressionSettings = CompressionSettings()
    cluster: ClusterSettings = ClusterSettings()
    run: RunSettings = RunSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    chaos: ChaosSettings = ChaosSettings()
    security: SecuritySettings = SecuritySettings()

    @property
    def patience(self) -> Patience:
        """The deadlines of its processes."""
        return Patience(self.cluster.lost_after_s)

    @model_validator(mode="after")
    def _has_a_model_for_its_data(self) -> Job:
        """A model that was not set is one for the data; it still counts as one that was not set."""
        given = self.model.model_fields_set
        if "name" not in given:
            values = {**dict(self.model), "name": default_model(self.data.name)}
            # As for the learning rate below, which depends on it.
            object.__setattr__(self, "model", ModelSettings.model_construct(set(given), **values))
        return self

    @model_validator(mode="after")
    def _learns_at_the_models_rate(self) -> Job:
        """A learning rate that was not set is that of the model; it still counts as one that was not set."""
        given = self.optimizer.model_fields_set
        if "learning_rate" not in given:
            rate = self.optimizer.rule.learning_rate or default_learning_rate(self.model.name)
            values = {**dict(self.optimizer), "learning_rate": rate}
            # The job is frozen for its users; here it is being made.
            object.__setattr__(self, "optimizer", OptimizerSettings.model_construct(set(given), **values))
        return self

    @model_validator(mode="after")
    def _compression_fits(self) -> Job:
        compression, optimizer = self.compression, self.exchanged_optimizer
        # Sums that come back leave the parameters to whoever updates them.
        sparse = self.downlink != "dense" and self.exchange.returns == "parameters"
        few_bits = compression.method.selects and compression.is_of_few_bits
        if not self.exchange.kind.sums_halves and compression.value_type != "fp32" and not few_bits:
            raise ValueError(
                "a ring sums in fp32: set compression.value_type = 'fp32', or select values of few bits, for example "
                "'int4'"
            )
        if compression.method.is_chosen and self.exchange.returns != "parameters":
            raise ValueError(
                "compression 'auto' is chosen by steps of the built-in loop, which begins anew behind them: give the "
                "run of a script a method, see `taihu plan search`"
            )
        if compression.method.codes and compression.value_type != "fp32":
            raise ValueError(
                f"compression '{compression.method}' sends its matrices as they are: set compression.value_type = "
                "'fp32'"
            )
        if compression.method.selects and self.exchange.transport == "same-host":
            raise ValueError("compressed gradients travel in messages: set exchange.transport = 'auto'")
        if not compression.method.selects and (self.downlink != "dense" or compression.momentum_at == "workers"):
            raise ValueError("compression.downlink and momentum on the workers need a compression.method")
        if compression.method.sends_all and compression.value_type == "fp32":
            raise ValueError(
                f"compression '{compression.method}' sends every value, in fewer bits: set compression.value_type, "
                "for example 'int4'"
            )
        if compression.rounds_sums and (reason := self._why_no_sums_come_back):
            raise ValueError(
                f"compression.downlink_value_type {compression.downlink_value_type} is of sums of selected values, "
                f"which do not come back: {reason}"
            )
        if compression.method.is_of_whole_model and self.exchange.plan not in ("auto", "single"):
            raise ValueError(
                f"compression '{compression.method}' selects from the whole gradient: set exchange.plan = 'single'"
            )
        if not optimizer.rule.is_linear and (sparse or compression.momentum_at == "workers"):
            raise ValueError(f"optimizer '{optimizer.name}' runs on the servers: set compression.downlink = 'dense'")
        if sparse and optimizer.momentum and compression.momentum_at == "servers":
            raise ValueError("momentum on the servers changes every parameter: set compression.downlink = 'dense'")
        return self

    @model_validator(mode="after")
    def _zero_fits(self) -> Job:
        exchange, stage, usual = self.exchange, self.stage, self._usual_stage
        precision = self.train.precision
        if precision != "fp32" and self.exchange.returns == "parameters" and not stage.divides_gradients:
            raise ValueError(f"precision {precision} holds gradients group by group: set exchange.zero = 2 or 3")
        if precision != "fp32" and (self.compression.method.selects or self.compression.method.codes):
            raise ValueError(
                f"precision {precision} goes with dense gradients: set train.precision = 'fp32' or "
                "compression.method = 'none'"
            )
        if precision == "fp16" and exchange.fc != "data":
            raise ValueError(
                "precision fp16 skips steps that sharded layers have updated: set train.precision = 'bf16', or "
                "exchange.fc = 'data'"
            )
        if self.compression.method.selects and stage != usual:
            raise ValueError(
                f"compression keeps a residual of every gradient on every worker, which zero {stage} does not "
                f"divide: set exchange.zero = {usual}"
            )
        if exchange.transport == "same-host" and self.servers and precision != "fp32":
            raise ValueError(f"servers map no {precision} gradients: set exchange.transport = 'auto'")
        if exchange.transport == "same-host" and not self._maps_arenas:
            raise ValueError(f"zero {stage} keeps no arena that others can map: set exchange.transport = 'auto'")
        return self

    @model_validator(mode="after")
    def _returns_fit(self) -> Job:
        returns = self.exchange.returns
        if returns == "parameters":
            return self
        if returns == "gradients" and self.stage.divides_optimizer:
            raise ValueError("exchange.returns 'gradients' leaves updates to all workers: set exchange.zero = 0")
        if returns == "script" and not self.servers:
            raise ValueError(
                "exchange.returns 'script' is for servers that update: set exchange.returns = 'gradients'"
            )
        if self.downlink == "doublesqueeze" or (self.downlink == "exact" and not self.servers):
            raise ValueError(
                f"exchange.returns '{returns}' brings sums of all that was selected: leave compression.downlink out"
            )
        clips = self.optimizer.clip_norm is not None or self.optimizer.clip_value is not None
        if self.exchange.fc != "data" or clips:
            raise ValueError(
                f"exchange.returns '{returns}' leaves layers and clipping to whoever updates: set exchange.fc = "
                "'data' and leave optimizer.clip_norm and optimizer.clip_value out"
            )
        return self

    @model_validator(mode="after")
    def _clipping_fits(self) -> Job:
        key = "clip_norm" if self.optimizer.clip_norm is not None else "clip_value"
        if getattr(self.optimizer, key) is None:
            return self
        if self.compression.method.selects and not self.updates_locally:
            raise ValueError(
                f"optimizer.{key} clips dense gradients: leave it out, or set compression.clip_norm in its place"
            )
        if self.exchange.fc != "data":
            raise ValueError(f"optimizer.{key} clips gradients of whole layers: set exchange.fc = 'data'")
        if self.clips_whole and self.servers and self.stage.divides_optimizer:
            raise ValueError(
                "optimizer.clip 'whole' needs all sums before the first update, and each server has a part of them: "
                "set exchange.zero = 0, or exchange.kind = 'ring'"
            )
        return self

    @model_validator(mode="after")
    def _local_steps_fit(self) -> Job:
        if not self.updates_locally:
            return self
        exchange, compression = self.exchange, self.compression
        if self.stage.divides_gradients:
            raise ValueError(
                f"exchange.local_steps {exchange.local_steps} keeps parameters and gradients on every worker, which "
                f"zero {self.stage} divides: leave exchange.zero and train.precision out"
            )
        if exchange.fc != "data":
            raise ValueError(
                f"exchange.local_steps {exchange.local_steps} exchanges differences of whole layers: set "
                "exchange.fc = 'data'"
            )
        if self.models_compute:
            raise ValueError(
                f"compute {self.cluster.compute} models steps of one batch: set exchange.local_steps = 1"
            )
        if compression.clip_norm is not None:
            raise ValueError(
                "compression.clip_norm bounds what is exchanged, which are differences behind local steps: set "
                "optimizer.clip_norm in its place"
            )
        if compression.method.selects and exchange.outer_momentum:
            raise ValueError(
                "exchange.outer_momentum is of dense differences, and what compression holds back acts as momentum "
                "already: leave one of the two out"
            )
        return self

    @model_validator(mode="after")
    def _consistency_fits(self) -> Job:
        if mistake := loose_mistake(self):
            raise ValueError(mistake)
        return self

    @model_validator(mode="after")
    def _checkpoints_fit(self) -> Job:
        if self.checkpoint.resumes_auto:
            if self.checkpoint.dir in {None, Path("none")}:
                raise ValueError(
                    "checkpoint.resume auto is the newest in checkpoint.dir: name that folder, which all processes "
                    "see; or give the step's own"
                )
        elif self.checkpoint.resume is not None and self.model.init_from is not None:
            raise ValueError("a run goes on from checkpoint.resume or begins from model.init_from: leave one out")
        return self

    @property
    def models_compute(self) -> bool:
        """Whether forward and backward have modelled times."""
        return self.cluster.compute != "cpu"

    @property
    def consistency(self) -> Consistency:
        """The gradients that parameters may lack."""
        return self.exchange.consistency

    @property
    def stage(self) -> Stage:
        """The stage of ZeRO: what is divided among servers or workers, 0 nothing to 3 everything."""
        return self._usual_stage if self.exchange.zero is None else self.exchange.zero

    @property
    def _usual_stage(self) -> Stage:
        if self.exchange.returns == "gradients":
            return STAGES[0]
        if self.has_master:
            return STAGES[2]
        return STAGES[1] if self.servers else STAGES[0]

    @property
    def _maps_arenas(self) -> bool:
        """Whether the stage has arenas that other processes may map: all that they hold stays where it is."""
        if self.servers:
            return not self.stage.divides_gradients and self.train.precision == "fp32"
        return not self.stage.divides_optimizer

    @property
    def workers_update(self) -> bool:
        """Whether workers update parameters themselves: in rings, and where servers do nothing but sum."""
        return not (self.servers and self.stage.divides_optimizer)

    @property
    def takes_back(self) -> bool:
        """Whether workers of a ring hold back again what a sum leaves out, so that this is known behind the step."""
        return not self.servers and self.downlink == "doublesqueeze"

    @property
    def may_hold_steps(self) -> bool:
        """Whether members may hold their last steps: not in scripts, nor with fp16, whose loss scale comes later."""
        wanted, returns = self.checkpoint.in_memory, self.exchange.returns
        known = returns == "parameters" and self.train.precision != "fp16" and self.consistency.is_strict
        return wanted and known

    @property
    def leaves_out(self) -> bool:
        """Whether a step may bring gradients of some layers alone: those of one of a script's optimizers."""
        return self.exchange.returns == "gradients"

    @property
    def refuses_non_finite(self) -> bool:
        """Whether gradients that are not finite end the run; those that come back are judged by whoever updates."""
        if self.exchange.non_finite is None:
            return self.exchange.returns == "parameters"
        return self.exchange.non_finite == "error"

    @property
    def whole_norm(self) -> float | None:
        """The largest norm of the whole mean gradient, where that is clipped."""
        return None if self.updates_locally else self.local_norm

    @property
    def local_norm(self) -> float | None:
        """The largest norm of a worker's own whole gradient, where that is clipped before a local update."""
        return self.optimizer.clip_norm if self.optimizer.clip == "whole" else None

    @property
    def clips_whole(self) -> bool:
        """Whether no group is updated before all have been summed, for the norm of the whole gradient."""
        return self.whole_norm is not None

    @property
    def updates_together(self) -> bool:
        """Whether the groups of a step wait for each other, so that none is updated before all are there."""
        return self.holds_gradients or self.clips_whole

    @property
    def holds_gradients(self) -> bool:
        """Whether a step's gradients are sent when all are there: only then fp16 knows whether to skip the step.

        What comes back to a script does so as it is: its GradScaler knows.
        """
        return self.has_master and self.train.precision == "fp16"

    @property
    def has_master(self) -> bool:
        """Whether parameters, too, come in 16 bits, and whoever updates them has them in fp32."""
        return self.train.precision != "fp32" and self.exchange.returns == "parameters"

    def bucket_bytes(self, exchanged: int) -> int:
        """The most fp32 bytes of a merged group from stage 2 on, where so many parameters are exchanged.

        Beside layers that are spread over the workers the rest of a model may be less than a usual bucket: one group
        would be all of it, and nothing would be divided.
        """
        if self.exchange.bucket_bytes is not None:
            return self.exchange.bucket_bytes
        if self.exchange.fc == "data":
            return _BUCKET_BYTES
        return min(_BUCKET_BYTES, max(_LEAST_USUAL_BUCKET_BYTES, _FP32_BYTES * exchanged // _BUCKETS))

    @property
    def plans_by_measuring(self) -> bool:
        """Whether the timeline knows the job's exchange.

        It knows one exchange for each group and step that begins within backward: not what stage 3 of ZeRO fetches,
        and not what begins after backward, as the second matrices of a product do. It knows no workers that stand at
        several steps, which cannot go on by another plan either.
        """
        known = not (self.stage.divides_parameters or self.updates_together or self.compression.method.codes)
        return known and self.consistency.is_strict

    @property
    def servers(self) -> int:
        """Number of servers; 0 where workers exchange with each other."""
        return self.cluster.servers if self.exchange.kind.has_servers else 0

    @property
    def world(self) -> World:
        """The first world of the run; the plan of a step says who takes part in it."""
        return World(self.servers, self.cluster.workers)

    @property
    def workers_meet(self) -> bool:
        """Whether workers exchange with each other."""
        return not self.servers or self.layout_follows

    @property
    def layout_follows(self) -> bool:
        """Whether what is exchanged is known only when the workers have met."""
        return self.exchange.fc != "data" or self.exchange.returns != "parameters"

    @property
    def _why_no_sums_come_back(self) -> str:
        """The reason why no sums of selected values come back from servers, and the remedy; "" where they do."""
        optimizer = self.exchanged_optimizer
        if not self.servers:
            return "a ring has no servers; set it to 'fp32'"
        if not self.compression.method.selects:
            return "everything is sent; choose a compression.method"
        if self.downlink == "exact":
            return ""
        if not optimizer.rule.is_linear:
            return f"optimizer '{optimizer.name}' runs on the servers, which answer with parameters; set it to 'fp32'"
        return "set compression.downlink = 'exact', and no momentum on the servers"

    @property
    def downlink(self) -> Literal["dense", "exact", "doublesqueeze"]:
        """The values that come back from the servers."""
        if self.compression.downlink != "auto":
            return self.compression.downlink
        if not self.compression.method.selects:
            return "dense"
        if self.exchange.returns != "parameters":
            # Servers answer with the sums of what was selected; in a ring it is spread over all elements.
            return "exact" if self.servers else "dense"
        exact = self.exchanged_optimizer.rule.is_linear and self.compression.momentum_at != "servers"
        return "exact" if exact else "dense"

    @property
    def shares_memory(self) -> bool:
        """Whether processes of one machine exchange dense gradients, and parameters, in memory that they share."""
        possible = self.exchange.transport in ("auto", "same-host") and self._maps_arenas
        return possible and not self.compression.method.selects and self.consistency.is_strict

    @property
    def history_folder(self) -> Path | None:
        """The folder in which every process records what it did; None where none does."""
        return None if self.run.history == Path("none") else self.run.history

    @property
    def order_folder(self) -> Path | None:
        """The folder in which servers record which frames entered which version; None where none does."""
        is_kept = not self.consistency.is_strict and self.run.order != Path("none")
        return self.run.order if is_kept else None

    @property
    def momentum_on_workers(self) -> bool:
        """Whether workers apply momentum and weight decay before they select, and servers plain SGD."""
        changes_selected = self.downlink != "dense" and self.exchange.returns == "parameters"
        return changes_selected or self.compression.momentum_at == "workers"

    @property
    def drops_momentum(self) -> bool:
        """Whether nobody applies momentum: gradients that were held back act as one already (docs/compression.md)."""
        compression = self.compression
        if not compression.method.selects or self.exchange.returns != "parameters":
            return False
        of_sgd = self.exchanged_optimizer.rule.is_linear
        is_left = compression.acts_as_momentum(of_sgd=of_sgd) and not compression.factor_masking
        return compression.momentum_at == "none" or (compression.momentum_at == "auto" and is_left)

    @property
    def lowers_held_back(self) -> bool:
        """Whether what is held back is made smaller as the learning rate rises, so that it counts for no more."""
        compression = self.compression
        # Differences of local steps have their rates in them.
        if not compression.method.holds_back or self.updates_locally:
            return False
        if compression.held_back_rises != "auto":
            return compression.held_back_rises == "no"
        return compression.momentum_at in ("auto", "none") and self.downlink != "doublesqueeze"

    @property
    def updates_locally(self) -> bool:
        """Whether a step has several updates of each worker's own copy, and their difference is exchanged."""
        return self.exchange.local_steps > 1

    @property
    def exchanged_optimizer(self) -> OptimizerSettings:
        """The rule by which parameters change by what is exchanged: gradients, or differences of local steps."""
        if not self.updates_locally:
            return self.optimizer
        momentum, rate = self.exchange.outer_momentum, self.exchange.outer_learning_rate
        return OptimizerSettings(
            name=SGD,
            learning_rate=rate or (_OUTER_RATE_OF_MOMENTUM if momentum else 1.0),
            momentum=momentum,
            nesterov=bool(momentum),
        )

    @property
    def applied_optimizer(self) -> OptimizerSettings:
        """The same without the momentum that is dropped."""
        return self.exchanged_optimizer.without_momentum if self.drops_momentum else self.exchanged_optimizer

    @property
    def optimizer_of_rate(self) -> OptimizerSettings:
        """The optimizer whose learning rate is that of the run: of local updates, where there are some."""
        return self.optimizer if self.updates_locally else self.applied_optimizer

    @property
    def server_optimizer(self) -> OptimizerSettings:
        """The part of it that is left to the servers.

        Where they update by one worker's gradient at a time, each is a share of the step (docs/consistency.md).
        """
        applied = self.applied_optimizer
        if self.consistency.applies_each:
            workers = self.cluster.workers
            rates = ("learning_rate", "final_learning_rate")
            return applied.model_copy(update={name: getattr(applied, name) / workers for name in rates})
        if not self.momentum_on_workers:
            return applied
        return applied.model_copy(update={"momentum": 0.0, "nesterov": False, "weight_decay": 0.0})

    @property
    def digest(self) -> str:
        """SHA-256 over `shared_settings`."""
        return hashlib.sha256(json.dumps(self.shared_settings, sort_keys=True).encode()).hexdigest()

    @property
    def shared_settings(self) -> dict[str, str]:
        """The settings that all members of a run must share (not paths or addresses): key to value, as JSON.

        Of data of the user's own that is the name of the file or folder, which may lie elsewhere on every host.
        """
        local = {"coordinator", "connect_timeout_s", "min_agents", "threads", "reflection"}
        own = {
            "model": {"init_from"},
            "data": {"path"},
            "train": {"evaluate"},
            "cluster": local,
            "checkpoint": {"dir", "resume", "in_memory"},
        }
        if self.servers or not self.stage.divides_parameters:
            # Where workers gather parameters from each other, they must do so equally often.
            own["train"] |= {"recompute", "recompute_segments"}
        data = self.data.model_copy(update={"name": shared_data_name(self.data.name)})
        shared = self.model_copy(update={"data": data})
        tables = shared.model_dump(
            mode="json", exclude={**own, "name": True, "run": True, "chaos": True, "security": True}
        )
        values = {f"{table}.{key}": json.dumps(value) for table, of in tables.items() for key, value in of.items()}
        return {"name": json.dumps(self.name), **values}


def setting_keys() -> dict[str, FieldInfo]:
    """Every key of a job file but `name`, as `section.key`."""
    return {
        f"{section}.{key}": field
        for section, table in setting_tables().items()
        for key, field in table.model_fields.items()
    }


def setting_tables() -> dict[str, type[Section]]:
    """The tables of a job file by name."""
    kinds = {name: field.annotation for name, field in Job.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Section)}
