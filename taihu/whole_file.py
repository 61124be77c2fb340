"""Files that appear whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from taihu.errors import ModelError

__all__ = ["replaced"]


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A path to write to during the block, which takes the place of `path` when it ends; nothing of it stays else.

    Raises:
        ModelError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        raise ModelError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
