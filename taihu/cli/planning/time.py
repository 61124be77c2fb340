"""`taihu plan step`: the time of a step, from a job's measured costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from pathlib import Path
from typing import Any, Final

import numpy as np
import typer

from taihu.cli.planning.link_rate import floor_seconds, parse_rate
from taihu.cli.simulation.measured import load_measured
from taihu.core.base.errors import ConfigError
from taihu.core.base.words import aligned, counted
from taihu.core.coordination.control.asks import GetProfile
from taihu.core.coordination.control.remote import ask_from_outside
from taihu.core.coordination.control.ways import WAYS
from taihu.core.planner.decide import UNCOMPRESSED, Decision, choose_fc_of, decide
from taihu.core.planner.fc_mode import FcChoice
from taihu.core.planner.profile import Compression, Downlink, Profile
from taihu.core.planner.timeline import Schedule
from taihu.core.process.results import check_writable, write_json
from taihu.core.security.security import Security
from taihu.core.traits.methods import METHODS, NONE, Method, Threshold
from taihu.core.wire.base.host_names import check_host
from taihu.local.display.display import human_bytes

_COLUMNS = ("group", "layers", "elements", "up", "down", "ready ms", "compressed ms", "sent ms", "done ms")
_ANSWER_S = 5.0
_SCHEDULES: Final = {
    "inline": "compression on the thread that computes",
    "paper": "compression on the thread that computes, up and down one after the other",
}


@dataclass(frozen=True)
class Costs:
    """The source of a step's costs, and what is asked for instead of what was measured.

    Either `profile_file` or the `coordinator` of a running job has them, which is asked as `security` says.
    """

    profile_file: Path | None
    coordinator: str | None
    workers: int | None
    rate: str | None
    security: Security | None = None


@dataclass(frozen=True)
class AskedCompression:
    """A compression that is asked for in the place of the run's; None for what stays as it was."""

    method: Method | None = None
    density: float | None = None
    refresh_every: int | None = None
    downlink: Downlink | None = None
    threshold: Threshold | None = None

    def over(self, ran: Compression) -> Compression:
        """`ran` with what is asked for; raises ConfigError for a density of nothing."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        wanted = replace(ran, **given)
        if self.density is not None and not wanted.method.selects:
            raise ConfigError(
                f"--density {self.density:g}: nothing is compressed; give --compression topk, lags or dlgs too"
            )
        return wanted


def method_asked(name: str | None) -> Method | None:
    """The method of a name that was given; raises ConfigError where there is none."""
    if name is None:
        return None
    try:
        return METHODS[name]
    except ConfigError as error:
        raise ConfigError(f"--compression: {error}") from None


def plan_time(
    costs: Costs, asked: AskedCompression, strategy: str, schedule: Schedule, json_file: Path | None
) -> None:
    """Print what a step takes with the layers merged by `strategy`, beside what else could be done.

    Raises:
        ConfigError: the costs cannot be had, or `strategy` is none.
    """
    link_rate = None if costs.rate is None else parse_rate(costs.rate)
    check_writable(json_file)
    measured, ran = _measured(costs)
    settings = asked.over(ran)
    profile = _at(measured, costs.workers, link_rate)
    decision = decide(profile, settings, strategy, schedule)
    groups = _as_rows(profile, settings, decision)
    layers = choose_fc_of(profile)
    lines = _describe(profile, settings, decision, groups, schedule)
    for line in (*lines, *_describe_fc(profile, layers)):
        typer.echo(line)
    if json_file is not None:
        fc = [choice.to_json() for choice in layers]
        write_json(json_file, {**_as_json(profile, settings, decision, groups), "timeline": schedule, "fc": fc})


def profile_of_running_job(address: str, timeout_s: float = _ANSWER_S, security: Security | None = None) -> Profile:
    """The costs that the plan of the job at `address` (of server 0) was made from, as `security` is told.

    Raises:
        PeerUnreachableError: nothing answers there within `timeout_s`.
        ConfigError: the job has not measured its costs yet.
    """
    check_host(address)
    profile = ask_from_outside(address, GetProfile(), timeout_s, security, WAYS).profile
    if profile is None:
        raise ConfigError(f"the job at {address} has not measured its costs yet; ask again in a few steps")
    return profile


def _measured(costs: Costs) -> tuple[Profile, Compression]:
    profile_file, coordinator = costs.profile_file, costs.coordinator
    if (profile_file is None) == (coordinator is None):
        seen = "neither" if profile_file is None else "both"
        raise ConfigError(f"costs to plan with: got {seen}; give either PROFILE.json or --coordinator HOST:PORT")
    if profile_file is not None:
        measured = load_measured(profile_file)
        return measured.profile, measured.compression
    return profile_of_running_job(str(coordinator), security=costs.security), Compression(NONE)


def _at(profile: Profile, workers: int | None, link_rate: float | None) -> Profile:
    """The profile with the number of workers and the rate of links that are asked for."""
    if workers is not None:
        profile = profile.with_workers(workers)
    if link_rate is None:
        return profile
    per_byte = floor_seconds(1, profile.servers or profile.workers, profile.workers, link_rate)
    link = replace(profile.link, up_seconds_per_byte=per_byte, down_seconds_per_byte=per_byte)
    return replace(profile, link=link)


def _as_rows(profile: Profile, settings: Compression, decision: Decision) -> list[dict[str, Any]]:
    """The groups as the results show them."""
    first, last = np.array([(group.first_layer, group.last_layer) for group in decision.groups]).T
    sizes = settings.sizes(profile, first, last)
    up, down = settings.up_bytes(profile, sizes), settings.down_bytes(profile, sizes)
    return [
        {
            "first_layer": times.group.first_layer,
            "last_layer": times.group.last_layer,
            "elements": int(sizes.elements[index]),
            "bytes_up": round(up[index]),
            "bytes_down": round(down[index]),
            "seconds_ready": times.ready,
            "seconds_compressed": times.ends[0],
            "seconds_sent": times.ends[1],
            "seconds_done": times.ends[-1],
        }
        for index, times in enumerate(decision.timeline.groups)
    ]


def _as_json(
    profile: Profile, settings: Compression, decision: Decision, groups: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    timeline = decision.timeline
    return {
        "servers": profile.servers,
        "workers": profile.workers,
        "path": profile.carriage or None,
        "compression": settings.method.key,
        "density": settings.density if settings.method.selects else 1.0,
        "groups": list(groups),
        "predicted_seconds_per_step": timeline.seconds,
        "seconds_compute": timeline.compute_seconds,
        "seconds_compress": timeline.compress_seconds,
        "seconds_wait": timeline.wait_seconds,
        "alternatives": dict(decision.alternatives),
        "compression_pays": decision.pays,
    }


def _describe(
    profile: Profile,
    settings: Compression,
    decision: Decision,
    groups: Sequence[dict[str, Any]],
    schedule: Schedule,
) -> Iterable[str]:
    elements = sum(layer.elements for layer in profile.layers)
    sent = "" if not settings.method.selects else f", density {settings.density:g}, downlink {settings.downlink}"
    servers = counted(profile.servers, "server") if profile.servers else "no servers"
    members = f"{servers}, {counted(profile.workers, 'worker')}"
    yield f"{counted(len(profile.layers), 'layer')}, {counted(elements, 'parameter')}, {members}"
    if profile.compute != "cpu":
        yield f"compute         modelled ({profile.compute}); links and compression as measured"
    if profile.carriage:
        yield f"path            {profile.carriage}"
    yield f"compression     {settings.method}{sent}"
    if schedule != "overlapped":
        yield f"timeline        {_SCHEDULES[schedule]}"
    yield from aligned(
        [_COLUMNS, *starmap(_row, ((profile, index, group) for index, group in enumerate(groups)))], left=2
    )
    timeline = decision.timeline
    compute, compress, wait = (
        f"{seconds * 1e3:.1f}"
        for seconds in (timeline.compute_seconds, timeline.compress_seconds, timeline.wait_seconds)
    )
    yield f"predicted step  {timeline.seconds * 1e3:.1f} ms: compute {compute}, compress {compress}, wait {wait}"
    for name, seconds in decision.alternatives.items():
        yield f"{name:<15} {seconds * 1e3:.1f} ms"
    if not settings.method.selects:
        return
    if not any((*vars(profile.scan).values(), *vars(profile.top_k).values())):
        yield "the profile has no measurements of compression, which is taken to be free"
    if not decision.pays:
        seconds = decision.alternatives[UNCOMPRESSED]
        yield f"do not compress: sending everything takes {seconds * 1e3:.1f} ms by its best plan"


def _describe_fc(profile: Profile, layers: Sequence[FcChoice]) -> Iterable[str]:
    """Both predictions for every fully connected layer, beside what the printed inequality says."""
    if not layers or profile.workers < 2:
        return
    yield f"fully connected layers, {counted(profile.batch, 'example')} a worker: gradients exchanged, or sharded"
    rows = [("layer", "shape", "data ms", "sharded ms", "choice", "printed rule")]
    rows += [
        (
            choice.layer.name,
            f"{choice.layer.inputs} x {choice.layer.outputs}",
            f"{choice.data_seconds * 1e3:.2f}",
            f"{choice.shard_seconds * 1e3:.2f}",
            choice.choice,
            choice.rule,
        )
        for choice in layers
    ]
    yield from aligned(rows, left=2)


def _row(profile: Profile, index: int, group: dict[str, Any]) -> tuple[str, ...]:
    names = [profile.layers[group[key]].name for key in ("first_layer", "last_layer")]
    instants = (group[f"seconds_{name}"] for name in ("ready", "compressed", "sent", "done"))
    return (
        str(index),
        " .. ".join(dict.fromkeys(names)),
        f"{group['elements']:,}",
        human_bytes(group["bytes_up"]),
        human_bytes(group["bytes_down"]),
        *(f"{seconds * 1e3:.2f}" for seconds in instants),
    )
