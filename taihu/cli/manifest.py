"""`taihu manifest`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
import yaml

from taihu.core.base.errors import ConfigError, DataError
from taihu.core.base.whole_file import make_folder, write_text
from taihu.core.base.words import counted
from taihu.core.job import Job, Overrides, load_job, parse_assignments
from taihu.core.model.names import net_file, own_data, own_model
from taihu.core.process.options import ServersOption, SetOption, WorkersOption, refuse
from taihu.core.process.programs.user_code import split_function
from taihu.core.process.results import check_folder_writable
from taihu.launch.kubernetes.manifest import manifest
from taihu.launch.kubernetes.options import DATA_FOLDER, Issuer, ManifestOptions, Resources, Script
from taihu.launch.place import script_job
from taihu.worker.preflight import check_trains

TORCH_IMAGE: Final = "localhost/taihu-torch:latest"
_LARGEST_SCRIPT: Final = 900_000
_FEWEST: Final = 2

_EMBEDDED = re.compile(r"digits|synthetic(:.*)?")
_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_QUANTITY = re.compile(r"[1-9][0-9]*(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?")


def manifest_command(
    job_file: Annotated[Path, typer.Argument(metavar="JOB.toml", help="Job file.")],
    *,
    servers: ServersOption = None,
    workers: WorkersOption = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the job, and of its objects.")] = None,
    assignments: SetOption = None,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help=f"Where the cluster finds the image. [default: {ManifestOptions.image}, of a script {TORCH_IMAGE}]",
        ),
    ] = None,
    jobset: Annotated[bool, typer.Option("--jobset", help="One JobSet instead of a StatefulSet and a Job.")] = False,
    namespace: Annotated[str | None, typer.Option(metavar="NAMESPACE", help="Namespace of the objects.")] = None,
    server_cpus: Annotated[int, typer.Option(metavar="C", min=1, help="Processors of a server.")] = 1,
    server_memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory of a server.")] = "1Gi",
    worker_cpus: Annotated[int, typer.Option(metavar="C", min=1, help="Processors of a worker.")] = 2,
    worker_memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory of a worker.")] = "2Gi",
    storage: Annotated[str, typer.Option(metavar="SIZE", help="Volume for results, if none is named.")] = "10Gi",
    run_claim: Annotated[
        str | None, typer.Option(metavar="CLAIM", help="PersistentVolumeClaim for results, instead of a new one.")
    ] = None,
    data_claim: Annotated[
        str | None, typer.Option(metavar="CLAIM", help="PersistentVolumeClaim with the data set's files.")
    ] = None,
    checkpoint_claim: Annotated[
        str | None,
        typer.Option(metavar="CLAIM", help="ReadWriteMany claim for checkpoints: lost pods are started again."),
    ] = None,
    agents: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Agents run all workers but worker 0, in N pods at first, which may become more or fewer.",
        ),
    ] = None,
    tls_secret: Annotated[
        str | None,
        typer.Option(metavar="SECRET", help="Secret with the files of taihu certs: everything is under mutual TLS."),
    ] = None,
    issuer: Annotated[
        str | None,
        typer.Option(metavar="[KIND/]NAME", help="Issuer or ClusterIssuer of cert-manager, in place of that Secret."),
    ] = None,
    direct_port: Annotated[
        int,
        typer.Option(metavar="PORT", min=0, max=65535, help="Port of connections beside gRPC; 0 asks for none."),
    ] = 0,
    script: Annotated[
        Path | None,
        typer.Option(
            metavar="SCRIPT.py",
            help="A PyTorch script that workers run: a file here goes along, others are in the image.",
        ),
    ] = None,
    script_arguments: Annotated[
        str, typer.Option(metavar="WORDS", help="Arguments of the script, as a shell takes them.")
    ] = "",
    trainjob: Annotated[
        bool, typer.Option("--trainjob", help="A TrainJob of Kubeflow Trainer v2 and its TrainingRuntime.")
    ] = False,
    cluster_runtime: Annotated[
        bool, typer.Option("--cluster-runtime", help="A ClusterTrainingRuntime for --trainjob.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a folder for kustomize instead of one text.")
    ] = None,
) -> None:
    """Write a job as Kubernetes objects: ConfigMaps, Service, volume, StatefulSet, Jobs or a JobSet, PodMonitor.

    With --trainjob a TrainJob and its runtime take the place of Service, StatefulSet and Jobs. NetworkPolicies name
    the ports that pods listen on. With --tls-secret or --issuer all gRPC is under mutual TLS (docs/security.md).

    \b
    Examples:
      taihu manifest job.toml --workers 64 --servers 8 --image registry.example/taihu:0.1 | kubectl apply -f -
      taihu manifest job.toml --jobset --out k8s/ && kubectl apply -k k8s/
      taihu manifest job.toml --run-claim results --name second
      taihu manifest job.toml --checkpoint-claim shared      # a ReadWriteMany volume: the run outlives its pods
      taihu manifest job.toml --checkpoint-claim shared --workers 12 --agents 3       # kubectl scale changes that
      taihu manifest job.toml --tls-secret demo-tls          # made of the files of taihu certs, see docs/deploy.md
      taihu manifest job.toml --issuer ClusterIssuer/ca      # cert-manager issues and renews certificates
      taihu manifest job.toml --data-claim fashion-mnist --worker-cpus 4 --worker-memory 8Gi
      taihu manifest job.toml --workers 8 --script train.py --script-arguments "--epochs 5" | kubectl apply -f -
      taihu manifest job.toml --workers 8 --trainjob --script train.py --image registry.example/taihu-torch:0.1
    """  # noqa: D301
    settings = _overrides(assignments or (), servers, workers, name)
    job = load_job(job_file, settings)
    if script is not None:
        job = script_job(job, has_servers="servers" in job.cluster.model_fields_set)
        refuse({"--checkpoint-claim": checkpoint_claim}, "a script keeps its own checkpoints; leave it out")
    if agents is not None:
        refuse({"--script": script, "--trainjob": trainjob}, "agents run workers of taihu's own; leave it out")
        _check_agents(job, checkpoint_claim)
    if trainjob:
        refuse({"--jobset": jobset}, "a TrainJob makes a JobSet of its own; give --trainjob alone")
    else:
        refuse({"--cluster-runtime": cluster_runtime}, "it is for --trainjob; give both")
    for size in (server_memory, worker_memory, storage):
        if not _QUANTITY.fullmatch(size):
            raise ConfigError(f"size {size}: expected a number with a unit of Kubernetes, for example 2Gi")
    if tls_secret is not None:
        refuse({"--issuer": issuer}, "certificates come from one place; leave out --tls-secret or --issuer")
    run = None
    if script is None:
        refuse({"--script-arguments": script_arguments or None}, "of which script? give --script as well")
        check_trains(job)
        _check_data(job, data_claim)
        files, settings = _own_files(job, settings)
    else:
        run, files = _script_of(script, script_arguments)
    options = ManifestOptions(
        image=image or (ManifestOptions.image if script is None else TORCH_IMAGE),
        name=name,
        namespace=namespace,
        jobset=jobset,
        server=Resources(server_cpus, server_memory),
        worker=Resources(worker_cpus, worker_memory),
        storage=storage,
        run_claim=run_claim,
        data_claim=data_claim,
        checkpoint_claim=checkpoint_claim,
        agents=agents,
        files=files,
        direct_port=direct_port,
        tls_secret=tls_secret,
        issuer=None if issuer is None else _issuer_of(issuer),
        script=run,
        runtime="" if not trainjob else "ClusterTrainingRuntime" if cluster_runtime else "TrainingRuntime",
    )
    objects = manifest(job, job_file.read_text(encoding="utf-8"), settings, options)
    if out is None:
        typer.echo(to_yaml(objects), nl=False)
    else:
        check_folder_writable(out)
        _write(out, objects)


def _overrides(
    assignments: Sequence[str], servers: int | None, workers: int | None, name: str | None
) -> dict[str, dict[str, object]]:
    """The options that are of the job, by section and key."""
    given: dict[str, dict[str, object]] = {key: dict(of) for key, of in parse_assignments(assignments).items()}
    own: dict[str, dict[str, object]] = {
        "": {"name": name},
        "cluster": {"servers": servers, "workers": workers},
    }
    for section, values in own.items():
        told = {key: value for key, value in values.items() if value is not None}
        if told:
            given[section] = {**given.get(section, {}), **told}
    return given


class _Dumper(yaml.SafeDumper):
    """Texts of several lines stay readable; nothing is an alias of anything."""

    def ignore_aliases(self, data: object) -> bool:
        """Always: equal objects are written out each time."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def to_yaml(objects: list[dict[str, object]]) -> str:
    """The objects as one YAML stream."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=118)


def _issuer_of(text: str) -> Issuer:
    """The issuer that `[KIND/]NAME` names; raises ConfigError for any other text."""
    kind, slash, name = text.rpartition("/")
    if not _OBJECT.fullmatch(name) or (slash and kind not in ("Issuer", "ClusterIssuer")):
        raise ConfigError(f"--issuer {text}: expected NAME, Issuer/NAME or ClusterIssuer/NAME, for example Issuer/ca")
    return Issuer(name, "ClusterIssuer" if kind == "ClusterIssuer" else "Issuer")


def _check_agents(job: Job, checkpoint_claim: str | None) -> None:
    if checkpoint_claim is None:
        raise ConfigError("--agents: workers move by checkpoints; give --checkpoint-claim as well")
    if job.workers_meet:
        raise ConfigError("--agents: workers that exchange with each other need a port of their own; leave it out")
    if job.world.workers < _FEWEST:
        raise ConfigError("--agents: worker 0 has a pod of its own; expected cluster.workers of 2 or more")


def _check_data(job: Job, claim: str | None) -> None:
    own = own_data(job.data.name)
    if own is not None and own.kind == "function" and job.data.path is None:
        return
    if claim is None and (job.data.path is not None or not _EMBEDDED.fullmatch(job.data.name)):
        raise ConfigError(
            f"data {job.data.name}: its files are not in the image; put them on a volume that all workers can read, "
            "and give its --data-claim"
        )


def _script_of(script: Path, arguments: str) -> tuple[Script, dict[str, str]]:
    """The script as pods find it, and the files that go beside the job file for it.

    Raises:
        ConfigError: it is neither here nor a place in an image, it is too large, or the arguments are no words.
    """
    try:
        words = tuple(shlex.split(arguments))
    except ValueError as error:
        raise ConfigError(f"--script-arguments {arguments}: {error}; write them as a shell takes them") from None
    if not script.is_file():
        if script.is_absolute():
            return Script(str(script), words), {}
        raise ConfigError(f"script {script}: no such file; give a file here, or its absolute path in the image")
    text = script.read_text(encoding="utf-8")
    size = len(text.encode())
    if size > _LARGEST_SCRIPT:
        raise ConfigError(
            f"script {script}: {size:,} bytes, a ConfigMap holds {_LARGEST_SCRIPT:,}; put it into the image, and "
            "give its absolute path there"
        )
    return Script(script.name, words), {script.name: text}


def _own_files(job: Job, settings: Overrides) -> tuple[dict[str, str], dict[str, dict[str, object]]]:
    """Files with a model or data of the user's own go beside the job file, where the pods find them by their names.

    Data that are no code are found under their own name in the claim.
    """
    merged = {section: dict(values) for section, values in settings.items()}
    files: dict[str, str] = {}
    model = own_model(job.model.name)
    if model is not None:
        path, function = model
        merged.setdefault("model", {})["name"] = f"{path.name}:{function}"
        files[path.name] = path.read_text(encoding="utf-8")
    net = net_file(job.model.name)
    if net is not None:
        merged.setdefault("model", {})["name"] = net.name
        files[net.name] = net.read_text(encoding="utf-8")
    data = own_data(job.data.name)
    if data is not None and data.kind == "function":
        path, _ = split_function(f"{data.path}:{data.function}", thing="data", error=DataError)
        merged.setdefault("data", {})["name"] = f"{path.name}:{data.function}"
        files[path.name] = path.read_text(encoding="utf-8")
    elif data is not None:
        merged.setdefault("data", {})["name"] = f"{DATA_FOLDER}/{data.path.name}"
    return files, merged


def _write(folder: Path, objects: list[dict[str, object]]) -> None:
    """A file for each kind of object, and the kustomization that lists them; other files stay as they are."""
    make_folder(folder)
    by_file: dict[str, list[dict[str, object]]] = {}
    for item in objects:
        by_file.setdefault(f"{str(item['kind']).lower()}.yaml", []).append(item)
    kustomization: dict[str, object] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(by_file),
    }
    for name, items in {"kustomization.yaml": [kustomization], **by_file}.items():
        write_text(folder / name, to_yaml(items))
    typer.echo(f"wrote {counted(len(objects), 'object')}; apply them with: kubectl apply -k {folder}")
