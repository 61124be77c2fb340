"""taihu's packages have short names; this notices when another distribution owns one of them."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

__all__ = ["PACKAGES", "check_installation", "foreign_packages"]

PACKAGES = ("protos", "kernels", "taihu", "allreduce", "ps_server", "worker")


def foreign_packages(modules: dict[str, ModuleType]) -> list[str]:
    """The names whose module is not taihu's."""
    return [name for name, module in modules.items() if getattr(module, "__distribution__", None) != "taihu"]


def check_installation() -> None:
    """Exit with a clear message when a package of another distribution stands in the place of one of taihu's."""
    modules = {name: importlib.import_module(name) for name in PACKAGES}
    foreign = foreign_packages(modules)
    if foreign:
        places = ", ".join(f"{name} ({getattr(modules[name], '__file__', 'namespace')})" for name in foreign)
        sys.exit(f"error: another distribution owns {places}; install taihu in a virtual environment of its own")
