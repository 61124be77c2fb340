"""The modules and functions that simulated code gets in the place of those by which Python reaches disks."""

from __future__ import annotations

import _thread
import io
import os
import random
import tempfile
from types import ModuleType
from typing import Any

import safetensors
from pydantic_core import core_schema

from taihu.core.system import mappings
from taihu.explore.disk import shared_memory
from taihu.explore.disk.copies import Copies
from taihu.explore.disk.descriptors import Descriptors
from taihu.explore.disk.disk import TEMPORARY, Disk
from taihu.explore.disk.files import BufferLock, Chance, Open, safe_open
from taihu.explore.disk.os_module import os_module
from taihu.explore.scheduler import Scheduler
from taihu.explore.stand_ins.modules import like
from taihu.kernels import futex

__all__ = ["DiskStandIns", "provide_disk"]


class DiskStandIns:
    """Stand-ins for `os`, `pathlib` and their like, made once in a process: they find each run's disk.

    Attributes:
        modules: by the names of those whose places they take.
        builtins: `open`.
        path: the class that `pathlib.Path` is in simulated code.
    """

    def __init__(self) -> None:
        calls = os_module()
        buffers = Copies(["_pyio"], {"os": calls, "_thread": like(_thread, allocate_lock=BufferLock)})
        opens = Open(buffers.load("_pyio"))
        files = like(io, open=opens)
        copies = Copies(
            ["posixpath", "genericpath", "pathlib", "glob", "shutil", "tempfile"],
            {"os": calls, "io": files, "random": like(random, Random=Chance)},
        )
        calls.path = copies.load("posixpath")  # type: ignore[attr-defined]
        calls.fdopen = opens  # type: ignore[attr-defined]
        # Without a name no fault hits it, and NumPy maps it by itself.
        temporary = copies.load("tempfile")
        temporary.TemporaryFile = tempfile.TemporaryFile  # type: ignore[attr-defined]
        # It looks for a folder once, by writing to it: that would be in a process's first run alone.
        temporary.tempdir = TEMPORARY  # type: ignore[attr-defined]
        paths = copies.load("pathlib")
        for name in ("PurePath", "Path", "PosixPath"):
            _let_pydantic_know(getattr(paths, name))
        self.path: Any = paths.Path
        self.builtins: dict[str, Any] = {"open": opens}
        self.modules: dict[str, ModuleType] = {
            "os": calls,
            "io": files,
            "posixpath": calls.path,
            "pathlib": paths,
            "glob": copies.load("glob"),
            "shutil": copies.load("shutil"),
            "tempfile": temporary,
            mappings.__name__: like(mappings, MappedMemory=shared_memory.map_file),
            "safetensors": like(safetensors, safe_open=safe_open),
            "taihu.kernels.futex": like(
                futex,
                publish=shared_memory.publish,
                wait_until=shared_memory.wait_until,
                wait_awake_until=shared_memory.wait_until,
            ),
        }


def provide_disk(scheduler: Scheduler, disk: Disk) -> Disk:
    """Give a run its disk, with what belongs to it."""
    for each in (disk, Descriptors(disk), shared_memory.WordsInMemory()):
        scheduler.provide(each)
    return disk


def _let_pydantic_know(kind: Any) -> None:
    """Have models with fields of such paths checked as with `pathlib.Path`."""

    def validated(value: Any) -> Any:
        if isinstance(value, str | os.PathLike):
            return kind(value)
        raise ValueError(f"expected a path, got {value!r}")

    def schema(source: Any, handler: Any) -> Any:
        strict = core_schema.is_instance_schema(kind)
        lax = core_schema.no_info_plain_validator_function(validated)
        from_json = core_schema.no_info_after_validator_function(validated, core_schema.str_schema())
        return core_schema.lax_or_strict_schema(
            lax_schema=lax,
            strict_schema=core_schema.json_or_python_schema(json_schema=from_json, python_schema=strict),
            serialization=core_schema.to_string_ser_schema(),
        )

    kind.__get_pydantic_core_schema__ = staticmethod(schema)
