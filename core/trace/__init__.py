"""Traces of a run: every process records what it did when; the parts become one Chrome trace on one clock."""

from taihu.core.trace.merging import merge_parts
from taihu.core.trace.overlap import busy_seconds, overlap_seconds
from taihu.core.trace.recording import Tracer

__all__ = ["Tracer", "busy_seconds", "merge_parts", "overlap_seconds"]
