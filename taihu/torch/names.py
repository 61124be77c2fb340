"""Imported before anything that imports taihu's other packages: a script may have files of their names."""

from __future__ import annotations

from taihu.process.guard import refuse_taken_names

__all__: list[str] = []

refuse_taken_names()
