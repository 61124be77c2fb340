"""Metrics of the run and its members, which the coordinator's process exports as they are when asked."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from taihu.core.coordination.coordinator.coordinator import Coordinator
from taihu.core.coordination.generations import ONLY, Generation
from taihu.core.coordination.membership.members import MemberId, Role, RunState
from taihu.core.coordination.membership.membership import Membership


class CoordinatorMetrics(Collector):
    """Gauges of a `Membership`, labelled with the host's role and rank, and with the member that they are of.

    `generation` is the present one.
    """

    def __init__(self, coordinator: Coordinator, host: MemberId, generation: Generation = ONLY) -> None:
        self._agents, self._joined = generation.agents, generation.joined
        self._generations = generation.past.generations
        self._coordinator = coordinator
        self._labels = {"role": host.role.value, "rank": str(host.rank)}

    def describe(self) -> Iterator[Metric]:
        """Names and texts, which do not depend on the run."""
        yield from self._families().values()

    def collect(self) -> Iterator[Metric]:
        """The state of the run."""
        families = self._families()
        with self._coordinator.changing() as (members, now):
            self._fill(families, members, now)
        families["generations"].add_metric(list(self._labels.values()), self._generations)
        for agent in () if self._agents is None else self._agents.seen(self._coordinator):
            labels = [*self._labels.values(), agent.name]
            families["agent"].add_metric(labels, len(agent.ranks))
            if agent.work_s:
                families["work"].add_metric(labels, agent.work_s)
        waiting = () if self._joined is None else self._joined.seen(self._coordinator)
        families["waiting"].add_metric(list(self._labels.values()), sum(not each.place for each in waiting))
        yield from families.values()

    def _fill(self, families: dict[str, GaugeMetricFamily], members: Membership, now: float) -> None:
        own = list(self._labels.values())
        for state in RunState:
            families["state"].add_metric([*own, state.value], float(members.outcome.state is state))
        families["missing"].add_metric(own, len(members.roster.missing()))
        families["servers"].add_metric(own, members.roster.sizes[Role.SERVER])
        for member, record in members.roster.members.items():
            labels = [*own, str(member)]
            families["lost"].add_metric(labels, float(members.outcome.is_lost(member)))
            families["heartbeat"].add_metric(labels, max(0.0, now - record.last_seen_s))
            if member.role is Role.WORKER:
                families["step"].add_metric(labels, record.progress.step)

    def _families(self) -> dict[str, GaugeMetricFamily]:
        def family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(name, text, labels=[*self._labels, *labels])

        return {
            "state": family("taihu_run_state", "1 for the state that the run is in.", "state"),
            "missing": family("taihu_missing_members", "Servers and workers that have not joined."),
            "servers": family("taihu_servers", "Servers that take part, those that joined among them."),
            "waiting": family("taihu_waiting_servers", "Servers that joined, and have no place yet."),
            "lost": family("taihu_member_lost", "1 for a member that was gone before it had finished.", "member"),
            "heartbeat": family("taihu_member_heartbeat_age_seconds", "Time since a member was heard of.", "member"),
            "agent": family("taihu_agent_workers", "Workers that an agent runs; 0 of one that stands by.", "agent"),
            "work": family(
                "taihu_agent_work_seconds", "Work of a worker in a step, if its agent ran that one alone.", "agent"
            ),
            "generations": family("taihu_generations", "Generations of members so far; 1 in an undisturbed run."),
            "step": family("taihu_member_step", "Last completed step that a worker told.", "member"),
        }
