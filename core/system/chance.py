"""Chance: secrets of the system's, and generators whose numbers a seed repeats."""

from __future__ import annotations

from random import Random, getstate, setstate
from secrets import compare_digest as is_same_secret
from secrets import randbelow as random_below
from secrets import randbits as random_bits
from secrets import token_bytes as random_bytes
from secrets import token_hex as random_hex
from secrets import token_urlsafe as random_text

__all__ = [
    "Random",
    "is_same_secret",
    "random_below",
    "random_bits",
    "random_bytes",
    "random_hex",
    "random_text",
    "script_generator",
    "set_script_generator",
]

script_generator = getstate
"""Gives the state of Python's one generator, from which users' scripts draw; taihu itself never does."""

set_script_generator = setstate
"""Puts such a state back."""
