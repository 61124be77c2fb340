"""Runs the pods of a kustomization with `podman play kube`, workers before servers, and says how they ended.

python deploy/k8s/play.py deploy/k8s/overlays/dev --image localhost/taihu:latest
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import yaml
from pods import config_maps, expand, projected

__all__ = ["container_of", "network_for", "play", "pods_of", "role_of"]

Object = dict[str, Any]
Pods = dict[str, tuple[IPv4Address, Object]]

_NETWORK = "taihu-pods"
_SUBNET = IPv4Network("10.90.7.0/24")
_TIMEOUT_S = 240.0
_SERVERS_LATER_S = 5.0
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def main() -> int:
    """Run; returns 0 when every pod ended well and all probes were answered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kustomization")
    parser.add_argument("--image", default="localhost/taihu:latest")
    parser.add_argument("--steps", type=int, help="train.steps, instead of the job's")
    given = parser.parse_args()
    text = _output("kubectl", "kustomize", given.kustomization)
    objects = [item for item in yaml.safe_load_all(text) if item]
    if given.steps is not None:
        settings = next(item for item in config_maps(objects) if item["metadata"]["name"].endswith("-settings"))
        settings["data"]["TAIHU_TRAIN__STEPS"] = str(given.steps)
    pods = pods_of(objects, given.image)
    with network_for(pods), tempfile.TemporaryDirectory() as folder:
        return _Run(Path(folder), objects, pods).run()


def pods_of(objects: Iterable[Object], image: str) -> Pods:
    """Address and manifest of every pod by name, as this engine takes them, with containers of `image`."""
    pods = expand(objects, _SUBNET)
    for _, pod in pods.values():
        for container in pod["spec"]["containers"]:
            container["image"] = image
            for mount in container["volumeMounts"]:
                mount["name"] = _own(mount["name"], pod)
            del container["ports"]  # this engine would publish them on the host, where only one pod can have each
        for volume in pod["spec"]["volumes"]:
            volume["name"] = _own(volume["name"], pod)
    return pods


@contextmanager
def network_for(pods: Pods) -> Iterator[None]:
    """The network that pods have their addresses in; at the end it is removed, with the pods and their volumes."""
    subprocess.run(
        ["podman", "network", "create", "--subnet", str(_SUBNET), _NETWORK], check=True, capture_output=True
    )
    try:
        yield
    finally:
        for name in pods:
            subprocess.run(["podman", "pod", "rm", "--force", "--time", "5", name], check=False, capture_output=True)
        for volume in _claims(pods):
            subprocess.run(["podman", "volume", "rm", "--force", volume], check=False, capture_output=True)
        subprocess.run(["podman", "network", "rm", "--force", _NETWORK], check=False, capture_output=True)


def play(name: str, objects: Iterable[Object], pods: Pods, folder: Path) -> None:
    """Start the pod of this name; `folder` is for its manifest, and for files of Secrets as long as it runs.

    Raises:
        SystemExit: the engine refused.
    """
    address, pod = pods[name]
    file = folder / f"{name}.yaml"
    pod = _with_files(_unasked(pod), objects, folder)
    file.write_text(yaml.safe_dump_all([*config_maps(objects), pod]))
    command = ["podman", "play", "kube", "--network", _NETWORK, "--ip", str(address), str(file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr.strip()}")


def _unasked(pod: Object) -> Object:
    """The pod without probes, for which this engine would start programs in it that the image does not have."""
    spec = pod["spec"]
    containers = [{key: value for key, value in each.items() if key not in _PROBES} for each in spec["containers"]]
    return {**pod, "spec": {**spec, "containers": containers}}


def _with_files(pod: Object, objects: Iterable[Object], folder: Path) -> Object:
    """The pod with folders of this machine in the place of projected volumes, which this engine does not know."""
    volumes = []
    for volume in pod["spec"]["volumes"]:
        if "projected" not in volume:
            volumes.append(volume)
            continue
        here = folder / volume["name"]
        here.mkdir()
        for path, content in projected(volume, objects).items():
            (here / path).write_bytes(content)
            os.chown(here / path, 0, pod["spec"]["securityContext"]["fsGroup"])
            (here / path).chmod(volume["projected"]["defaultMode"])
        volumes.append({"name": volume["name"], "hostPath": {"path": str(here), "type": "Directory"}})
    return {**pod, "spec": {**pod["spec"], "volumes": volumes}}


def container_of(name: str, pods: Pods) -> str:
    """The name that this engine gives the one container of a pod."""
    return f"{name}-{role_of(name, pods)}"


def role_of(name: str, pods: Pods) -> str:
    """The role of a pod, server or worker."""
    return str(pods[name][1]["metadata"]["labels"]["app.kubernetes.io/component"])


def _claims(pods: Pods) -> list[str]:
    """The volumes that pods keep things on; this engine makes one of a claim's name."""
    volumes = [volume for _, pod in pods.values() for volume in pod["spec"]["volumes"]]
    names = (volume["persistentVolumeClaim"]["claimName"] for volume in volumes if "persistentVolumeClaim" in volume)
    return list(dict.fromkeys(names))


def _own(volume: str, pod: Object) -> str:
    """The name of a volume that the pod has for itself: this engine takes one name in two pods for one volume."""
    return f"{pod['metadata']['name']}-{volume}"


@dataclass
class _Run:
    folder: Path
    objects: list[Object]
    pods: Pods

    def run(self) -> int:
        servers = [name for name in self.pods if role_of(name, self.pods) == "server"]
        workers = [name for name in self.pods if role_of(name, self.pods) == "worker"]
        for name in workers:
            play(name, self.objects, self.pods, self.folder)
        print(f"{len(workers)} workers started; servers follow in {_SERVERS_LATER_S:g} s", flush=True)
        time.sleep(_SERVERS_LATER_S)
        for name in servers:
            play(name, self.objects, self.pods, self.folder)
        started = time.monotonic()
        probed = self.probe()
        self.wait(workers)
        print(f"workers ended {time.monotonic() - started:.1f} s after the servers had started")
        alive = [name for name in servers if self.state(name)["Running"]]
        print(f"servers that still ran then: {', '.join(alive) or 'none'}")
        for name in servers:
            command = ["podman", "stop", "--time", "60", f"{name}-server"]
            subprocess.run(command, check=True, capture_output=True)
        codes = {name: self.state(name)["ExitCode"] for name in self.pods}
        hashes = {self.finished(name).get("parameters_sha256") for name in workers}
        for name, code in codes.items():
            rank = self.finished(name).get("rank")
            print(f"{name:24} exit code {code}, rank {rank}, {self.pods[name][0]}")
        print(f"parameters sha256: {', '.join(map(str, hashes))}")
        # What is started again when it ends must not end by itself.
        held = [name for name in servers if self.pods[name][1]["spec"]["restartPolicy"] == "Always"]
        well = probed and not any(codes.values()) and len(hashes) == 1 and set(held) <= set(alive)
        ranks = [self.finished(name).get("rank") for name in (*servers, *workers)]
        well = well and ranks == [*range(len(servers)), *range(len(workers))]
        kept = self.kept()
        print(f"on the volume: {', '.join(kept) or 'nothing'}")
        well = well and any(path.endswith("/model.safetensors") for path in kept)
        print("all is well" if well else "something is wrong")
        return int(not well)

    def kept(self) -> list[str]:
        """The files that the run left on its volumes."""
        inspect = ("podman", "volume", "inspect", "-f", "{{.Mountpoint}}")
        mounts = [Path(_output(*inspect, name).strip()) for name in _claims(self.pods)]
        return sorted(str(path.relative_to(mount)) for mount in mounts for path in mount.rglob("*") if path.is_file())

    def probe(self) -> bool:
        """Ask what a kubelet would ask, until every probe of every pod has been answered with yes."""
        open_probes = {
            (name, kind, f"http://{address}:{container[kind]['httpGet']['port']}{container[kind]['httpGet']['path']}")
            for name, (address, pod) in self.pods.items()
            for container in pod["spec"]["containers"]
            for kind in _PROBES
        }
        count = len(open_probes)
        deadline = time.monotonic() + 60
        while open_probes and time.monotonic() < deadline:
            open_probes = {probe for probe in open_probes if not _is_well(probe[-1])}
            time.sleep(0.2)
        print(f"{count - len(open_probes)} of {count} probes answered with 200", *sorted(open_probes))
        return not open_probes

    def wait(self, names: list[str]) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while any(self.state(name)["Running"] for name in names) and time.monotonic() < deadline:
            time.sleep(0.5)

    def state(self, name: str) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(_output("podman", "inspect", container_of(name, self.pods)))[0]["State"]
        return state

    def finished(self, name: str) -> dict[str, Any]:
        """The log line with which a process that did its part ends."""
        command = ["podman", "logs", container_of(name, self.pods)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        lines = [json.loads(line) for line in (done.stdout + done.stderr).splitlines() if line.startswith("{")]
        return next((line for line in lines if line["event"] == "finished"), {})


def _is_well(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - an address of the network made here
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
