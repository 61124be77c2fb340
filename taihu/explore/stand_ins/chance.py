"""Stand-ins for what a machine draws at random: `secrets`."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from random import Random

from taihu.explore.scheduler import RUNNING

__all__ = ["randbelow", "randbits", "token_bytes", "token_hex", "token_urlsafe"]


def _chance() -> Random:
    return RUNNING().secrets


def randbits(k: int) -> int:
    """`secrets.randbits`."""
    return _chance().getrandbits(k)


def randbelow(exclusive_upper_bound: int) -> int:
    """`secrets.randbelow`."""
    return _chance().randrange(exclusive_upper_bound)


def token_bytes(nbytes: int | None = None) -> bytes:
    """`secrets.token_bytes`."""
    return _chance().randbytes(32 if nbytes is None else nbytes)


def token_hex(nbytes: int | None = None) -> str:
    """`secrets.token_hex`."""
    return token_bytes(nbytes).hex()


def token_urlsafe(nbytes: int | None = None) -> str:
    """`secrets.token_urlsafe`."""
    return urlsafe_b64encode(token_bytes(nbytes)).rstrip(b"=").decode()
