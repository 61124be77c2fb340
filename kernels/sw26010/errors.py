"""Errors of the model: what it refuses."""

from __future__ import annotations


class BlockingError(ValueError):
    """A shape or blocking that an algorithm cannot run; the message says what was expected and seen, and a remedy."""


class LdmOverflowError(BlockingError):
    """A tile does not fit into what is left of the 64 KB of local memory of a CPE."""
