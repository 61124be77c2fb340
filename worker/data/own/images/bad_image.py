"""The error of an image that is not as it should be."""

from __future__ import annotations

from pathlib import Path

from taihu.core.base.errors import DataError
from taihu.worker.data.base.defects import Fault


class BadImageError(DataError):
    """An image that cannot be read, or not as the others are: its path, and its fault."""

    def __init__(self, path: Path, fault: Fault) -> None:
        super().__init__(f"image {path}: {fault.fault}; {fault.remedy}")
        self.path = path
        self.fault = fault
