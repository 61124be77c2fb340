"""The hash that tells whether two runs ended with the same parameters."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

__all__ = ["parameters_sha256"]


def parameters_sha256(parameters: NDArray[np.float32]) -> str:
    """SHA-256 over a parameter arena: equal for runs with bit-identical parameters."""
    return hashlib.sha256(parameters.data).hexdigest()
