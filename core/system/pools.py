"""Pools of threads, and results that come later."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["Future", "ThreadPoolExecutor"]
