"""The metrics that daemons export, by their collectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, cast

from prometheus_client.metrics_core import Metric

from from_code.cells import code, table
from taihu.core.coordination.coordinator.coordinator import Coordinator
from taihu.core.coordination.membership.members import MemberId, Role
from taihu.core.coordination.metrics import CoordinatorMetrics
from taihu.core.security.security import Refusals
from taihu.core.wire.serving.metrics import RefusedCalls, ServerMetrics, WorkerMetrics, modelled_layers

_HEAD: Final = """\
# Metrics

`--metrics-port P`, or `TAIHU_METRICS_PORT`, has a daemon serve Prometheus metrics at `http://HOST:P/metrics`.
The same port tells health: `/healthz` whether the process is well, `/readyz` whether its services are to be
had. Dashboard and alert rules: [deploy](../deploy.md#what-to-look-at).

All have the labels `role` and `rank`. Counters end with `_total` on the page, as Prometheus wants it. Times
are seconds.

This page is made from the code: `make reference`.
"""


def page() -> str:
    """The page of all metrics, by the process that has them."""
    worker, server = WorkerMetrics(0), ServerMetrics(0)
    worker.travels("tcp")
    worker.tested(0.5, {"accuracy": 0.9})
    worker.show_thresholds(lambda: [("layer", 0.0)])
    coordinator = CoordinatorMetrics(cast("Coordinator", None), MemberId(Role.SERVER, 0))
    sections: dict[str, Iterable[Metric]] = {
        "Workers": [*worker.registry.collect(), *modelled_layers(0, {("layer", "forward"): 0.0}).collect()],
        "Servers": server.registry.collect(),
        "The coordinator's process": coordinator.describe(),
        "Whoever listens": RefusedCalls("server", 0, Refusals()).collect(),
    }
    parts = [_HEAD]
    for title, families in sections.items():
        parts += [f"## {title}", "", *table(("metric", "kind", "labels", "meaning"), _rows(families)), ""]
    return "\n".join(parts)


def _rows(families: Iterable[Metric]) -> Iterator[tuple[str, str, str, str]]:
    for each in sorted(families, key=lambda each: each.name):
        if each.name.startswith("taihu_"):
            yield code(each.name), each.type, ", ".join(map(code, _labels(each))), each.documentation


def _labels(family: Metric) -> list[str]:
    names = {name for sample in family.samples for name in sample.labels} or set(getattr(family, "_labelnames", ()))
    return sorted(names - {"role", "rank", "le"})
