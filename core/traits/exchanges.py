"""Kinds of exchange: through servers, or between workers alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from taihu.core.traits.registry import Registry


@dataclass(frozen=True, repr=False)
class ExchangeKind:
    """One kind of exchange.

    Attributes:
        key: its name in a job file.
        has_servers: whether servers sum and update, and server 0 coordinates; else workers do, and worker 0.
        sums_halves: whether selected values may travel in 16 bits.
        shared_stages: stages of ZeRO, up to this one, have arenas that other processes may map.
    """

    key: str
    has_servers: bool
    sums_halves: bool

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"

    def __str__(self) -> str:
        return self.key


SERVER: Final = ExchangeKind("server", has_servers=True, sums_halves=True)
RING: Final = ExchangeKind("ring", has_servers=False, sums_halves=False)

EXCHANGES: Final = Registry(ExchangeKind, "taihu.exchanges", (SERVER, RING))
