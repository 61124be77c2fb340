"""The errors that users of taihu meet, and the exit codes that go with them (docs/python.md).

Everything here is `taihu.core.base.errors`'s, by the name that is meant for programs.
"""

from __future__ import annotations

from taihu.core.base.errors import *  # noqa: F403
from taihu.core.base.errors import __all__ as __all__  # noqa: PLC0414 - so it is exported
