"""The pods that Kubernetes' controllers make of a manifest, for engines that know pods only (`podman play kube`).

A StatefulSet's controller numbers its pods, a Job's gives each its completion index, a JobSet's
makes Jobs, the kubelet gives addresses and the files of Secrets, and the cluster's DNS gives names; nothing else of a
pod is changed.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

__all__ = ["config_maps", "expand", "projected", "secret"]

Object = dict[str, Any]

_POD_INDEX = "apps.kubernetes.io/pod-index"
_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
# The first addresses of a network are the gateway's and what the engine gives to others.
_FIRST_ADDRESS = 100


def config_maps(objects: Iterable[Object]) -> list[Object]:
    """The objects that pods refer to."""
    return [item for item in objects if item["kind"] == "ConfigMap"]


def secret(name: str, folder: Path) -> Object:
    """The Secret that `kubectl create secret generic --from-file` makes of a folder, without an authority's key."""
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "ca-key.pem"}
    data = {key: base64.b64encode(content).decode() for key, content in files.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


def projected(volume: Object, objects: Iterable[Object]) -> dict[str, bytes]:
    """The files of a projected volume, by path, from the Secrets among `objects`.

    Raises:
        KeyError: there is no such Secret, or it lacks a key.
    """
    secrets = {item["metadata"]["name"]: item["data"] for item in objects if item["kind"] == "Secret"}
    return {
        item["path"]: base64.b64decode(secrets[source["secret"]["name"]][item["key"]])
        for source in volume["projected"]["sources"]
        for item in source["secret"]["items"]
    }


def expand(objects: Iterable[Object], network: IPv4Network) -> dict[str, tuple[IPv4Address, Object]]:
    """Address and manifest of every pod, by name; servers first."""
    pods = [pod for item in objects for pod in _pods(item)]
    pods.sort(key=lambda pod: pod["metadata"]["labels"]["app.kubernetes.io/component"])
    addresses = {pod["metadata"]["name"]: network[_FIRST_ADDRESS + i] for i, pod in enumerate(pods)}
    names = [
        {"ip": str(addresses[pod["metadata"]["name"]]), "hostnames": [f"{_hostname(pod)}.{pod['spec']['subdomain']}"]}
        for pod in pods
    ]
    for pod in pods:
        pod["spec"]["hostAliases"] = names
        _give_address(pod, addresses[pod["metadata"]["name"]])
    return {pod["metadata"]["name"]: (addresses[pod["metadata"]["name"]], pod) for pod in pods}


def _pods(item: Object) -> Iterator[Object]:
    if item["kind"] == "StatefulSet":
        yield from _of_stateful_set(item)
    elif item["kind"] == "Job":
        yield from _of_job(item["metadata"]["name"], item["spec"])
    elif item["kind"] == "JobSet":
        for replicated in item["spec"]["replicatedJobs"]:
            name = f"{item['metadata']['name']}-{replicated['name']}-0"
            for pod in _of_job(name, replicated["template"]["spec"]):
                pod["spec"]["subdomain"] = item["spec"]["network"]["subdomain"]
                yield pod


def _of_stateful_set(item: Object) -> Iterator[Object]:
    spec = item["spec"]
    for index in range(spec["replicas"]):
        name = f"{item['metadata']['name']}-{index}"
        pod = _pod(name, spec["template"])
        pod["metadata"]["labels"][_POD_INDEX] = str(index)
        pod["spec"]["subdomain"] = spec["serviceName"]
        yield pod


def _of_job(name: str, spec: Object) -> Iterator[Object]:
    for index in range(spec["completions"]):
        pod = _pod(f"{name}-{index}", spec["template"])
        pod["metadata"].setdefault("annotations", {})[_COMPLETION_INDEX] = str(index)
        for container in pod["spec"]["containers"]:
            container["env"].append({"name": "JOB_COMPLETION_INDEX", "value": str(index)})
        yield pod


def _pod(name: str, template: Object) -> Object:
    template = copy.deepcopy(template)
    template["spec"]["hostname"] = name
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "name": name},
        "spec": template["spec"],
    }


def _hostname(pod: Object) -> str:
    return str(pod["spec"]["hostname"])


def _give_address(pod: Object, address: IPv4Address) -> None:
    """Put the address where the kubelet puts it: in the place of `status.podIP`."""
    for container in pod["spec"]["containers"]:
        for variable in container["env"]:
            path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            if path == "status.podIP":
                del variable["valueFrom"]
                variable["value"] = str(address)
