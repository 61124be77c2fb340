"""The pods of a job: their containers, what these mount, and how they are asked whether they are well."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from taihu.core.job import Job
from taihu.core.wire.serving.health import ALIVE, READY
from taihu.launch.kubernetes.certificates import certificates_volume
from taihu.launch.kubernetes.options import (
    CERTIFICATES,
    CHECKPOINTS,
    CONFIG,
    DATA_FOLDER,
    GRPC_PORT,
    MEMORY,
    METRICS_PORT,
    RUNS,
    ManifestOptions,
    Object,
    Resources,
    Script,
)

_USER: Final = 65532
_THREADS: Final = "TAIHU_CLUSTER__THREADS"


@dataclass(frozen=True)
class Pods:
    """The pods of `job`, whose objects are called `name`."""

    job: Job
    name: str
    options: ManifestOptions

    def ports(self) -> dict[str, int]:
        """The ports that processes listen on, by name."""
        direct = {"direct": self.options.direct_port} if self.options.direct_port else {}
        return {"grpc": GRPC_PORT, "metrics": METRICS_PORT, **direct}

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

    def server_pod(self) -> Object:
        """The pod of a StatefulSet: started again when it ends, so a server that has finished stays."""
        in_set = self.stands_alone
        environment = [_from_pod("TAIHU_RANK", "metadata.labels['apps.kubernetes.io/pod-index']")] if in_set else []
        container = self._container("server", self.options.server, environment)
        container["args"] += ["--hold"] if in_set else []
        restart = "Always" if in_set else self._restart
        return self._pod("server", container, [], ranks=range(self.job.servers), restart=restart)

    def worker_pod(self, *, first: bool, name: str = "worker") -> Object:
        """The pod of worker 0, or of the others, whose rank follows Kubernetes' completion index."""
        others = [] if first else [{"name": "TAIHU_RANK_OFFSET", "value": "1"}]
        container = self._container("worker", self.options.worker, others)
        container["name"] = name
        if self.options.script is not None:
            self._run_script(container, self.options.script)
        volumes: list[Object] = []
        if first and self.keeps:
            runs = {"claimName": self.options.run_claim or f"{self.name}-runs"}
            volumes.append({"name": "runs", "persistentVolumeClaim": runs})
            container["volumeMounts"].append({"name": "runs", "mountPath": RUNS})
        if self.options.data_claim is not None:
            claim = {"claimName": self.options.data_claim, "readOnly": True}
            volumes.append({"name": "data", "persistentVolumeClaim": claim})
            container["volumeMounts"].append({"name": "data", "mountPath": DATA_FOLDER, "readOnly": True})
        pod = self._pod("worker", container, volumes, ranks=self._ranks(first=first), restart=self._restart)
        if self.stands_alone:
            pod["spec"]["subdomain"] = self.name
        return pod

    def agent_pod(self, agents: int) -> Object:
        """The pod of an agent, of so many at first; it runs workers of any rank but the first, and is not probed."""
        pod = self.worker_pod(first=False, name="agent")
        container = pod["spec"]["containers"][0]
        container["args"] = ["agent", f"{CONFIG}/job.toml"]
        container["env"] = [each for each in container["env"] if each["name"] in ("TAIHU_ADVERTISE", _THREADS)]
        shared = -(-(self.job.world.workers - 1) // agents)
        for each in container["env"]:
            if each["name"] == _THREADS and not self.job.cluster.threads:
                each["value"] = str(max(1, self.options.worker.cpus // shared))
        for probe in ("startupProbe", "livenessProbe", "readinessProbe", "ports"):
            del container[probe]
        return pod

    def _ranks(self, *, first: bool) -> range:
        """The ranks of the workers whose pods are made like this one."""
        workers = self.job.world.workers
        return range(workers) if self.options.runtime else range(1) if first else range(1, workers)

    def _run_script(self, container: Object, script: Script) -> None:
        """Have a worker's container run a script, which listens when it likes: nobody probes it."""
        container["args"] = [str(PurePosixPath(CONFIG, script.path)), *script.arguments]
        container["env"] += [
            {"name": "TAIHU_JOB", "value": f"{CONFIG}/job.toml"},
            {"name": "OMP_NUM_THREADS", "value": str(self.job.cluster.threads or self.options.worker.cpus)},
            # Libraries keep files there; all else can only be read.
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - a volume of the pod's own
        ]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            del container[probe]

    @property
    def _restart(self) -> str:
        """The policy of pods whose end is that of their part of the run."""
        return "OnFailure" if self.recovers else "Never"

    def _pod(
        self, role: str, container: Object, volumes: list[Object], *, ranks: Iterable[int], restart: str
    ) -> Object:
        if self.options.has_certificates:
            volumes = [*volumes, certificates_volume(self.name, self.options, role, ranks)]
            mount = {"name": "certificates", "mountPath": CERTIFICATES, "readOnly": True}
            container["volumeMounts"].append(mount)
        if self.recovers:
            claim = {"claimName": self.options.checkpoint_claim}
            # What steps have led to stays when a container ends, and finds more room than a pod has by default.
            memory = {"name": "memory", "emptyDir": {"medium": "Memory"}}
            volumes = [*volumes, {"name": "checkpoints", "persistentVolumeClaim": claim}, memory]
            container["volumeMounts"] += [
                {"name": "checkpoints", "mountPath": CHECKPOINTS},
                {"name": "memory", "mountPath": MEMORY},
            ]
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

    def _container(self, role: str, resources: Resources, environment: list[Object]) -> Object:
        asked = {"cpu": str(resources.cpus), "memory": resources.memory}
        return {
            "name": role,
            "image": self.options.image,
            "imagePullPolicy": "IfNotPresent",
            "args": [role, f"{CONFIG}/job.toml"],
            "workingDir": CONFIG,
            "envFrom": [{"configMapRef": {"name": f"{self.name}-settings"}}],
            "env": [
                _from_pod("TAIHU_ADVERTISE", "status.podIP"),
                {"name": _THREADS, "value": str(self.job.cluster.threads or resources.cpus)},
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
            "startupProbe": _probe(ALIVE, period=2, failures=150),
            "livenessProbe": _probe(ALIVE, period=10, failures=6),
            "readinessProbe": _probe(READY, period=5, failures=3),
            "volumeMounts": [
                {"name": "job", "mountPath": CONFIG, "readOnly": True},
                {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a volume of the pod's own
            ],
        }

    def labels(self, role: str | None = None) -> dict[str, str]:
        """The labels of all objects, and beside them that of a role."""
        labels = {"app.kubernetes.io/name": "taihu", "app.kubernetes.io/instance": self.name}
        return labels if role is None else {**labels, "app.kubernetes.io/component": role}


def _from_pod(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probe(path: str, *, period: int, failures: int) -> Object:
    """By HTTP: whoever asks over gRPC needs a certificate, which the kubelet has not."""
    asked = {"path": path, "port": METRICS_PORT}
    return {"httpGet": asked, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}
