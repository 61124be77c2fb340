"""The timeline of one training step: what a grouping of layers costs (docs/methods.md section 1.2).

Forward; then backward yields gradients layer by layer. A group whose last layer is ready passes through stages: it is
compressed, its values go up to the servers, the answer comes down. Each stage serves the groups in order. The next
step begins when the last answer is there.

Compression runs on a thread of its own, or `inline` on the one that computes, as in the paper. Up and down are two
directions of a full-duplex link, or one stage, as in the paper. With both as in the paper, `simulate` is its
equations for tau_b, tau_s, tau_c and t_iter. Layers are numbered in backward order: index 0 is the paper's layer L.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from taihu.core.planner.groups import Group
from taihu.core.planner.profile import Compression, Profile
from taihu.kernels.group_search import Pipeline, run_pipeline

Array = NDArray[np.float64]
Schedule = Literal["overlapped", "inline", "paper"]
"""Compression beside compute, as steps run here; `inline`; or `inline` and up and down one after the other."""


@dataclass(frozen=True)
class GroupTimes:
    """Starts and ends of a group's stages, in seconds from the beginning of the step.

    `ready` is when the gradient of its last layer was.
    """

    group: Group
    ready: float
    starts: tuple[float, ...]
    ends: tuple[float, ...]


@dataclass(frozen=True)
class Timeline:
    """One step; the three parts make up `seconds` (docs/methods.md section 1.4, claim 6).

    Attributes:
        groups: in backward order.
        seconds: of the whole step.
        compute_seconds: forward and backward.
        compress_seconds: by how much compression ends later than compute: all of it when inline.
        wait_seconds: communication that neither of them hides.
    """

    groups: tuple[GroupTimes, ...]
    seconds: float
    compute_seconds: float
    compress_seconds: float
    wait_seconds: float


def step_costs(
    profile: Profile, compression: Compression, *, inline: bool = False, full_duplex: bool = True
) -> Pipeline:
    """The times of a step and of all its possible groups, in seconds; `start` is the end of forward. O(L^2)."""
    layers = np.arange(len(profile.layers))
    # Below the diagonal, where there is no group, stands the group of one layer.
    first_LL, last_LL = np.broadcast_arrays(layers[:, None], np.maximum(layers[:, None], layers))
    sizes = compression.sizes(profile, first_LL, last_LL)
    link = profile.link
    up_LL = link.up_seconds_per_byte * compression.up_bytes(profile, sizes)
    down_LL = link.down_seconds_per_byte * compression.down_bytes(profile, sizes)
    if full_duplex:
        # Frames of a group stream: its shorter way is over about one frame before or after the longer one.
        frames_LL = compression.frames(profile, sizes)
        up_LL, down_LL = (
            np.where(up_LL < down_LL, up_LL / frames_LL, up_LL),
            np.where(down_LL <= up_LL, down_LL / frames_LL, down_LL),
        )
    up_LL = link.alpha_seconds + up_LL
    transfers = [up_LL, down_LL] if full_duplex else [up_LL + down_LL]
    backward = np.cumsum([0.0, *(layer.backward_seconds for layer in profile.layers)])
    stages_MLL = np.stack([compression.seconds(profile, sizes), *transfers])
    return Pipeline(stages_MLL, backward, inline, profile.forward_seconds)


def costs_as(schedule: Schedule, profile: Profile, compression: Compression) -> Pipeline:
    """`step_costs` of steps that run by `schedule`."""
    return step_costs(profile, compression, inline=schedule != "overlapped", full_duplex=schedule != "paper")


def simulate(costs: Pipeline, groups: Sequence[Group]) -> Timeline:
    """Run a step whose layers are merged into `groups`, which cover every layer once and in order."""
    bounds = np.array([group.first_layer for group in groups] + [groups[-1].last_layer + 1], dtype=np.int64)
    times_G2M = np.empty((len(groups), 2, len(costs.seconds)))
    end = run_pipeline(costs, bounds, times_G2M)
    compressed = times_G2M[:, 1, 0]
    ready = costs.start + costs.backward[bounds[1:]]
    if costs.inline:
        ready = np.concatenate(([costs.start], compressed[:-1])) + np.diff(costs.backward[bounds])
    compute_seconds = costs.start + float(costs.backward[-1])
    rows = zip(groups, ready.tolist(), times_G2M.tolist(), strict=True)
    return Timeline(
        groups=tuple(GroupTimes(group, at, tuple(starts), tuple(ends)) for group, at, (starts, ends) in rows),
        seconds=end,
        compute_seconds=compute_seconds,
        compress_seconds=float(compressed[-1]) - compute_seconds,
        wait_seconds=end - float(compressed[-1]),
    )
