"""A run in numbers, of what its coordinator tells: a pure object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from protos import coordinator_pb2 as pb
from taihu.coordination.membership import Progress, Role, RunState
from taihu.coordination.messages import member_from_message, progress_from_message
from taihu.scores import score_text

__all__ = ["MemberView", "Overview", "overview_of"]

# As much slower than the median is what the alert calls slow.
_SLOW = 1.5


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

    `skew` is the longest compute time over the median of all.
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

    @property
    def score(self) -> str:
        """Of the last test, "" before the first one; see `score_text`."""
        return score_text(self.test_accuracy, self.test_metric, self.test_value)

    def __str__(self) -> str:
        if not self.step:
            return f"{self.job} {self.state.value}{f': {self.reason}' if self.reason else ''}"
        accuracy = f" accuracy {self.test_accuracy:.4f}" if self.test_accuracy >= 0 else ""
        score = accuracy or (f" {self.score}" if self.score else "")
        return (
            f"{self.job} {self.state.value} step {self.step}/{self.total_steps} loss {self.loss:.4f}{score} "
            f"ms/step {self.step_seconds * 1e3:.1f} compute {self.compute_seconds * 1e3:.1f} "
            f"compress {self.compress_seconds * 1e3:.1f} exchange {self.exchange_seconds * 1e3:.1f} "
            f"wait {self.wait_seconds * 1e3:.1f} up {self.sent_per_second:.0f} B/s down "
            f"{self.received_per_second:.0f} B/s density {self.density:.4f} drift {self.drift:.4f} "
            f"skew {self.skew:.2f} update {self.update_seconds * 1e3:.2f}"
            f"{f' reason: {self.reason}' if self.reason else ''}"
        )


def overview_of(answer: pb.GetStatusResponse, state: RunState) -> Overview:
    """Put together what the coordinator told; members that have not trained yet count for nothing."""
    workers, servers = _members(answer, Role.WORKER), _members(answer, Role.SERVER)
    training = [member.progress for member in workers if member.progress.step]
    if not training:
        return Overview(answer.job, state, answer.reason, workers, servers)
    tester = max(training, key=lambda progress: bool(progress.test_metric))
    usual = median(progress.compute_seconds for progress in training)
    return Overview(
        job=answer.job,
        state=state,
        reason=answer.reason,
        workers=tuple(_marked(member, usual) for member in workers),
        servers=servers,
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


def _members(answer: pb.GetStatusResponse, role: Role) -> tuple[MemberView, ...]:
    found = []
    for entry in answer.members:
        member, _ = member_from_message(entry.member)
        if member.role is role:
            progress = progress_from_message(entry.progress)
            found.append(
                MemberView(member.rank, entry.address, progress, entry.seconds_since_heartbeat, entry.finished)
            )
    return tuple(sorted(found, key=lambda member: member.rank))


def _marked(member: MemberView, usual_seconds: float) -> MemberView:
    slow = member.progress.compute_seconds > _SLOW * usual_seconds > 0
    return MemberView(
        member.rank, member.address, member.progress, member.silent_seconds, member.finished, is_slow=slow
    )


def _per_second(training: Sequence[Progress], bytes_per_step: Sequence[int]) -> float:
    return sum(
        size / progress.step_seconds
        for size, progress in zip(bytes_per_step, training, strict=True)
        if progress.step_seconds
    )
