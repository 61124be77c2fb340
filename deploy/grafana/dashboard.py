"""The Grafana dashboard: `python deploy/grafana/dashboard.py` writes taihu.json, `--check` compares."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["PANELS", "Panel", "Query", "dashboard"]

FILE = Path(__file__).parent / "taihu.json"
_JOB = 'job=~"$job"'
_WORKER = f'{_JOB}, role="worker"'
_SERVER = f'{_JOB}, role="server"'
_WIDTH, _HEIGHT = 12, 9


@dataclass(frozen=True)
class Query:
    """One PromQL expression; series are called by `legend`; `line` ones lie over a stack, and are no part of it."""

    expression: str
    legend: str
    line: bool = False


@dataclass(frozen=True)
class Panel:
    """A chart of `queries` in `unit` (Grafana's name of it)."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    stacked: bool = False
    maximum: float | None = None


def _mean(name: str, labels: str, by: str = "") -> str:
    """The mean of a histogram's observations."""
    grouped = f"sum by ({by})" if by else "sum"
    total, count = (f"{grouped} (rate({name}_{part}{{{labels}}}[$__rate_interval]))" for part in ("sum", "count"))
    return f"{total} / ({count} > 0)"


def _quantile(share: float, name: str, labels: str) -> str:
    return f"histogram_quantile({share}, sum by (le) (rate({name}_bucket{{{labels}}}[$__rate_interval])))"


PANELS = (
    Panel(
        "Step time",
        "Means over the workers. What is stacked is the step; exchange and compress run beside compute, and only "
        "what sticks out is waited for.",
        "s",
        (
            Query(_mean("taihu_compute_seconds", _WORKER), "compute"),
            Query(_mean("taihu_compress_wait_seconds", _WORKER), "compress, waited for"),
            Query(
                f"{_mean('taihu_wait_seconds', _WORKER)} - {_mean('taihu_compress_wait_seconds', _WORKER)}",
                "exchange, waited for",
            ),
            Query(_mean("taihu_compress_seconds", _WORKER), "compress in all", line=True),
            Query(_mean("taihu_exchange_seconds", _WORKER), "exchange in all", line=True),
            Query(f"avg(taihu_predicted_step_seconds{{{_WORKER}}} > 0)", "step as planned", line=True),
        ),
        stacked=True,
    ),
    Panel(
        "Bytes by direction",
        "What all workers together push and pull.",
        "Bps",
        (
            Query(f"sum(rate(taihu_sent_bytes_total{{{_WORKER}}}[$__rate_interval]))", "workers send"),
            Query(f"sum(rate(taihu_received_bytes_total{{{_WORKER}}}[$__rate_interval]))", "workers receive"),
        ),
    ),
    Panel(
        "Density and threshold drift",
        "Share of the gradient that the last step sent, and by how much thresholds change when they are made anew: "
        "much drift asks for a smaller compression.refresh_every.",
        "percentunit",
        (
            Query(f"avg(taihu_selected_ratio{{{_WORKER}}})", "density"),
            Query(_quantile(0.5, "taihu_threshold_drift_ratio", _WORKER), "drift, median"),
            Query(_quantile(0.9, "taihu_threshold_drift_ratio", _WORKER), "drift, 90 %"),
        ),
    ),
    Panel(
        "Threshold drift by layer",
        "By how much each layer's threshold changed when it was last made anew, mean over the workers; of groups "
        "where compression.threshold is group. A layer far above the others loses most to a threshold that is kept.",
        "percentunit",
        (Query(f"avg by (layer) (taihu_layer_threshold_drift_ratio{{{_WORKER}}})", "{{layer}}"),),
    ),
    Panel(
        "Loss",
        "Training loss of the last step's batch, mean over the workers.",
        "short",
        (Query(f"avg(taihu_loss{{{_WORKER}}})", "loss"),),
    ),
    Panel(
        "Test accuracy",
        "As worker 0 evaluated it last.",
        "percentunit",
        (Query(f"max(taihu_test_accuracy_ratio{{{_WORKER}}})", "accuracy"),),
        maximum=1,
    ),
    Panel(
        "Skew between ranks",
        "Compute time of each worker: the slowest holds all others, which wait for it.",
        "s",
        (Query(_mean("taihu_compute_seconds", _WORKER, "rank"), "worker {{rank}}"),),
    ),
    Panel(
        "Wait of each rank",
        "Time of a step that the compute thread waited: the rank that waits least is the one that others wait for.",
        "s",
        (Query(_mean("taihu_wait_seconds", _WORKER, "rank"), "worker {{rank}}"),),
    ),
    Panel(
        "Server aggregation time",
        "Summing and updating one frame.",
        "s",
        (
            Query(_mean("taihu_update_seconds", _SERVER, "rank"), "server {{rank}}, mean"),
            Query(_quantile(0.99, "taihu_update_seconds", _SERVER), "all, 99 %"),
        ),
    ),
    Panel(
        "Progress",
        "Steps, and samples per second of all workers.",
        "short",
        (
            Query(f"min(taihu_step{{{_WORKER}}})", "step of the slowest worker"),
            Query(f"max(taihu_last_step{{{_WORKER}}})", "last step"),
            Query(f"sum(rate(taihu_samples_total{{{_WORKER}}}[$__rate_interval]))", "samples per second"),
        ),
    ),
    Panel(
        "Last heard of",
        "Time since the coordinator had a heartbeat of each member; above cluster.lost_after_s it is given up.",
        "s",
        (Query(f"taihu_member_heartbeat_age_seconds{{{_JOB}}}", "{{member}}"),),
    ),
    Panel(
        "Agents",
        "Workers that each agent runs, and how often members have begun; taihu top says why they began again.",
        "short",
        (
            Query(f"taihu_agent_workers{{{_JOB}}}", "{{agent}}"),
            Query(f"max(taihu_generations{{{_JOB}}})", "generations"),
        ),
    ),
    Panel(
        "Work of a worker by agent",
        "Seconds of a step that one worker would take alone on an agent's machine: slow ones give workers away.",
        "s",
        (Query(f"taihu_agent_work_seconds{{{_JOB}}}", "{{agent}}"),),
    ),
    Panel(
        "Memory",
        "Resident memory as a share of what the process may take.",
        "percentunit",
        (
            Query(
                f"process_resident_memory_bytes{{{_JOB}}} / on (job, instance) group_right () "
                f"taihu_memory_limit_bytes{{{_JOB}}}",
                "{{role}} {{rank}}",
            ),
        ),
    ),
    Panel(
        "Frames refused or repeated",
        "All are zero in a run in good order.",
        "short",
        (
            Query(f"sum(rate(taihu_rejected_frames_total{{{_SERVER}}}[$__rate_interval]))", "refused per second"),
            Query(f"sum(rate(taihu_duplicate_frames_total{{{_SERVER}}}[$__rate_interval]))", "repeated per second"),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The document that Grafana reads."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "uid": "taihu",
        "title": "taihu",
        "tags": ["taihu"],
        "schemaVersion": 41,
        "editable": True,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {"list": [_datasource_variable(), _job_variable(source)]},
        "annotations": {"list": []},
        "panels": list(_panels(source)),
    }


def _datasource_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}


def _job_variable(source: dict[str, str]) -> dict[str, Any]:
    return {
        "name": "job",
        "label": "Run",
        "type": "query",
        "datasource": source,
        "query": {"query": "label_values(taihu_step, job)", "refId": "job"},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(source: dict[str, str]) -> Iterator[dict[str, Any]]:
    for number, panel in enumerate(PANELS):
        row, column = divmod(number, 2)
        custom: dict[str, Any] = {
            "drawStyle": "line",
            "fillOpacity": 25 if panel.stacked else 5,
            "showPoints": "never",
        }
        custom["stacking"] = {"mode": "normal" if panel.stacked else "none"}
        defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "custom": custom}
        if panel.maximum is not None:
            defaults["max"] = panel.maximum
        yield {
            "id": number + 1,
            "type": "timeseries",
            "title": panel.title,
            "description": panel.description,
            "datasource": source,
            "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
            "fieldConfig": {"defaults": defaults, "overrides": list(_lines(panel))},
            "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
            "targets": [
                {"refId": chr(ord("A") + index), "datasource": source, "expr": query.expression}
                | {"legendFormat": query.legend, "range": True}
                for index, query in enumerate(panel.queries)
            ],
        }


def _lines(panel: Panel) -> Iterator[dict[str, Any]]:
    """The lines over the stack."""
    for query in panel.queries:
        if query.line:
            yield {
                "matcher": {"id": "byName", "options": query.legend},
                "properties": [
                    {"id": "custom.stacking", "value": {"mode": "none"}},
                    {"id": "custom.fillOpacity", "value": 0},
                    {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
                ],
            }


def main() -> int:
    """Write the file, or with --check say whether it is what would be written."""
    text = json.dumps(dashboard(), indent=2) + "\n"
    if sys.argv[1:] == ["--check"]:
        return int(FILE.read_text() != text)
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
