"""The layers that models are made of, and the interfaces of layers of one's own (docs/models.md).

Everything here is `taihu.worker.engine`'s, by the name that is meant for programs.
"""

from __future__ import annotations

from taihu.worker.engine import *  # noqa: F403
from taihu.worker.engine import __all__ as __all__  # noqa: PLC0414 - so it is exported
