"""Checks Kubernetes objects strictly: `kubectl kustomize DIR | python deploy/k8s/validate.py`, or files by name.

Kubernetes' own kinds against the JSON schemas of its API, unknown keys refused (PyPI: kubernetes-validate; its own
`validate` reads all definitions anew for each object); a JobSet, a TrainJob and its runtime against the models of
their APIs (PyPI: kubeflow-trainer-api) and the Jobs in them once more against Kubernetes' schemas; a PodMonitor,
and what cert-manager is asked for, against the models of their APIs (PyPI: cloudcoil-models-prometheus-operator and
cloudcoil-models-cert-manager). These models drop keys that they do not know, so what comes back must equal what went
in.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import MappingProxyType
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from pydantic import BaseModel, ValidationError
from referencing import Registry, Resource

__all__ = ["KUBERNETES", "problems"]

KUBERNETES = kubernetes_validate.latest_version()
_KUBEFLOW = MappingProxyType(
    {
        "JobSet": ("jobset_v1alpha2_job_set", "JobsetV1alpha2JobSet"),
        "TrainJob": ("trainer_v1alpha1_train_job", "TrainerV1alpha1TrainJob"),
        "TrainingRuntime": ("trainer_v1alpha1_training_runtime", "TrainerV1alpha1TrainingRuntime"),
        "ClusterTrainingRuntime": (
            "trainer_v1alpha1_cluster_training_runtime",
            "TrainerV1alpha1ClusterTrainingRuntime",
        ),
    }
)
# The package of cloudcoil's models, and the version of the API, of a kind.
_CLOUDCOIL = MappingProxyType(
    {
        "PodMonitor": ("prometheus_operator", "monitoring.coreos.com/v1"),
        "Certificate": ("cert_manager", "cert-manager.io/v1"),
        "Issuer": ("cert_manager", "cert-manager.io/v1"),
    }
)
_SCHEMAS = files(kubernetes_validate) / "kubernetes-json-schema" / f"v{KUBERNETES}-local-strict"


def problems(objects: Iterable[dict[str, Any]]) -> list[str]:
    """The faults of the objects, one line each."""
    return [f"{item['kind']} {item['metadata']['name']}: {text}" for item in objects for text in _of(item)]


def _of(item: dict[str, Any]) -> list[str]:
    if item["kind"] in _KUBEFLOW:
        return [*_of_kubeflow(item), *(text for job in _jobs_of(item) for text in _of_kubernetes(job))]
    if item["kind"] in _CLOUDCOIL:
        return _of_cloudcoil(item)
    return _of_kubernetes(item)


def _of_kubernetes(item: dict[str, Any]) -> list[str]:
    validator = _validator(item["kind"], item["apiVersion"])
    if validator is None:
        return [f"Kubernetes {KUBERNETES} has no such kind in {item['apiVersion']}"]
    error = best_match(validator.iter_errors(item))
    return [] if error is None else [f"{'.'.join(map(str, error.path))}: {error.message}"]


@cache
def _validator(kind: str, version: str) -> Any:
    """The strict checker of objects of a kind; None where this version of an API has no such kind."""
    # The file of StatefulSets of `apps/v1` is statefulset-apps-v1.json; of a group, the name before its first dot.
    group = re.sub(r"^([^./]*)[^/]*/", r"\1-", version)
    file = _SCHEMAS / f"{kind.lower()}-{group}.json"
    if not file.is_file():
        return None
    schema = json.loads(file.read_text())
    registry = (Resource.from_contents(schema) @ _definitions()).crawl()
    return Draft202012Validator(schema, registry=registry)


@cache
def _definitions() -> Registry[Any]:
    """The schemas that those of all kinds refer to."""
    contents = json.loads((_SCHEMAS / "_definitions.json").read_text())
    return Resource.from_contents(contents) @ Registry()


def _set_of(item: dict[str, Any]) -> dict[str, Any]:
    """The specification of the JobSet that an object is, or has a template of; empty without one."""
    found: dict[str, Any] = item["spec"]
    return found if item["kind"] == "JobSet" else found.get("template", {}).get("spec", {})


def _jobs_of(item: dict[str, Any]) -> Iterable[dict[str, Any]]:
    for replicated in _set_of(item).get("replicatedJobs", ()):
        template = replicated["template"]
        metadata = {**template.get("metadata", {}), "name": replicated["name"]}
        yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": template["spec"]}


@contextmanager
def _models_built_on_use() -> Iterator[None]:
    """Models that are defined in the block are built when they are first used: few of the thousands there are."""
    before = BaseModel.model_config
    BaseModel.model_config = {**before, "defer_build": True}
    try:
        yield
    finally:
        BaseModel.model_config = before


@cache
def _kubeflow_model(kind: str) -> Any:
    """The model of a JobSet, a TrainJob or a runtime."""
    module, name = _KUBEFLOW[kind]
    with _models_built_on_use():
        return getattr(import_module(f"kubeflow_trainer_api.models.{module}"), name)


@cache
def _cloudcoil_models(package: str) -> Any:
    """The models of version 1 of an API, of that file alone: its package imports all versions, for seconds."""
    found = find_spec(f"cloudcoil.models.{package}")
    assert found is not None and found.origin is not None  # noqa: S101, PT018
    spec = spec_from_file_location(f"{package}_v1", Path(found.origin).with_name("v1.py"))
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018
    module = sys.modules[spec.name] = module_from_spec(spec)
    with _models_built_on_use():
        spec.loader.exec_module(module)
    return module


def _of_kubeflow(item: dict[str, Any]) -> list[str]:
    # Without the Jobs' specifications: these models take no quantities such as `2Gi`, and the Jobs are checked apart.
    item = deepcopy(item)
    for replicated in _set_of(item).get("replicatedJobs", ()):
        replicated["template"].pop("spec", None)
    version = "jobset.x-k8s.io/v1alpha2" if item["kind"] == "JobSet" else "trainer.kubeflow.org/v1alpha1"
    if item["apiVersion"] != version:
        return [f"apiVersion: expected {version}, got {item['apiVersion']}"]
    try:
        model = _kubeflow_model(item["kind"]).model_validate(item)
    except ValidationError as error:
        return [" ".join(str(error).split())]
    return _differences(item, model.to_dict())


def _of_cloudcoil(item: dict[str, Any]) -> list[str]:
    package, version = _CLOUDCOIL[item["kind"]]
    if item["apiVersion"] != version:
        return [f"apiVersion: expected {version}, got {item['apiVersion']}"]
    try:
        model = getattr(_cloudcoil_models(package), item["kind"]).model_validate(item)
    except ValidationError as error:
        return [" ".join(str(error).split())]
    return _differences(item, model.model_dump(mode="json", by_alias=True, exclude_unset=True))


def _differences(given: object, understood: object, where: str = "") -> list[str]:
    """Keys and values of `given` that are not in `understood`."""
    if isinstance(given, dict) and isinstance(understood, dict):
        missing = [f"{where}.{key}: unknown key" for key in given if key not in understood]
        known = (key for key in given if key in understood)
        return missing + [
            text for key in known for text in _differences(given[key], understood[key], f"{where}.{key}")
        ]
    if isinstance(given, list) and isinstance(understood, list) and len(given) == len(understood):
        pairs = enumerate(zip(given, understood, strict=True))
        return [text for index, (a, b) in pairs for text in _differences(a, b, f"{where}[{index}]")]
    return [] if given == understood else [f"{where}: {given!r} is understood as {understood!r}"]


def main() -> int:
    """Check standard input, or the files that are named."""
    texts = [Path(name).read_text(encoding="utf-8") for name in sys.argv[1:]] or [sys.stdin.read()]
    objects = [item for text in texts for item in yaml.safe_load_all(text) if item]
    wrong = problems(objects)
    for line in wrong:
        print(line)
    print(f"{len(objects)} objects, {len(wrong)} problems (Kubernetes {KUBERNETES})")
    return int(bool(wrong) or not objects)


if __name__ == "__main__":
    sys.exit(main())
