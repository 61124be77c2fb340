"""A job as objects of Kubeflow Trainer v2: a runtime that says how its pods run, and a TrainJob of it. Pure."""

from __future__ import annotations

from typing import Any, Final

Object = dict[str, Any]

NODE: Final = "node"
"""The name of the replicated job, and of its container, that a TrainJob's trainer stands for."""

_GROUP: Final = "trainer.kubeflow.org"
_STEP: Final = f"{_GROUP}/trainjob-ancestor-step"


def runtime_spec(workers: int, replicated: list[Object], restarts: int) -> Object:
    """The specification of a runtime whose `replicated` jobs are workers, by the name `NODE`, and perhaps servers.

    Trainer makes a JobSet of it by the name of the TrainJob, and sets the number of its nodes.
    """
    jobs = [_marked(each) if each["name"] == NODE else each for each in replicated]
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [NODE]},
        "failurePolicy": {"maxRestarts": restarts},
        "replicatedJobs": jobs,
    }
    return {"mlPolicy": {"numNodes": workers}, "template": {"spec": spec}}


def runtime_ref(kind: str, name: str) -> Object:
    """The reference to a runtime, of TrainJob."""
    return {"apiGroup": _GROUP, "kind": kind, "name": name}


def _marked(replicated: Object) -> Object:
    """The replicated job with the label by which Trainer knows which one trains."""
    template = replicated["template"]
    labels = {**template["metadata"]["labels"], _STEP: "trainer"}
    return {**replicated, "template": {**template, "metadata": {"labels": labels}}}
