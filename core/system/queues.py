"""Queues between threads: a `SimpleQueue` without a bound, a `Queue` with one."""

from __future__ import annotations

from queue import Empty, Full, Queue, SimpleQueue

__all__ = ["Empty", "Full", "Queue", "SimpleQueue"]
