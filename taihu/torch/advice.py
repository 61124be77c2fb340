"""Advice to a script about its optimizer."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from taihu.core.job import Job
from taihu.core.settings.optimizer import rate_without


def advice_on_optimizer(job: Job, optimizer: torch.optim.Optimizer) -> Iterator[str]:
    """A line about momentum behind a selection: what compression holds back acts as one already (docs/adr/0061).

    That of local updates is before it.
    """
    if job.compression.momentum_at != "auto" or job.updates_locally:
        return
    kind = type(optimizer).__name__
    for group in optimizer.param_groups:
        momentum, betas = group.get("momentum", 0.0), group.get("betas")
        if not job.compression.acts_as_momentum(of_sgd=not betas):
            continue
        if betas and betas[0]:
            rest = ", ".join(f"{beta:g}" for beta in betas[1:])
            has, write = f"betas={tuple(betas)}", f"betas=(0.0, {rest}) and a learning rate 2 to 3 times as high"
        elif momentum:
            faster = rate_without(momentum)
            has, write = f"momentum={momentum:g}", "momentum=0.0"
            if faster > 1:
                write += f" and a learning rate {faster:g} times as high"
        else:
            continue
        yield (
            f"{kind} has {has} behind compression at density {job.compression.density:g}, which holds back what acts "
            f"as momentum: losses fall slowly; give it {write}, or set compression.momentum_at = 'servers' to keep it"
        )
        return
