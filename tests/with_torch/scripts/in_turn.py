"""Scripts one after another in the same processes: `in_turn.py FOLDER PORT,SCRIPT,ARGUMENT... ...`.

What each prints goes to FOLDER/NUMBER.RANK, and its group of torch.distributed meets at the port.
"""

import contextlib
import os
import runpy
import sys
from pathlib import Path

import torch.distributed as dist
from accelerate.state import AcceleratorState

folder, *turns = sys.argv[1:]
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # torchrun's has what groups before have put there
for number, turn in enumerate(turns):
    port, *sys.argv[:] = turn.split(",")
    os.environ["MASTER_PORT"] = port
    sys.path[0] = str(Path(sys.argv[0]).parent)
    told = Path(folder) / f"{number}.{os.environ.get('RANK', '0')}"
    with told.open("w") as file, contextlib.redirect_stdout(file):
        runpy.run_path(sys.argv[0], run_name="__main__")
    AcceleratorState._reset_state(True)
    if dist.is_initialized():
        dist.destroy_process_group()
