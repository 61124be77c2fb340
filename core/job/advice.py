"""Settings that were given and have no effect, and schedules that end before the run: warnings, in one pure table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job
from taihu.core.job.schedule import in_steps, learning_rate
from taihu.core.model.names import TEXT_DATA, own_data
from taihu.core.model.run_length import RunLength
from taihu.core.settings import OptimizerSettings
from taihu.core.settings.words import written


@dataclass(frozen=True)
class Rule:
    """The settings `keys`, separated by spaces, have no effect while `idle`, for the reason `because`."""

    keys: str
    idle: Callable[[Job], bool]
    because: str


def _does_not_read(key: str) -> Callable[[Job], bool]:
    """Whether a job's optimizer has no use for a key of its table."""
    return lambda job: key not in job.optimizer.rule.reads


def _own_kind(job: Job) -> str:
    """The kind of the user's own data, nothing where they are built in."""
    own = own_data(job.data.name)
    return "" if own is None else own.kind


RULES: Final = (
    Rule(
        "optimizer.momentum optimizer.nesterov",
        _does_not_read("momentum"),
        "is for optimizer.name sgd",
    ),
    Rule(
        "optimizer.beta1 optimizer.beta2 optimizer.epsilon",
        _does_not_read("beta1"),
        "is for optimizer.name adam and adamw",
    ),
    Rule(
        "optimizer.milestones optimizer.milestone_epochs optimizer.gamma",
        lambda job: job.optimizer.schedule != "step",
        "is for optimizer.schedule step",
    ),
    Rule(
        "optimizer.decay_steps optimizer.final_learning_rate",
        lambda job: job.optimizer.schedule != "cosine",
        "is for optimizer.schedule cosine",
    ),
    Rule("optimizer.clip", lambda job: job.optimizer.clip_norm is None, "needs an optimizer.clip_norm"),
    Rule("train.epochs", lambda job: job.train.steps is not None, "gives way to train.steps"),
    Rule(
        "checkpoint.every_seconds",
        lambda job: job.checkpoint.every_steps is not None,
        "gives way to checkpoint.every_steps",
    ),
    Rule("train.recompute_segments", lambda job: job.train.recompute == "none", "needs a train.recompute"),
    Rule(
        "train.loss_scale train.loss_scale_growth_steps",
        lambda job: job.train.precision != "fp16",
        "is for train.precision fp16",
    ),
    Rule("data.path", lambda job: job.data.name == "digits", "is not read for digits, which scikit-learn brings"),
    Rule("data.path", lambda job: job.data.name == TEXT_DATA, "is not read for the sources that Python brings"),
    Rule("data.path", lambda job: job.data.name.startswith("synthetic:"), "is not read for data that are computed"),
    Rule(
        "data.test_share data.split_seed data.target data.task data.drop data.fill data.texts data.header "
        "data.encoding data.decimal data.skip_bad",
        lambda job: own_data(job.data.name) is None,
        "is for data of your own",
    ),
    Rule("data.path", lambda job: _own_kind(job) not in {"", "function"}, "is for built-in data and functions"),
    Rule(
        "data.target data.drop data.fill data.texts data.header data.encoding data.decimal",
        lambda job: _own_kind(job) in {"function", "arrays", "text"},
        "is for tables",
    ),
    Rule("data.skip_bad", lambda job: _own_kind(job) in {"function", "arrays", "text"}, "is for tables and images"),
    Rule("data.task", lambda job: _own_kind(job) == "text", "is for data with targets"),
    Rule(
        "data.sequence",
        lambda job: job.data.name != TEXT_DATA and _own_kind(job) not in {"text", "folder"},
        "is for text",
    ),
    Rule("exchange.live_bytes", lambda job: not job.stage.divides_parameters, "is for exchange.zero 3"),
    Rule(
        "exchange.bucket_bytes",
        lambda job: not job.stage.divides_gradients and job.exchange.fc == "data",
        "is for exchange.zero 2 and 3, and for layers that are spread",
    ),
    Rule(
        "exchange.fc_scheme exchange.fc_update exchange.fc_inputs",
        lambda job: job.exchange.fc == "data",
        "is for layers that are spread: exchange.fc auto or shard",
    ),
    Rule(
        "exchange.replan_every",
        lambda job: job.exchange.plan not in {"auto", "greedy", "exact"},
        "is for plans that are computed: exchange.plan auto, greedy or exact",
    ),
    Rule(
        "exchange.outer_learning_rate exchange.outer_momentum",
        lambda job: not job.updates_locally,
        "is for exchange.local_steps above 1",
    ),
    Rule(
        "run.order",
        lambda job: job.consistency.is_strict,
        "is for steps that do not wait for all workers: exchange.consistency ssp:K, async or bsp:N-b",
    ),
    Rule("exchange.window_frames", lambda job: not job.servers, "is for exchange.kind server"),
    Rule(
        "exchange.frame_bytes",
        lambda job: not job.servers and not job.compression.method.selects,
        "is for exchange.kind server, or compressed gradients",
    ),
    Rule(
        "compression.density compression.refresh_every compression.factor_masking compression.density_warmup_steps "
        "compression.clip_norm compression.clip compression.value_type compression.momentum_at "
        "compression.threshold compression.threshold_slack compression.held_back_rises",
        lambda job: not (job.compression.method.selects or job.compression.method.is_chosen),
        "needs a compression.method",
    ),
    Rule(
        "compression.density compression.density_warmup_steps compression.factor_masking",
        lambda job: job.compression.method.sends_all,
        "is for methods that leave values out",
    ),
    Rule("compression.rank", lambda job: not job.compression.method.codes, "is for compression.method powersgd"),
    Rule(
        "compression.held_back_rises",
        lambda job: job.compression.method.selects and job.updates_locally,
        "is for gradients; the differences of local steps have their rates in them",
    ),
    Rule(
        "compression.clip",
        lambda job: job.compression.method.selects and job.compression.clip_norm is None,
        "needs a compression.clip_norm",
    ),
    Rule(
        "compression.refresh_every compression.threshold compression.threshold_slack",
        lambda job: job.compression.method.selects and not job.compression.method.reuses,
        "is for compression.method dlgs",
    ),
    Rule(
        "compression.factor_masking compression.momentum_at",
        lambda job: (
            job.compression.method.selects
            and job.exchanged_optimizer.rule.is_linear
            and not job.exchanged_optimizer.momentum
        ),
        "needs a momentum of what is exchanged",
    ),
    Rule("cluster.servers", lambda job: not job.servers, "is for exchange.kind server; a ring has none"),
    Rule("cluster.core_groups cluster.pace", lambda job: not job.models_compute, "is for cluster.compute sw26010"),
)
# With a factor rather than a switch no value means that it is off.
_NEVER_OFF: Final = ("optimizer.beta1", "optimizer.beta2", "data.header")


def advice(job: Job, length: RunLength | None = None) -> tuple[str, ...]:
    """Lines for whoever started `job`, to be said before it runs; `length` as far as it is known."""
    settings = dict(without_effect(job))
    idle = [f"{key} = {written(_value(job, key))} has no effect: it {because}" for key, because in settings.items()]
    return (*idle, *advice_on_momentum(job), *advice_on_schedule(job, length))


def without_effect(job: Job) -> Iterator[tuple[str, str]]:
    """Keys that were given, by whatever source, to no effect, each with the reason."""
    for rule in RULES:
        for key in rule.keys.split():
            if _is_given(job, key) and rule.idle(job):
                yield key, rule.because


def _is_given(job: Job, key: str) -> bool:
    section, _, name = key.partition(".")
    # What switches off what has no effect anyhow is right.
    off = not _value(job, key) or str(_value(job, key)) in {"none", "auto"}
    return name in getattr(job, section).model_fields_set and (not off or key in _NEVER_OFF)


def _value(job: Job, key: str) -> object:
    section, _, name = key.partition(".")
    return getattr(getattr(job, section), name)


def advice_on_momentum(job: Job) -> Iterator[str]:
    """A line about momentum that is dropped."""
    given, applied = job.exchanged_optimizer, job.applied_optimizer
    key = given.rule.momentum
    if given == applied or job.compression.momentum_at == "none":
        return
    rate, applying = "", "servers" if job.downlink == "dense" else "workers"
    if applied.learning_rate != given.learning_rate:
        rate = f", and the learning rate is {applied.learning_rate:g} in place of {given.learning_rate:g}"
    yield (
        f"optimizer.{key} {getattr(given, key):g} is not applied: what compression holds back acts as momentum"
        f"{rate}; compression.momentum_at = {applying!r} applies it"
    )


def advice_on_schedule(job: Job, length: RunLength | None) -> Iterator[str]:
    """Lines about a learning rate's schedule that does not fit the length of the run, as far as that is known."""
    total = length.total_steps if length is not None else job.train.steps
    if total is None:
        return
    try:
        optimizer = in_steps(job.optimizer, length)
    except ConfigError:  # by epochs, whose length is not known yet
        return
    if optimizer.warmup_steps > total:
        yield f"warm-up ends at step {optimizer.warmup_steps}, the run at {total}: the rate never becomes full"
    late = [step for step in optimizer.milestones if step >= total] if optimizer.schedule == "step" else []
    if late:
        yield f"milestone {late[0]} is not before the run's end, at step {total}: the rate stays as it is there"
    zero_from = _first_without_rate(optimizer, total)
    if zero_from is not None:
        yield (
            f"the learning rate is 0 from step {zero_from} on, the run ends at {total}: the last "
            f"{total - zero_from + 1} steps change nothing; leave optimizer.decay_steps out, or set "
            "optimizer.final_learning_rate"
        )


def _first_without_rate(optimizer: OptimizerSettings, total: int) -> int | None:
    """The first step whose rate is 0 to the end of the run, None without one."""
    if optimizer.schedule != "cosine" or optimizer.decay_steps is None or learning_rate(optimizer, total) > 0:
        return None
    return optimizer.decay_steps + 1
