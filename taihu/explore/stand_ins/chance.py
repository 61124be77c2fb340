"""Stand-ins for what a machine draws at random."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from random import Random

from taihu.explore.scheduler import RUNNING

__all__ = ["random_below", "random_bits", "random_bytes", "random_hex", "random_text"]


def _chance() -> Random:
    return RUNNING().secrets


def random_bits(k: int) -> int:
    """`secrets.randbits`."""
    return _chance().getrandbits(k)


def random_below(exclusive_upper_bound: int) -> int:
    """`secrets.randbelow`."""
    return _chance().randrange(exclusive_upper_bound)


def random_bytes(nbytes: int | None = None) -> bytes:
    """`secrets.token_bytes`."""
    return _chance().randbytes(32 if nbytes is None else nbytes)


def random_hex(nbytes: int | None = None) -> str:
    """`secrets.token_hex`."""
    return random_bytes(nbytes).hex()


def random_text(nbytes: int | None = None) -> str:
    """`secrets.token_urlsafe`."""
    return urlsafe_b64encode(random_bytes(nbytes)).rstrip(b"=").decode()
