"""The backend `taihu` of torch.distributed, for `init_process_group("taihu")`.

Scripts for CPUs run as they do with gloo (docs/torch_backend.md).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

import torch.distributed as dist

from taihu.core.process.ending import log_of_script
from taihu.core.system.threads import Timer
from taihu.core.wire.base.log import configure_script_logs
from taihu.torch.group.built_in_hooks import run_in_python
from taihu.torch.group.ending import Present
from taihu.torch.group.meeting.place import GroupPlace
from taihu.torch.group.operations.devices import Devices, kinds_here
from taihu.torch.group.process_group import TaihuGroup
from taihu.torch.steps.reports import begin_results, options_of

_KEPT_S: Final = 5.0


class Groups:
    """The groups of a process, as torch.distributed asks for them.

    Where a script destroys its groups and makes others, its ranks come to that at different times: who is first meets
    the store of rank 0's old group, which would go with it, and take along who has come to it. So the last group's
    store is kept until another group is made, for a moment at most: PyTorch hands a store that is there on to the
    next group of its process and port.

    Args:
        kinds: of devices whose tensors groups take.
    """

    def __init__(self, kinds: Sequence[str] = ("cpu",)) -> None:
        self._kinds = kinds
        self._present = Present()
        self._kept: Any = None
        self._timer: Timer | None = None

    def create(self, options: Any, _: Any = None) -> TaihuGroup:
        """A connected group; `options` are c10d's DistributedBackendOptions.

        Raises:
            DistBackendError, ConfigError: as `TaihuGroup`.
        """
        name = options.group_id or "default"
        # The group of all has no list of them.
        members = options.global_ranks_in_group
        rank = members[options.group_rank] if members else options.group_rank
        configure_script_logs(log_of_script(os.environ), role="rank", rank=rank)
        begin_results(options_of(os.environ).results, rank)
        place = GroupPlace(name, options.group_rank, options.group_size, options.timeout.total_seconds())
        # From torch 2.14 on.
        is_reconfigurable = getattr(options, "enable_reconfigure", False)
        group = TaihuGroup(
            options.store,
            place,
            members,
            on_end=self._keep,
            is_reconfigurable=is_reconfigurable,
            devices=Devices(self._kinds),
        )
        self._present.add(group)
        self._let_go()
        return group

    def _keep(self, store: Any) -> None:
        self._let_go()
        self._kept = store
        self._timer = Timer(_KEPT_S, self._let_go)
        self._timer.daemon = True
        self._timer.start()

    def _let_go(self) -> None:
        timer, self._kept, self._timer = self._timer, None, None
        if timer is not None:
            timer.cancel()


def register() -> None:
    """Have torch.distributed know the backend; `import taihu.torch` does so."""
    kinds = kinds_here()
    dist.Backend.register_backend("taihu", Groups(kinds).create, extended_api=True, devices=kinds)
    run_in_python()
