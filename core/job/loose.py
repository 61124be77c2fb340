"""Settings that need the gradients of all workers in every step, beside a consistency that does not have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taihu.core.base.errors import ConfigError

if TYPE_CHECKING:
    # Which asks this.
    from taihu.core.job.job import Job


def loose_mistake(job: Job) -> str:
    """The first setting that does not go with `exchange.consistency`, and the remedy; nothing where all do."""
    consistency, stage, method = job.consistency, job.stage, job.compression.method
    if consistency.is_strict:
        return ""
    updates = stage.divides_optimizer and not stage.divides_parameters
    one_by_one = (
        f"by one worker's gradient at a time goes with optimizer sgd, not with {job.optimizer.name}: set "
        "optimizer.name = 'sgd', or exchange.consistency = 'bsp'"
    )
    needs = (
        (job.servers > 0, "is a matter of servers, and a ring has none: set exchange.kind = 'server'"),
        (job.train.precision == "fp32", "exchanges fp32: set train.precision = 'fp32'"),
        (updates, f"has servers send updated parameters, and zero {stage} does not: set exchange.zero = 1 or 2"),
        (job.exchange.returns == "parameters", "is of the built-in loop: leave exchange.returns out"),
        (job.exchange.fc == "data", "exchanges whole layers: set exchange.fc = 'data'"),
        (not job.updates_locally, "is of steps of one batch: set exchange.local_steps = 1"),
        (
            not (method.holds_back or method.is_chosen),
            "exchanges whole gradients: set compression.method = 'none'",
        ),
        (job.exchange.transport != "same-host", "copies parameters: set exchange.transport = 'auto'"),
        (job.history_folder is None, "is recorded by run.order: leave run.history out"),
        (job.optimizer.rule.is_linear or not consistency.applies_each, one_by_one),
        (consistency.spares < job.world.workers, "leaves no worker: raise cluster.workers"),
    )
    remedy = next((remedy for is_met, remedy in needs if not is_met), "")
    return remedy and f"exchange.consistency '{consistency}' {remedy}"


def check_simulated(job: Job) -> None:
    """Check that the job's steps are those that can be simulated.

    Raises:
        ConfigError: they do not wait for all workers.
    """
    if not job.consistency.is_strict:
        raise ConfigError(
            f"exchange.consistency '{job.consistency}': steps that wait for all workers alone are simulated; set "
            "exchange.consistency = 'bsp'"
        )
