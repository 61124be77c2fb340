"""Rates of links, as options give them, and the least time that they allow."""

from __future__ import annotations

from taihu.core.base import words
from taihu.core.base.errors import ConfigError

_TCP_PAYLOAD_SHARE = 1448 / 1514


def floor_seconds(model_bytes: int, servers: int, workers: int, rate_bits_per_second: float) -> float:
    """The time in which the busiest link can carry a round, full duplex, with TCP's share of a 1514-byte frame."""
    payload_rate = rate_bits_per_second / 8 * _TCP_PAYLOAD_SHARE
    return model_bytes * max(workers / servers, 1.0) / payload_rate


def parse_rate(text: str) -> float:
    """Bits per second of `100mbit`, `1gbit`; raises ConfigError for other forms."""
    rate = words.parse_rate(text)
    if rate is None:
        raise ConfigError(f"--rate {text}: expected a number with kbit, mbit or gbit, for example 1gbit")
    return rate
