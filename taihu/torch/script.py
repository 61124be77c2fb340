"""A script as one worker of `taihu run`: `python -m taihu.torch.script SUPERVISOR SCRIPT ARGUMENTS`, or a fork.

The first argument is the number of the process that has started it.
"""

from __future__ import annotations

import os
import runpy
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from taihu.core.process.ending import EXIT_BEGINS_AGAIN, errors_to_log, log_of_script, note_end
from taihu.core.process.supervised import end_with_supervisor
from taihu.torch import begins_again

# The first optimizer that is made imports PyTorch's compiler, which takes a second: a fork of this process has it.
torch.optim.SGD([torch.zeros(1)], lr=1.0)


def main() -> None:
    """Run the script as if Python had been started with it; end with whoever started this process."""
    supervisor, script, *arguments = sys.argv[1:]
    end_with_supervisor(int(supervisor), partial(os._exit, 1))
    log, rank = log_of_script(os.environ), os.environ.get("TAIHU_RANK")
    if log is not None and rank is not None:
        sys.excepthook = errors_to_log(log, int(rank))
    sys.argv = [script, *arguments]
    sys.path[0:0] = [str(Path(script).resolve().parent)]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        note_end(ended)
        raise
    except Exception as error:
        if not begins_again(error):
            raise
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(EXIT_BEGINS_AGAIN) from None
    note_end()


def run() -> None:
    """Do so in a fork of a process that has imported PyTorch."""
    _be_as_new()
    main()


def _be_as_new() -> None:
    """Undo what the process before the fork has had its own way, and what was drawn or chosen when it imported."""
    sys.excepthook = sys.__excepthook__
    np.random.seed()  # the generator that scripts use would draw the same in all workers
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if first.isdecimal() and int(first):
        threadpool_limits(int(first))
        torch.set_num_threads(int(first))


if __name__ == "__main__":
    main()
