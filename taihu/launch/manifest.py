"""A job as Kubernetes objects: pure, plain dictionaries as the API takes them.

Servers are a StatefulSet and workers two Jobs, or all are the replicated jobs of one JobSet, whose success is the
workers'; or they are those of a runtime that a TrainJob of Kubeflow's refers to (`taihu.launch.trainjob`), whose
workers are all alike. Worker 0 otherwise, which writes what stays of the run, has a Job of its own: its pod alone
mounts the volume for it, which a single node can do with every kind of storage. The job file goes into a ConfigMap as
it is; what was set beside it goes into a second one, as `TAIHU_SECTION__KEY`, so that an overlay can change it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal

from taihu.errors import ConfigError
from taihu.job import Job
from taihu.job.variables import variable_of
from taihu.launch.trainjob import NODE, runtime_ref, runtime_spec

__all__ = ["DATA_FOLDER", "ManifestOptions", "Resources", "Script", "manifest", "object_name"]

Object = dict[str, Any]

GRPC_PORT = 7070
METRICS_PORT = 9400
_USER = 65532
_CONFIG = "/etc/taihu"
DATA_FOLDER: Final = "/data"
_RUNS = "/runs"
_CHECKPOINTS = "/checkpoints"
# A pod that is started again counts, and so does one that is evicted; Kubernetes waits longer each time.
_POD_RESTARTS = 6
_PARAMETER_SERVER = "taihu.v1.ParameterServerService"
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_TRAINER: Final = "trainer.kubeflow.org/v1alpha1"
_SCRAPE_S = 15
_LINGER_S = 40
_CONNECT_S = 600


@dataclass(frozen=True)
class Resources:
    """Requests of one process: processors, and memory as in `2Gi`, which is also its limit."""

    cpus: int
    memory: str


@dataclass(frozen=True)
class Script:
    """A PyTorch script that workers run: a path in their pods, absolute or beside the job file, and its arguments."""

    path: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class ManifestOptions:
    """Options that a job file does not have.

    Attributes:
        image: what `deploy/Containerfile` built, where the cluster finds it.
        name: of all objects; by default the job's, see `object_name`.
        namespace: by default the one that kubectl is set to.
        jobset: one JobSet instead of StatefulSet and Job.
        server, worker: resources of one process.
        storage: size of the volume for results, where the manifest asks for one.
        run_claim: PersistentVolumeClaim for results; by default the manifest has one.
        data_claim: PersistentVolumeClaim with the data set's files.
        checkpoint_claim: PersistentVolumeClaim for checkpoints that all pods can write to (ReadWriteMany); with one a
            pod that is lost is started again, and the run goes on.
        files: what goes beside the job file, text by name: a model of the user's own.
        direct_port: of connections beside gRPC; 0 opens none to other pods.
        script: what workers run in the place of a built-in model; the image has PyTorch then.
        runtime: the kind of runtime of a TrainJob in the place of StatefulSet and Job; "" for no TrainJob.
    """

    image: str = "localhost/taihu:latest"
    name: str | None = None
    namespace: str | None = None
    jobset: bool = False
    server: Resources = Resources(1, "1Gi")
    worker: Resources = Resources(2, "2Gi")
    storage: str = "10Gi"
    run_claim: str | None = None
    data_claim: str | None = None
    checkpoint_claim: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    direct_port: int = 0
    script: Script | None = None
    runtime: Literal["", "TrainingRuntime", "ClusterTrainingRuntime"] = ""


def manifest(
    job: Job, text: str, settings: Mapping[str, Mapping[str, object]], options: ManifestOptions
) -> list[Object]:
    """The objects of a job, in the order in which they are to be made.

    Args:
        job: the file and `settings` together.
        text: the job file.
        settings: what was set beside the file, by section and key.
        options: what the job does not say.

    Raises:
        ConfigError: the name cannot be that of an object.
    """
    return _Manifest(job, text, settings, options).objects()


def object_name(job: Job, given: str | None) -> str:
    """The name of a job's objects: small letters, digits and dashes, of at most 40 characters.

    Raises:
        ConfigError: `given` is no such name, or none can be made of the job's.
    """
    name = given if given is not None else re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"name {name!r}: expected at most 40 small letters, digits and dashes, a letter first; give --name"
        )
    return name


class _Manifest:
    """The common part of all objects of one job."""

    def __init__(
        self, job: Job, text: str, settings: Mapping[str, Mapping[str, object]], options: ManifestOptions
    ) -> None:
        self.job = job
        self.text = text
        self.settings = settings
        self.options = options
        self.name = object_name(job, options.name)

    def objects(self) -> list[Object]:
        shared = [self.job_file(), self.environment(), *self.claims()]
        if self.options.jobset:
            return [*shared, self.jobset(), self.pod_monitor()]
        if self.options.runtime:
            return [*shared, self.runtime(), self.train_job(), self.pod_monitor()]
        servers = [self.stateful_set()] if self.job.servers else []
        return [*shared, self.service(), *servers, *self.worker_jobs(), self.pod_monitor()]

    def job_file(self) -> Object:
        data = {"job.toml": self.text, **self.options.files}
        return self.object("v1", "ConfigMap", f"{self.name}-job", data=data)

    def environment(self) -> Object:
        cluster = self.job.cluster
        own: dict[str, object] = {
            "TAIHU_CLUSTER__WORKERS": cluster.workers,
            "TAIHU_CLUSTER__COORDINATOR": self.coordinator(),
            "TAIHU_CLUSTER__CONNECT_TIMEOUT_S": _CONNECT_S,
            "TAIHU_BIND": f"0.0.0.0:{GRPC_PORT}",
            "TAIHU_METRICS_PORT": METRICS_PORT,
            "TAIHU_LINGER": _LINGER_S,
        }
        if self.job.servers:
            own["TAIHU_CLUSTER__SERVERS"] = self.job.servers
        if self.options.script is not None:
            # Servers are told as well.
            own["TAIHU_EXCHANGE__RETURNS"] = self.job.exchange.returns
            own["TAIHU_EXCHANGE__KIND"] = self.job.exchange.kind
        if self.options.direct_port:
            own["TAIHU_DIRECT_PORT"] = self.options.direct_port
        if self.options.data_claim is not None:
            own["TAIHU_DATA__PATH"] = DATA_FOLDER
        if self.keeps:
            # A process in the place of worker 0 goes on in its folder, which it has to find.
            own["TAIHU_RUN__DIR"] = f"{_RUNS}/{{name}}" if self.recovers else f"{_RUNS}/{{name}}-{{time}}"
        if self.recovers:
            own["TAIHU_CHECKPOINT__DIR"] = f"{_CHECKPOINTS}/{self.name}"
        given = {
            variable_of(f"{section}.{key}" if section else key): value
            for section, values in self.settings.items()
            for key, value in values.items()
        }
        data = {name: _setting(value) for name, value in {**own, **given}.items()}
        return self.object("v1", "ConfigMap", f"{self.name}-settings", data=data)

    def coordinator(self) -> str:
        """Server 0, or worker 0 where there are no servers, by the name that the cluster's DNS gives its pod."""
        role = "server" if self.job.servers else NODE if self.options.runtime else "first"
        pod = f"{self.name}-{role}-0" if self.stands_alone else f"{self.name}-{role}-0-0"
        return f"{pod}.{self.name}:{GRPC_PORT}"

    def service(self) -> Object:
        spec = {
            "clusterIP": "None",
            # Processes look for each other before they are ready.
            "publishNotReadyAddresses": True,
            "selector": self.labels(),
            "ports": [{"name": name, "port": port} for name, port in self.ports().items()],
        }
        return self.object("v1", "Service", self.name, spec=spec)

    def ports(self) -> dict[str, int]:
        """The ports that processes listen on, by name."""
        direct = {"direct": self.options.direct_port} if self.options.direct_port else {}
        return {"grpc": GRPC_PORT, "metrics": METRICS_PORT, **direct}

    def stateful_set(self) -> Object:
        spec = {
            "serviceName": self.name,
            "replicas": self.job.servers,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": self.labels("server")},
            "template": self.server_pod(),
        }
        return self.object("apps/v1", "StatefulSet", f"{self.name}-server", "server", spec=spec)

    @property
    def keeps(self) -> bool:
        """Whether results are kept on a volume; all pods of a TrainJob's nodes are alike, and have to share it."""
        return self.job.run.dir != Path("none") and not (self.options.runtime and self.options.run_claim is None)

    @property
    def stands_alone(self) -> bool:
        """Whether StatefulSet and Jobs stand for themselves, in no JobSet."""
        return not (self.options.jobset or self.options.runtime)

    @property
    def recovers(self) -> bool:
        """Whether pods that are lost are started again, and the run goes on from a checkpoint."""
        return self.options.checkpoint_claim is not None

    def claims(self) -> list[Object]:
        """The claim of a volume for results, where none was named; one node mounts it, which any storage can do."""
        if not self.keeps or self.options.run_claim is not None:
            return []
        storage = {"requests": {"storage": self.options.storage}}
        spec = {"accessModes": ["ReadWriteOnce"], "resources": storage}
        return [self.object("v1", "PersistentVolumeClaim", f"{self.name}-runs", spec=spec)]

    def workers(self) -> dict[str, Object]:
        """The specifications of the Jobs of worker 0 and of the others, if there are any, by name."""
        jobs = {"first": self.indexed(1, self.worker_pod(first=True))}
        if self.job.cluster.workers > 1:
            jobs["worker"] = self.indexed(self.job.cluster.workers - 1, self.worker_pod(first=False))
        return jobs

    def worker_jobs(self) -> list[Object]:
        return [
            self.object("batch/v1", "Job", f"{self.name}-{name}", "worker", spec=spec)
            for name, spec in self.workers().items()
        ]

    def indexed(self, count: int, pod: Object) -> Object:
        """The specification of a Job whose pods know their index.

        A pod that fails fails the run, and so the Job, unless the run recovers.
        """
        return {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            "backoffLimit": _POD_RESTARTS * count if self.recovers else 0,
            "template": pod,
        }

    def jobset(self) -> Object:
        workers = self.workers()
        spec = {
            "network": {"enableDNSHostnames": True, "subdomain": self.name, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": list(workers)},
            "failurePolicy": {"maxRestarts": self.restarts},
            "replicatedJobs": self.all_replicated(workers),
        }
        return self.object("jobset.x-k8s.io/v1alpha2", "JobSet", self.name, spec=spec)

    @property
    def restarts(self) -> int:
        """The number of times that a whole JobSet begins again."""
        return self.job.checkpoint.restarts if self.recovers else 0

    def all_replicated(self, workers: Mapping[str, Object]) -> list[Object]:
        """The servers' replicated job, where there are any, and those of workers."""
        replicated = [self.replicated(name, "worker", spec) for name, spec in workers.items()]
        if self.job.servers:
            servers = self.indexed(self.job.servers, self.server_pod())
            replicated.insert(0, self.replicated("server", "server", servers))
        return replicated

    def runtime(self) -> Object:
        nodes = {NODE: self.indexed(self.job.cluster.workers, self.worker_pod(first=True, name=NODE))}
        spec = runtime_spec(self.job.cluster.workers, self.all_replicated(nodes), self.restarts)
        item = self.object(_TRAINER, self.options.runtime, self.name, spec=spec)
        if self.options.runtime == "ClusterTrainingRuntime":
            item["metadata"].pop("namespace", None)
        return item

    def train_job(self) -> Object:
        trainer = {"image": self.options.image, "numNodes": self.job.cluster.workers}
        spec = {"runtimeRef": runtime_ref(self.options.runtime, self.name), "trainer": trainer}
        return self.object(_TRAINER, "TrainJob", self.name, spec=spec)

    def replicated(self, name: str, role: str, spec: Object) -> Object:
        return {"name": name, "replicas": 1, "template": {"metadata": {"labels": self.labels(role)}, "spec": spec}}

    def server_pod(self) -> Object:
        """The pod of a StatefulSet: started again when it ends, so a server that has finished stays."""
        in_set = self.stands_alone
        environment = [_from_pod("TAIHU_RANK", "metadata.labels['apps.kubernetes.io/pod-index']")] if in_set else []
        container = self.container("server", self.options.server, environment, service=_PARAMETER_SERVER)
        container["args"] += ["--hold"] if in_set else []
        return self.pod("server", container, [], restart="Always" if in_set else self.restart)

    def worker_pod(self, *, first: bool, name: str = "worker") -> Object:
        """The pod of worker 0, or of the others, whose rank follows Kubernetes' completion index."""
        others = [] if first else [{"name": "TAIHU_RANK_OFFSET", "value": "1"}]
        container = self.container("worker", self.options.worker, others)
        container["name"] = name
        if self.options.script is not None:
            self.run_script(container, self.options.script)
        volumes: list[Object] = []
        if first and self.keeps:
            runs = {"claimName": self.options.run_claim or f"{self.name}-runs"}
            volumes.append({"name": "runs", "persistentVolumeClaim": runs})
            container["volumeMounts"].append({"name": "runs", "mountPath": _RUNS})
        if self.options.data_claim is not None:
            claim = {"claimName": self.options.data_claim, "readOnly": True}
            volumes.append({"name": "data", "persistentVolumeClaim": claim})
            container["volumeMounts"].append({"name": "data", "mountPath": DATA_FOLDER, "readOnly": True})
        pod = self.pod("worker", container, volumes, restart=self.restart)
        if self.stands_alone:
            pod["spec"]["subdomain"] = self.name
        return pod

    def run_script(self, container: Object, script: Script) -> None:
        """Have a worker's container run a script, which listens when it likes: nobody probes it."""
        container["args"] = [str(PurePosixPath(_CONFIG, script.path)), *script.arguments]
        container["env"] += [
            {"name": "TAIHU_JOB", "value": f"{_CONFIG}/job.toml"},
            {"name": "OMP_NUM_THREADS", "value": str(self.job.cluster.threads or self.options.worker.cpus)},
            # Libraries keep files there; all else can only be read.
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - a volume of the pod's own
        ]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            del container[probe]

    @property
    def restart(self) -> str:
        """The policy of pods whose end is that of their part of the run."""
        return "OnFailure" if self.recovers else "Never"

    def pod(self, role: str, container: Object, volumes: list[Object], *, restart: str) -> Object:
        if self.recovers:
            claim = {"claimName": self.options.checkpoint_claim}
            volumes = [*volumes, {"name": "checkpoints", "persistentVolumeClaim": claim}]
            container["volumeMounts"].append({"name": "checkpoints", "mountPath": _CHECKPOINTS})
            # An evicted pod is awaited by the others.
            container["env"].append({"name": "TAIHU_ON_TERM", "value": "leave"})
        spec = {
            "restartPolicy": restart,
            # For the step under way, and for saving.
            "terminationGracePeriodSeconds": 60,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "runAsGroup": _USER,
                "fsGroup": _USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [
                {"name": "job", "configMap": {"name": f"{self.name}-job"}},
                {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
                *volumes,
            ],
        }
        return {"metadata": {"labels": self.labels(role)}, "spec": spec}

    def container(self, role: str, resources: Resources, environment: list[Object], *, service: str = "") -> Object:
        asked = {"cpu": str(resources.cpus), "memory": resources.memory}
        return {
            "name": role,
            "image": self.options.image,
            "imagePullPolicy": "IfNotPresent",
            "args": [role, f"{_CONFIG}/job.toml"],
            "workingDir": _CONFIG,
            "envFrom": [{"configMapRef": {"name": f"{self.name}-settings"}}],
            "env": [
                _from_pod("TAIHU_ADVERTISE", "status.podIP"),
                {"name": "TAIHU_CLUSTER__THREADS", "value": str(self.job.cluster.threads or resources.cpus)},
                *environment,
            ],
            "ports": [{"name": name, "containerPort": port} for name, port in self.ports().items()],
            # Of memory there is never more; a processor that is idle may be used.
            "resources": {"requests": asked, "limits": {"memory": resources.memory}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            # A start may load data and compile kernels for another kind of processor.
            "startupProbe": _probe("", period=2, failures=150),
            "livenessProbe": _probe("", period=10, failures=6),
            "readinessProbe": _probe(service, period=5, failures=3),
            "volumeMounts": [
                {"name": "job", "mountPath": _CONFIG, "readOnly": True},
                {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a volume of the pod's own
            ],
        }

    def pod_monitor(self) -> Object:
        endpoint = {
            "port": "metrics",
            "interval": f"{_SCRAPE_S}s",
            "scrapeTimeout": f"{_SCRAPE_S - 5}s",
            "relabelings": [{"targetLabel": "app", "replacement": "taihu"}],
        }
        spec = {
            "selector": {"matchLabels": self.labels()},
            "jobLabel": "app.kubernetes.io/instance",
            "podMetricsEndpoints": [endpoint],
        }
        return self.object("monitoring.coreos.com/v1", "PodMonitor", self.name, spec=spec)

    def labels(self, role: str | None = None) -> dict[str, str]:
        labels = {"app.kubernetes.io/name": "taihu", "app.kubernetes.io/instance": self.name}
        return labels if role is None else {**labels, "app.kubernetes.io/component": role}

    def object(self, version: str, kind: str, name: str, role: str | None = None, **content: object) -> Object:
        metadata: Object = {"name": name, "labels": self.labels(role)}
        if self.options.namespace is not None:
            metadata["namespace"] = self.options.namespace
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def _setting(value: object) -> str:
    """A value as the environment gives it to a job, see `taihu.job.parse_value`."""
    return value if isinstance(value, str) else json.dumps(value)


def _from_pod(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probe(service: str, *, period: int, failures: int) -> Object:
    grpc: Object = {"port": GRPC_PORT} | ({"service": service} if service else {})
    return {"grpc": grpc, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}
