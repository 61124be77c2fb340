"""The kinds of strangers beside those whose requests are none, and how many of each come together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from benchmarks.inputs.strangers import calls, raw
from benchmarks.inputs.strangers.calls import Statuses
from benchmarks.inputs.strangers.target import Target

__all__ = ["Kind", "counted_kinds"]

Kind = Callable[[Target, int], Statuses]

# What is slow to send is sent less often.
_SHARES: Final[Mapping[str, tuple[Kind, float]]] = {
    "streams": (calls.streams, 1.0),
    "unknown methods": (calls.unknown, 1.0),
    "headers": (calls.metadata, 0.1),
    "too large": (calls.too_large, 0.05),
    "swollen": (calls.swollen, 0.05),
    "badly compressed": (raw.compressed, 1.0),
    "given up": (raw.half_open, 1.0),
    "broken frames": (raw.frames, 0.2),
    "no HTTP/2": (raw.no_http2, 1.0),
}


def counted_kinds(most: int) -> dict[str, tuple[Kind, int]]:
    """Each kind by its name, with the number of calls that belong to `most` of the fastest kinds."""
    return {name: (kind, max(1, int(share * most))) for name, (kind, share) in _SHARES.items()}
