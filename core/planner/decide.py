"""The decision: which plan a job should use, what it is expected to take, and whether compressing pays.

Layers are numbered in backward order (0 is the output side), as in `taihu.core.model.layout`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from taihu.core.base.errors import ConfigError
from taihu.core.planner.fc_mode import FcChoice, FcJob, FcLinks, choose_fc
from taihu.core.planner.groups import Group, plan_groups
from taihu.core.planner.merging import merge_exact, merge_greedy
from taihu.core.planner.profile import Compression, Profile
from taihu.core.planner.timeline import Schedule, Timeline, costs_as, simulate, step_costs
from taihu.core.traits.methods import NONE
from taihu.kernels.group_search import Pipeline

UNCOMPRESSED = "uncompressed"
"""The alternative that sends everything, by its own best plan."""

_LEAST_FRAME_ELEMENTS = 1 << 12
_MOST_FRAMES = 64
FRAME_SECONDS = 1e-4
"""The processors' time for one more frame of a worker: at both ends, with its sum and its answer."""
_BUSY = 0.05
_AUTO_SLACK = 0.02
_COMPARED = ("per-layer", "single", "bucket:25MB", "greedy", "exact")


@dataclass(frozen=True)
class Decision:
    """A plan and what it was compared with.

    Attributes:
        groups: in backward order.
        timeline: of a step by this plan.
        alternatives: predicted seconds per step by strategy, and of `UNCOMPRESSED`.
        pays: whether this plan is faster than sending everything by the best plan for that; False where nothing is
            compressed anyway.
    """

    groups: tuple[Group, ...]
    timeline: Timeline
    alternatives: Mapping[str, float]
    pays: bool

    @property
    def seconds(self) -> float:
        """Predicted seconds per step."""
        return self.timeline.seconds


def decide(profile: Profile, compression: Compression, strategy: str, schedule: Schedule = "overlapped") -> Decision:
    """Plan a job by `strategy`: auto, per-layer, single, bucket:SIZE, greedy or exact; steps run by `schedule`.

    auto takes the fewest groups that are predicted to be within 2 % of exact: costs are not known better than that,
    and each message also costs the processor that computes, which no stage of the pipeline shows. `topk` selects from
    the whole gradient and knows only the plan single, which is also its auto.

    Raises:
        ConfigError: there is no such strategy, or none such for `topk`.
    """
    costs = costs_as(schedule, profile, compression)
    chosen = _strategy(compression, strategy)
    compared = ("single",) if compression.method.is_of_whole_model else _COMPARED
    plans = {name: _merge(profile, costs, name) for name in dict.fromkeys((*compared, chosen))}
    seconds = {name: simulate(costs, groups).seconds for name, groups in plans.items()}
    dense_costs = costs_as(schedule, profile, replace(compression, method=NONE))
    seconds[UNCOMPRESSED] = simulate(dense_costs, merge_exact(dense_costs)).seconds
    return Decision(
        groups=plans[chosen],
        timeline=simulate(costs, plans[chosen]),
        alternatives=MappingProxyType(seconds),
        pays=compression.method.selects and seconds[chosen] < seconds[UNCOMPRESSED],
    )


def predict(profile: Profile, compression: Compression, groups: Sequence[Group]) -> float:
    """Seconds per step by a plan that there is already."""
    return simulate(step_costs(profile, compression), groups).seconds


def best_frame_elements(profile: Profile, compression: Compression, usual: int, most: int, window: int) -> int:
    """The elements that a frame should cover, from 2^12 on, to keep both directions of the links busy.

    There are at most `usual` ones, for processors have time for frames while a link is slow; and at most `most` where
    frames of `usual` elements would take them more than a twentieth of the way.

    Of k frames for each server the last one's ways up and down, 2 w / k, are times in which one direction is idle.
    Each of N workers, or each of S servers where these are more, costs the processors c for a frame: the sum
    2 w / k + max(N, S) c k is least at k = sqrt(2 w / (max(N, S) c)). w is the way of the whole model, much shorter
    where few values are sent. Start-ups of frames overlap as long as those of a `window` take alpha to be answered:
    k is at most window w / alpha.
    """
    link, servers = profile.link, max(1, profile.servers)
    whole = compression.sizes(profile, np.array([0]), np.array([len(profile.layers) - 1]))
    way_seconds = max(
        link.up_seconds_per_byte * compression.up_bytes(profile, whole).item(),
        link.down_seconds_per_byte * compression.down_bytes(profile, whole).item(),
    )
    share, frame_seconds = whole.elements.item() / servers, max(profile.workers, servers) * FRAME_SECONDS
    largest = most if frame_seconds * share / usual > _BUSY * way_seconds else min(usual, most)
    frames = min(_MOST_FRAMES, int(math.sqrt(2.0 * way_seconds / frame_seconds)))
    if link.alpha_seconds:
        frames = min(frames, int(window * way_seconds / link.alpha_seconds))
    if frames <= 1:
        return largest
    return min(max(_LEAST_FRAME_ELEMENTS, math.ceil(share / frames)), largest)


def choose_fc_of(profile: Profile) -> tuple[FcChoice, ...]:
    """The prediction for the fully connected layers of a profile; nothing where the batch is not known.

    The link of the profile stands for that of a transfer between workers, which starts up in half the time of an
    exchange: one way instead of two.
    """
    if not profile.batch:
        return ()
    link = profile.link
    shared = max(profile.workers / profile.servers, 1.0) if profile.servers else 1.0
    links = FcLinks(link.alpha_seconds / 2.0, link.alpha_seconds, link.up_seconds_per_byte / shared)
    return choose_fc(profile.fc_layers, FcJob(profile.batch, profile.workers, profile.servers), links)


def _strategy(compression: Compression, strategy: str) -> str:
    """The strategy that is meant, which exists."""
    if strategy not in ("auto", *_COMPARED) and not strategy.startswith("bucket:"):
        raise ConfigError(f"plan {strategy!r}: expected auto, per-layer, single, bucket:SIZE, greedy or exact")
    if not compression.method.is_of_whole_model:
        return strategy
    if strategy not in ("auto", "single"):
        raise ConfigError(
            f"plan {strategy!r}: compression {compression.method} selects from the whole gradient; use single or auto"
        )
    return "single"


def _merge(profile: Profile, costs: Pipeline, strategy: str) -> tuple[Group, ...]:
    if strategy == "exact":
        return merge_exact(costs)
    if strategy == "auto":
        return merge_exact(costs, _AUTO_SLACK)
    if strategy == "greedy":
        return merge_greedy(costs)
    return plan_groups(profile.layout, strategy)
