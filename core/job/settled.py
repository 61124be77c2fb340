"""The job once a script has said who updates."""

from __future__ import annotations

from taihu.core.base.errors import ConfigError
from taihu.core.job.job import Job
from taihu.core.job.reading import revised
from taihu.core.job.update_rules import CONSTANTS, UpdateRules


def check_without_script(job: Job) -> None:
    """Check that the job goes without a script, whose steps alone are known before they run.

    Raises:
        ConfigError: its compression is of a script's gradients.
    """
    if job.compression.method.codes:
        raise ConfigError(
            f"compression '{job.compression.method}' is of a script's gradients, see `taihu run`: choose another "
            "compression.method for a model of taihu's own, its plans, and simulation"
        )


def settled(job: Job, updates: UpdateRules | None) -> Job:
    """`job` where servers update by `updates`, the optimizers of a script, or with None the workers do.

    Raises:
        ConfigError: they cannot in this job.
    """
    returns, zero = job.exchange.returns, job.exchange.zero
    if updates is None:
        if returns != "script":
            return job
        if zero is not None and zero.divides_optimizer:
            raise ConfigError(
                f'exchange.zero {zero} divides what servers keep: give DistributedOptimizer update="servers", or set '
                "exchange.zero = 0"
            )
        return revised(job, "exchange", returns="gradients")
    if job.compression.method.codes:
        raise ConfigError(
            f"update=\"servers\": compression '{job.compression.method}' brings mean gradients to the workers, which "
            'update; give update="workers"'
        )
    if not job.servers:
        raise ConfigError(
            'update="servers": a ring has no servers; start it with --servers, or give update="workers"'
        )
    if returns != "script":
        raise ConfigError(
            f"update=\"servers\": exchange.returns is {returns!r}; set exchange.returns = 'script' for all "
            'processes, or give update="workers"'
        )
    if zero is not None and not zero.divides_optimizer:
        raise ConfigError(
            'update="servers": in stage 0 of ZeRO servers keep nothing; set exchange.zero to 1, 2 or 3, or give '
            'update="workers"'
        )
    if job.train.precision != "fp32":
        raise ConfigError(
            f'update="servers": gradients travel in {job.train.precision} where workers update; give '
            "update=\"workers\", or set train.precision = 'fp32'"
        )
    job = _with_dense_answers(job)
    # Of several optimizers the job names the first; servers and workers go by the rules themselves.
    own = {key: getattr(updates.optimizers[0], key) for key in CONSTANTS}
    return revised(revised(job, "exchange", returns="parameters"), "optimizer", **own)


def _with_dense_answers(job: Job) -> Job:
    """`job` with answers that hold every parameter: what is selected of gradients moves all of them."""
    compression = job.compression
    if not compression.method.selects:
        return job
    if compression.downlink not in ("auto", "dense"):
        raise ConfigError(
            f'update="servers": the script\'s optimizer changes every parameter, and compression.downlink '
            f'{compression.downlink!r} brings some; leave it out, or give update="workers"'
        )
    if compression.momentum_at == "workers":
        raise ConfigError(
            "update=\"servers\": compression.momentum_at is 'workers', and servers keep the momentum of the script's "
            'optimizer; leave it out, or give update="workers"'
        )
    # As it would be, were the momentum not the script's own affair.
    rises = "no" if job.lowers_held_back else "yes"
    return revised(job, "compression", downlink="dense", momentum_at="servers", held_back_rises=rises)
