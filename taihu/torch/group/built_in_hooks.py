"""Hooks that DistributedDataParallel has in C++, over this backend."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel


def run_in_python() -> None:
    """Have `_register_builtin_comm_hook` register a hook's like in Python where the group is taihu's.

    That of fp16 expects futures whose values are C++'s, and futures of Python have others: it would end the first
    backward with a failed assertion of PyTorch's.
    """
    built_in = DistributedDataParallel._register_builtin_comm_hook

    def registered(model: Any, comm_hook_type: Any) -> None:
        is_ours = dist.get_backend(model.process_group) == "taihu"
        if is_ours and comm_hook_type == dist.BuiltinCommHookType.FP16_COMPRESS:
            model.register_comm_hook(model.process_group, default_hooks.fp16_compress_hook)
        else:
            built_in(model, comm_hook_type)

    DistributedDataParallel._register_builtin_comm_hook = registered
