"""A script as one worker of `taihu run`: `python -m taihu.torch.script SCRIPT ARGUMENTS`."""

from __future__ import annotations

import os
import runpy
import sys
import threading
from pathlib import Path

__all__ = ["main"]


def main() -> None:
    """Run the script as if Python had been started with it; end with whoever started this process."""
    script, *arguments = sys.argv[1:]
    _end_with_stdin()
    sys.argv = [script, *arguments]
    sys.path[0:0] = [str(Path(script).resolve().parent)]
    runpy.run_path(script, run_name="__main__")


def _end_with_stdin() -> None:
    """End this process as soon as its stdin is closed: whoever started it has died."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=wait, name="stdin", daemon=True).start()


if __name__ == "__main__":
    main()
