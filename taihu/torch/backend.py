"""The backend `taihu` of torch.distributed, for `init_process_group("taihu")`.

Scripts for CPUs run as they do with gloo (docs/torch_backend.md).
"""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from taihu.torch.group.meeting import Place
from taihu.torch.group.process_group import TaihuGroup
from taihu.torch.reports import begin_results, options_of

__all__ = ["create_group", "register"]


def create_group(options: Any, _: Any = None) -> TaihuGroup:
    """A connected group, as torch.distributed asks for it; `options` are c10d's DistributedBackendOptions.

    Raises:
        TaihuError: the group's processes do not find each other within its timeout.
    """
    name = options.group_id or "default"
    # The group of all has no list of them.
    members = options.global_ranks_in_group
    rank = members[options.group_rank] if members else options.group_rank
    begin_results(options_of(os.environ).results, rank)
    place = Place(name, options.group_rank, options.group_size, options.timeout.total_seconds())
    return TaihuGroup(options.store, place, members)


def register() -> None:
    """Have torch.distributed know the backend; `import taihu.torch` does so."""
    dist.Backend.register_backend("taihu", create_group, extended_api=True, devices=["cpu"])
