"""A job as Kubernetes objects: pure, plain dictionaries as the API takes them.

Servers are a StatefulSet and workers two Jobs, or all are the replicated jobs of one JobSet, whose success is the
workers'; or they are those of a runtime that a TrainJob of Kubeflow's refers to (`trainjob.py`), whose workers
are all alike. Worker 0 otherwise, which writes what stays of the run, has a Job of its own: its pod alone
mounts the volume for it, which a single node can do with every kind of storage. The job file goes into a ConfigMap as
it is; what was set beside it goes into a second one, as `TAIHU_SECTION__KEY`, so that an overlay can change it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job
from taihu.core.job.variables import variable_of
from taihu.launch.kubernetes.certificates import CERTIFICATE_API, issued, security_settings
from taihu.launch.kubernetes.options import (
    CHECKPOINTS,
    DATA_FOLDER,
    GRPC_PORT,
    METRICS_PORT,
    RUNS,
    ManifestOptions,
    Object,
)
from taihu.launch.kubernetes.pods import Pods
from taihu.launch.kubernetes.trainjob import NODE, runtime_ref, runtime_spec

# A pod that is started again counts, and so does one that is evicted; Kubernetes waits longer each time.
_POD_RESTARTS = 6
_AGENT_RESTARTS = 1000
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_TRAINER: Final = "trainer.kubeflow.org/v1alpha1"
_SCRAPE_S = 15
_LINGER_S = 40
_CONNECT_S = 600


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
        self.pods = Pods(job, self.name, options)

    def objects(self) -> list[Object]:
        shared = [self.job_file(), self.environment(), *self.certificates(), *self.claims()]
        around = [*self.network_policies(), self.pod_monitor()]
        if self.options.jobset:
            return [*shared, self.jobset(), *around]
        if self.options.runtime:
            return [*shared, self.runtime(), self.train_job(), *around]
        servers = [self.stateful_set()] if self.job.servers else []
        return [*shared, self.service(), *servers, *self.worker_jobs(), *around]

    def job_file(self) -> Object:
        data = {"job.toml": self.text, **self.options.files}
        return self.object("v1", "ConfigMap", f"{self.name}-job", data=data)

    def environment(self) -> Object:
        own: dict[str, object] = {
            "TAIHU_CLUSTER__WORKERS": self.job.world.workers,
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
            own["TAIHU_EXCHANGE__KIND"] = self.job.exchange.kind.key
        if self.options.direct_port:
            own["TAIHU_DIRECT_PORT"] = self.options.direct_port
        if self.options.data_claim is not None:
            own["TAIHU_DATA__PATH"] = DATA_FOLDER
        if self.pods.keeps:
            # A process in the place of worker 0 goes on in its folder, which it has to find.
            own["TAIHU_RUN__DIR"] = f"{RUNS}/{{name}}" if self.pods.recovers else f"{RUNS}/{{name}}-{{time}}"
        if self.pods.recovers:
            own["TAIHU_CHECKPOINT__DIR"] = f"{CHECKPOINTS}/{self.name}"
            if self.job.checkpoint.resume is None:
                own["TAIHU_CHECKPOINT__RESUME"] = "auto"
        if self.options.has_certificates:
            own |= security_settings()
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
        pod = f"{self.name}-{role}-0" if self.pods.stands_alone else f"{self.name}-{role}-0-0"
        return f"{pod}.{self.name}:{GRPC_PORT}"

    def service(self) -> Object:
        spec = {
            "clusterIP": "None",
            # Processes look for each other before they are ready.
            "publishNotReadyAddresses": True,
            "selector": self.pods.labels(),
            "ports": [{"name": name, "port": port} for name, port in self.pods.ports().items()],
        }
        return self.object("v1", "Service", self.name, spec=spec)

    def stateful_set(self) -> Object:
        spec = {
            "serviceName": self.name,
            "replicas": self.job.servers,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": self.pods.labels("server")},
            "template": self.pods.server_pod(),
        }
        return self.object("apps/v1", "StatefulSet", f"{self.name}-server", "server", spec=spec)

    def certificates(self) -> list[Object]:
        """The certificates that cert-manager is to issue, if it is."""
        if self.options.issuer is None:
            return []
        specs = issued(self.name, self.job, self.options.issuer)
        return [self.object(CERTIFICATE_API, "Certificate", name, spec=spec) for name, spec in specs.items()]

    def claims(self) -> list[Object]:
        """The claim of a volume for results, where none was named; one node mounts it, which any storage can do."""
        if not self.pods.keeps or self.options.run_claim is not None:
            return []
        storage = {"requests": {"storage": self.options.storage}}
        spec = {"accessModes": ["ReadWriteOnce"], "resources": storage}
        return [self.object("v1", "PersistentVolumeClaim", f"{self.name}-runs", spec=spec)]

    def workers(self) -> dict[str, Object]:
        """The specifications of the Jobs of worker 0 and of the others, if there are any, by name."""
        jobs = {"first": self.indexed(1, self.pods.worker_pod(first=True))}
        if self.options.agents is not None:
            jobs["agent"] = self.scaled(self.options.agents, self.pods.agent_pod(self.options.agents))
        elif self.job.world.workers > 1:
            jobs["worker"] = self.indexed(self.job.world.workers - 1, self.pods.worker_pod(first=False))
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
            "backoffLimit": _POD_RESTARTS * count if self.pods.recovers else 0,
            "template": pod,
        }

    def scaled(self, count: int, pod: Object) -> Object:
        """The specification of a Job whose pods are all alike, and may become more or fewer while it runs."""
        return {"parallelism": count, "backoffLimit": _AGENT_RESTARTS, "template": pod}

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
        return self.job.checkpoint.restarts if self.pods.recovers else 0

    def all_replicated(self, workers: Mapping[str, Object]) -> list[Object]:
        """The servers' replicated job, where there are any, and those of workers."""
        replicated = [self.replicated(name, "worker", spec) for name, spec in workers.items()]
        if self.job.servers:
            servers = self.indexed(self.job.servers, self.pods.server_pod())
            replicated.insert(0, self.replicated("server", "server", servers))
        return replicated

    def runtime(self) -> Object:
        nodes = {NODE: self.indexed(self.job.world.workers, self.pods.worker_pod(first=True, name=NODE))}
        spec = runtime_spec(self.job.world.workers, self.all_replicated(nodes), self.restarts)
        item = self.object(_TRAINER, self.options.runtime, self.name, spec=spec)
        if self.options.runtime == "ClusterTrainingRuntime":
            item["metadata"].pop("namespace", None)
        return item

    def train_job(self) -> Object:
        trainer = {"image": self.options.image, "numNodes": self.job.world.workers}
        spec = {"runtimeRef": runtime_ref(self.options.runtime, self.name), "trainer": trainer}
        return self.object(_TRAINER, "TrainJob", self.name, spec=spec)

    def replicated(self, name: str, role: str, spec: Object) -> Object:
        return {
            "name": name,
            "replicas": 1,
            "template": {"metadata": {"labels": self.pods.labels(role)}, "spec": spec},
        }

    def network_policies(self) -> list[Object]:
        """The ports that pods are reached at: by each other, and that of metrics and health by anybody.

        Two objects, so that an overlay can name who reads metrics; the kubelet is always let in.
        """
        members = [{"podSelector": {"matchLabels": self.pods.labels()}}]
        own = [{"port": port} for name, port in self.pods.ports().items() if name != "metrics"]
        return [
            self.network_policy(self.name, {"from": members, "ports": own}),
            self.network_policy(f"{self.name}-metrics", {"ports": [{"port": METRICS_PORT}]}),
        ]

    def network_policy(self, name: str, ingress: Object) -> Object:
        selected = {"matchLabels": self.pods.labels()}
        spec = {"podSelector": selected, "policyTypes": ["Ingress"], "ingress": [ingress]}
        return self.object("networking.k8s.io/v1", "NetworkPolicy", name, spec=spec)

    def pod_monitor(self) -> Object:
        endpoint = {
            "port": "metrics",
            "interval": f"{_SCRAPE_S}s",
            "scrapeTimeout": f"{_SCRAPE_S - 5}s",
            "relabelings": [{"targetLabel": "app", "replacement": "taihu"}],
        }
        spec = {
            "selector": {"matchLabels": self.pods.labels()},
            "jobLabel": "app.kubernetes.io/instance",
            "podMetricsEndpoints": [endpoint],
        }
        return self.object("monitoring.coreos.com/v1", "PodMonitor", self.name, spec=spec)

    def object(self, version: str, kind: str, name: str, role: str | None = None, **content: object) -> Object:
        metadata: Object = {"name": name, "labels": self.pods.labels(role)}
        if self.options.namespace is not None:
            metadata["namespace"] = self.options.namespace
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def _setting(value: object) -> str:
    """A value as the environment gives it to a job, see `taihu.core.job.parse_value`."""
    return value if isinstance(value, str) else json.dumps(value)
