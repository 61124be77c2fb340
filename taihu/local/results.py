"""The results of a run, put together from those of its processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean
from typing import Any, Final

from taihu.core.job import Job
from taihu.core.job.advice import advice_on_momentum
from taihu.core.job.chosen import with_compression
from taihu.core.process.results import RESULTS_FORMAT
from taihu.core.wire.serving.staleness import together

_FIRST_WORKERS: Final = (
    "measured_steps",
    "selected_ratio",
    "predicted_seconds_per_step",
    "plan",
    "path",
    "groups",
    "group_layers",
    "profile",
    "thresholds",
    "frame_bytes",
)
_OF_RANKS: Final = ("rank", "final_loss", "bytes_sent_per_step", "bytes_received_per_step")


def results_of(job: Job, workers: Sequence[dict[str, Any]], servers: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """The results of a run, from those that its workers, the first of them at least, and servers wrote."""
    first = workers[0]
    chosen = first.get("chosen_compression") or None
    if chosen is not None:
        job = with_compression(job, {key: json.dumps(value) for key, value in chosen.items()})
    evaluations = first["evaluations"]
    return {
        "format": RESULTS_FORMAT,
        "test_accuracy": evaluations[-1]["test_accuracy"] if evaluations else None,
        "test_metrics": evaluations[-1]["test_metrics"] if evaluations else None,
        "final_loss": _mean([worker["final_loss"] for worker in workers]),
        "parameters_sha256": first["parameters_sha256"],
        "steps": first["steps"],
        **{name: first[name] for name in ("total_steps", "stopped", "stop_reason", "saved", "not_saved")},
        "servers": job.servers,
        "workers": job.world.workers,
        "exchange": job.exchange.kind.key,
        "consistency": job.consistency.key,
        "staleness": _staleness(servers),
        "compression": job.compression.method.key,
        "density": job.compression.share,
        "refresh_every": job.compression.refresh_every,
        "threshold": job.compression.threshold,
        "downlink": first.get("downlink", job.downlink),
        "dropped_momentum": next(advice_on_momentum(job), None),
        "local_steps": job.exchange.local_steps,
        "chosen_compression": chosen,
        "chosen_because": first.get("chosen_because"),
        "precision": job.train.precision,
        "recompute": job.train.recompute,
        "recompute_segments": job.train.recompute_segments,
        "compute": job.cluster.compute,
        "modelled": first["modelled"],
        "skipped_steps": first["skipped_steps"],
        "bytes_sent_per_step": sum(worker["bytes_sent_per_step"] for worker in workers),
        "bytes_received_per_step": sum(worker["bytes_received_per_step"] for worker in workers),
        **{name: value for name, value in first.items() if name.startswith("seconds_")},
        **{name: first[name] for name in _FIRST_WORKERS},
        "evaluations": evaluations,
        "data_notes": first.get("data_notes", []),
        "fc": first.get("fc"),
        "by_rank": [_of_rank(worker) for worker in workers],
        "memory": [
            *({"process": f"worker {each['rank']}", **each["memory"]} for each in workers),
            *({"process": f"server {each['rank']}", **_planned(first), **each["memory"]} for each in servers),
        ],
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None where one is not known."""
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _staleness(servers: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The staleness that servers have counted; None where a step waits for all workers."""
    counted = [each["staleness"] for each in servers if each.get("staleness") is not None]
    return together(counted) if counted else None


def _planned(worker: dict[str, Any]) -> dict[str, Any]:
    """The planned memory of a server, as a worker knows it."""
    return {"planned": worker["memory"]["planned_of_server"]}


def _of_rank(worker: dict[str, Any]) -> dict[str, Any]:
    """The figures of one worker that differ between them."""
    return {name: value for name, value in worker.items() if name in _OF_RANKS or name.startswith("seconds_")}
