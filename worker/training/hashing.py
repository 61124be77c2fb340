"""The hash that tells whether two runs ended with the same parameters."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from taihu.core.planner.groups import group_bounds
from taihu.worker.exchange.shell import Exchange


def parameters_sha256(parameters: NDArray[np.float32]) -> str:
    """SHA-256 over a parameter arena: equal for runs with bit-identical parameters."""
    return hashlib.sha256(parameters.data).hexdigest()


def exchanged_sha256(exchange: Exchange, parameters: NDArray[np.float32]) -> str:
    """`parameters_sha256` of the arena of an exchange at rest, also where it is not all there at once."""
    digest = hashlib.sha256()
    for group, (start, stop) in enumerate(group_bounds(exchange.plan.layout, exchange.plan.groups)):
        exchange.recall(group)
        digest.update(parameters[start:stop].data)
    return digest.hexdigest()
