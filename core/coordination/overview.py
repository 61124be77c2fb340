"""A run in numbers, of what its coordinator tells: a pure object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Final

from taihu.core.coordination.control.looking import AgentStatus, Change, RunStatus
from taihu.core.coordination.membership.members import MemberId, Progress, Role, RunState
from taihu.core.model.scores import score_text

COLUMNS: Final = (
    *("job", "state", "step", "loss", "accuracy", "ms/step", "compute", "compress", "exchange", "wait"),
    *("up-B/s", "down-B/s", "density", "drift", "skew", "update"),
)

SLOW: Final = 1.5
"""The share of the median above which a time is slow, for the alert as well."""


@dataclass(frozen=True)
class MemberView:
    """One member; `is_slow` says that a worker computes much longer than the others."""

    rank: int
    address: str
    progress: Progress
    silent_seconds: float
    finished: bool
    is_slow: bool = False


@dataclass(frozen=True)
class Overview:
    """Means over the workers that train; the slowest one's step, sums of bytes and samples per second.

    `skew` is the longest compute time over the median of all; `agents`, `generations` and `changes` are those of the
    status.
    """

    job: str
    state: RunState
    reason: str
    workers: tuple[MemberView, ...]
    servers: tuple[MemberView, ...]
    step: int = 0
    total_steps: int = 0
    loss: float = 0.0
    test_accuracy: float = -1.0
    samples_per_second: float = 0.0
    step_seconds: float = 0.0
    compute_seconds: float = 0.0
    compress_seconds: float = 0.0
    exchange_seconds: float = 0.0
    wait_seconds: float = 0.0
    sent_per_second: float = 0.0
    received_per_second: float = 0.0
    density: float = 1.0
    drift: float = 0.0
    skew: float = 1.0
    update_seconds: float = 0.0
    test_metric: str = ""
    test_value: float = 0.0
    agents: tuple[AgentStatus, ...] = ()
    generations: int = 1
    changes: tuple[Change, ...] = ()

    @property
    def score(self) -> str:
        """The score of the last test, "" before the first one; see `score_text`."""
        return score_text(self.test_accuracy, self.test_metric, self.test_value)

    @property
    def steps(self) -> str:
        """The step, and the last one where it is known."""
        return f"{self.step}/{self.total_steps}" if self.total_steps else f"{self.step}"

    def to_json(self) -> dict[str, object]:
        """All of it; members with where they are."""
        numbers = {name: value for name, value in asdict(self).items() if name not in ("workers", "servers")}
        members = [(Role.SERVER, member) for member in self.servers]
        members += [(Role.WORKER, member) for member in self.workers]
        return {
            **numbers,
            "state": self.state.value,
            "members": [
                {
                    **member_as_json(MemberId(role, member.rank), member.address),
                    "finished": member.finished,
                    "is_slow": member.is_slow,
                    "seconds_since_heartbeat": member.silent_seconds,
                    **asdict(member.progress),
                }
                for role, member in members
            ],
        }

    def in_columns(self) -> tuple[str, ...]:
        """The texts below `COLUMNS`; `-` for what is not known yet."""
        if not self.step:
            return (self.job, self.state.value, *("-" for _ in COLUMNS[2:]))
        milliseconds = (
            self.step_seconds,
            self.compute_seconds,
            self.compress_seconds,
            self.exchange_seconds,
            self.wait_seconds,
        )
        return (
            self.job,
            self.state.value,
            self.steps,
            f"{self.loss:.4f}" if self.total_steps else "-",
            f"{self.test_accuracy:.4f}" if self.test_accuracy >= 0 else "-",
            *(f"{seconds * 1e3:.1f}" for seconds in milliseconds),
            f"{self.sent_per_second:.0f}",
            f"{self.received_per_second:.0f}",
            f"{self.density:.4f}",
            f"{self.drift:.4f}",
            f"{self.skew:.2f}",
            f"{self.update_seconds * 1e3:.2f}",
        )


def member_as_json(member: MemberId, address: str) -> dict[str, object]:
    """A member as JSON; its address is null as long as nobody knows it."""
    return {"role": member.role.value, "rank": member.rank, "address": address or None}


def overview_of(status: RunStatus) -> Overview:
    """Put together what the coordinator told; members that have not trained yet count for nothing."""
    workers, servers = _members(status, Role.WORKER), _members(status, Role.SERVER)
    training = [member.progress for member in workers if member.progress.step]
    world = Overview(
        status.job,
        status.state,
        status.reason,
        workers,
        servers,
        agents=status.agents,
        generations=status.generations,
        changes=status.changes,
    )
    if not training:
        return world
    tester = max(training, key=lambda progress: bool(progress.test_metric))
    usual = median(progress.compute_seconds for progress in training)
    return replace(
        world,
        workers=tuple(_marked(member, usual) for member in workers),
        step=min(progress.step for progress in training),
        total_steps=max(progress.total_steps for progress in training),
        loss=fmean(progress.loss for progress in training),
        test_accuracy=max(progress.test_accuracy for progress in training),
        samples_per_second=sum(progress.samples_per_second for progress in training),
        step_seconds=fmean(progress.step_seconds for progress in training),
        compute_seconds=fmean(progress.compute_seconds for progress in training),
        compress_seconds=fmean(progress.compress_seconds for progress in training),
        exchange_seconds=fmean(progress.exchange_seconds for progress in training),
        wait_seconds=fmean(progress.wait_seconds for progress in training),
        sent_per_second=_per_second(training, [progress.bytes_sent_per_step for progress in training]),
        received_per_second=_per_second(training, [progress.bytes_received_per_step for progress in training]),
        density=fmean(progress.selected_ratio for progress in training),
        drift=fmean(progress.threshold_drift_ratio for progress in training),
        skew=max(progress.compute_seconds for progress in training) / usual if usual else 1.0,
        update_seconds=fmean(member.progress.update_seconds for member in servers) if servers else 0.0,
        test_metric=tester.test_metric,
        test_value=tester.test_value,
    )


def _members(status: RunStatus, role: Role) -> tuple[MemberView, ...]:
    found = [
        MemberView(each.member.rank, each.address, each.progress, each.seconds_since_heartbeat, each.finished)
        for each in status.members
        if each.member.role is role
    ]
    return tuple(sorted(found, key=lambda member: member.rank))


def _marked(member: MemberView, usual_seconds: float) -> MemberView:
    slow = member.progress.compute_seconds > SLOW * usual_seconds > 0
    return MemberView(
        member.rank, member.address, member.progress, member.silent_seconds, member.finished, is_slow=slow
    )


def _per_second(training: Sequence[Progress], bytes_per_step: Sequence[int]) -> float:
    return sum(
        size / progress.step_seconds
        for size, progress in zip(bytes_per_step, training, strict=True)
        if progress.step_seconds
    )
