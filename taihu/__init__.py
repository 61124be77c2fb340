"""taihu trains neural networks on many ordinary machines over ordinary networks.

From Python (docs/python.md):

    result = taihu.train(model=build, data=((x_train, y_train), (x_test, y_test)))
    model = taihu.load("model.safetensors")
    model.predict(x)
"""

from __future__ import annotations

# Little is imported here: a command can tell of Ctrl-C behind it, and not before.
import os.path
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from taihu.api import LoadedModel, Result, load, train

__all__ = ["LoadedModel", "Result", "__distribution__", "__version__", "load", "train"]

__distribution__ = "taihu"
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import what needs the engine when it is used, from beside this file: no file of the user's instead."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    folder = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120
    sys.path.insert(0, folder)
    try:
        return getattr(importlib.import_module("taihu.api"), name)
    finally:
        sys.path.remove(folder)
