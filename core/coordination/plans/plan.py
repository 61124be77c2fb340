"""The agreed way of merging layers into groups, from a step on."""

from __future__ import annotations

from dataclasses import dataclass, field

from taihu.core.base.errors import ConfigError
from taihu.core.job.update_rules import UpdateRules
from taihu.core.model.layout import Layout
from taihu.core.model.run_length import RunLength
from taihu.core.model.world import World
from taihu.core.planner.carriage import Carriage
from taihu.core.planner.groups import Group, check_groups
from taihu.core.planner.sparse_route import SparseAlgorithm


@dataclass(frozen=True)
class Plan:
    """`groups` of `layout`, used from step `from_step` on; every frame carries `version`.

    `routes` has the sparse allreduce of every group, where there are no servers and gradients are compressed. A frame
    covers at most `frame_elements` values. `predicted_seconds` is what a step should take, 0 as long as
    nothing has been measured. `length` is the run's, where its workers have data. `carriage` says what values between
    machines take. `updates` is the optimizer of a script that servers update by. `world` says who takes part in its
    steps.
    """

    version: int
    from_step: int
    groups: tuple[Group, ...]
    layout: Layout
    frame_elements: int
    routes: tuple[SparseAlgorithm, ...] = ()
    predicted_seconds: float = 0.0
    length: RunLength | None = None
    carriage: Carriage = "grpc"
    updates: UpdateRules | None = None
    world: World = field(kw_only=True)

    def __post_init__(self) -> None:
        check_groups(self.layout, self.groups)
        if self.routes and len(self.routes) != len(self.groups):
            raise ConfigError(
                f"a plan of {len(self.groups)} groups with {len(self.routes)} routes: expected one for each"
            )
        if self.updates is not None and len(self.updates.parameter_groups) != len(self.layout.layers):
            raise ConfigError(
                f"a plan of {len(self.layout.layers)} layers, of which {len(self.updates.parameter_groups)} have a "
                "parameter group: expected one for each"
            )
        if self.frame_elements < 1:
            raise ConfigError(f"a plan of frames of {self.frame_elements} values: expected at least 1")
