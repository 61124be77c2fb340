"""taihu trains neural networks on many ordinary machines over ordinary networks.

From Python (docs/python.md):

    result = taihu.train(model=build, data=((x_train, y_train), (x_test, y_test)))
    model = taihu.load("model.safetensors")
    model.predict(x)
"""

from __future__ import annotations

# Little is imported here: a command can tell of Ctrl-C behind it, and not before.
from taihu.core import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from taihu.api import LoadedModel, Result, load, train

__all__ = ["LoadedModel", "Result", "__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    """Import what needs the engine when it is used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    return getattr(importlib.import_module("taihu.api"), name)
