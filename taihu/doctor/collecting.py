"""Facts of this machine, from the system."""

from __future__ import annotations

import ipaddress
import platform
import re
import resource
import shutil
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from taihu.core.base.errors import ConfigError
from taihu.core.process.memory.free import free_bytes
from taihu.core.system.sockets import SOCK_DGRAM, SOCK_STREAM, Socket, getaddrinfo, gethostname
from taihu.doctor.facts import Interface, MachineFacts
from taihu.launch.interfaces import named_interfaces, own_interfaces

_PACKAGES: Final = ("taihu", "numpy", "numba", "llvmlite", "grpcio", "protobuf")
# Of x86 and ARM, those that kernels are compiled for, or that OpenBLAS chooses by.
_FEATURES: Final = frozenset(
    [
        "sse4_2",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512bw",
        "avx512dq",
        "avx512vl",
        "avx512_bf16",
        "avx512_fp16",
        "amx_tile",
        "amx_bf16",
        "asimd",
        "asimdhp",
        "asimddp",
        "sve",
        "sve2",
        "bf16",
    ]
)
_SHARED: Final = Path("/dev/shm")  # noqa: S108 - looked at alone
_LOOPBACK: Final = "lo"
_MEGABIT: Final = 1e6


def machine_facts(names: Sequence[str] = ()) -> MachineFacts:
    """The facts of this machine; what its own name and `names` resolve to is among them."""
    host = gethostname()
    return MachineFacts(
        host,
        _versions(),
        _features(Path("/proc/cpuinfo")),
        tuple(own_interfaces()),
        {name: resolved(name) for name in dict.fromkeys((host, *names))},
        _limit(resource.RLIMIT_NOFILE),
        _limit(resource.RLIMIT_MEMLOCK),
        _limit(resource.RLIMIT_AS),
        _free_memory(),
        free_disk_bytes(_SHARED),
    )


def resolved(name: str) -> tuple[str, ...]:
    """The addresses of a host's name; none where nobody knows it."""
    try:
        found = getaddrinfo(name, None, type=SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(info[4][0]) for info in found))


def free_disk_bytes(folder: Path) -> int:
    """Bytes that whatever holds `folder`, or will, has room for; 0 where nothing does."""
    place = next((each for each in (folder, *folder.absolute().parents) if each.exists()), None)
    try:
        return shutil.disk_usage(place).free if place is not None else 0
    except OSError:
        return 0


def interface_towards(host: str, system: Path = Path("/sys/class/net")) -> Interface:
    """The interface of the route to `host`; one without a name where there is no route, or it cannot be told."""
    try:
        family, _, _, _, target = getaddrinfo(host, 1, type=SOCK_DGRAM)[0]
        with Socket(family, SOCK_DGRAM) as probe:
            probe.connect(target)
            address = str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return Interface()
    name = _LOOPBACK if ipaddress.ip_address(address).is_loopback else _name_of(address)
    if not name:
        return Interface(address=address)
    is_physical = (system / name / "device").exists()
    speed = _number(system / name / "speed") if is_physical else 0
    return Interface(name, address, _number(system / name / "mtu"), max(0, speed) * _MEGABIT)


def _name_of(address: str) -> str:
    own = ipaddress.ip_address(address)
    return next((name for name, text in named_interfaces() if ipaddress.ip_interface(text).ip == own), "")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


def _features(cpuinfo: Path) -> frozenset[str]:
    try:
        found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        return frozenset()
    return _FEATURES & set(found[1].split()) if found is not None else frozenset()


def _limit(kind: int) -> int:
    """The soft limit; 0 where there is none."""
    soft, _ = resource.getrlimit(kind)
    return 0 if soft == resource.RLIM_INFINITY else soft


def _free_memory() -> int:
    try:
        return free_bytes()
    except ConfigError:
        return 0


def _number(path: Path) -> int:
    """The number in a file of the system; 0 where there is none, or the interface says nothing."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
