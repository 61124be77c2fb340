"""Draws what `taihu top` shows of a running job: `python deploy/draw_top.py HOST:PORT top.svg`.

Under TLS it is an observer, by the certificate that TAIHU_SECURITY__CA, CERTIFICATE and KEY name.
"""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from pathlib import Path

from rich.console import Console

from taihu.cli.runs.top import render
from taihu.core.coordination.overview import overview_of
from taihu.core.coordination.status import fetch_status
from taihu.core.job.environment import resolve_job
from taihu.core.job.security import security_of_onlooker

_LOOKS = 30
# Who looks at a picture need not tell a font service: the fonts of the machine do.
_ELSEWHERE = re.compile(r',\s*url\("https?://[^"]*"\) format\("\w+"\)')


def main() -> int:
    """Look some times, so that the losses have a history, and export the last picture."""
    address, picture = sys.argv[1:]
    security = security_of_onlooker(resolve_job(None, (), {}), "observer", address)
    losses: deque[float] = deque(maxlen=60)
    for _ in range(_LOOKS):
        view = overview_of(fetch_status(address, 5, security))
        losses.append(view.loss)
        time.sleep(0.2)
    with open("/dev/null", "w") as nowhere:  # noqa: PTH123 - a console must write somewhere
        console = Console(record=True, width=118, file=nowhere)
        console.print(render(view, losses))
        drawn = console.export_svg(title=f"taihu top {address}")
    Path(picture).write_text(_ELSEWHERE.sub("", drawn), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
