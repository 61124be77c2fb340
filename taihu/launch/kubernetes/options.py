"""Options that a job file does not have, and the places in a pod that all objects agree on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Object = dict[str, Any]

GRPC_PORT: Final = 7070
METRICS_PORT: Final = 9400
CONFIG: Final = "/etc/taihu"
CERTIFICATES: Final = "/certificates"
DATA_FOLDER: Final = "/data"
RUNS: Final = "/runs"
CHECKPOINTS: Final = "/checkpoints"
MEMORY: Final = "/dev/shm"  # noqa: S108 - a volume of the pod's own


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
class Issuer:
    """An issuer of cert-manager: of the same namespace, or a ClusterIssuer."""

    name: str
    kind: Literal["Issuer", "ClusterIssuer"] = "Issuer"


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
        agents: pods in which agents run all workers but worker 0, so many at first; None for a pod for each worker.
        files: what goes beside the job file, text by name: a model of the user's own.
        direct_port: of connections beside gRPC; 0 opens none to other pods.
        script: what workers run in the place of a built-in model; the image has PyTorch then.
        runtime: the kind of runtime of a TrainJob in the place of StatefulSet and Job; "" for no TrainJob.
        tls_secret: Secret with the files that `taihu certs` makes, by their names.
        issuer: of a certificate for each process, in the place of that Secret.
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
    agents: int | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    direct_port: int = 0
    script: Script | None = None
    runtime: Literal["", "TrainingRuntime", "ClusterTrainingRuntime"] = ""
    tls_secret: str | None = None
    issuer: Issuer | None = None

    @property
    def has_certificates(self) -> bool:
        """Whether processes show each other certificates."""
        return self.tls_secret is not None or self.issuer is not None
