"""The likeness of hosts that are to train together: their programs and the script. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taihu.core.base.errors import ConfigError


@dataclass(frozen=True)
class HostFacts:
    """Facts of a host that it tells when it is reached.

    Attributes:
        taihu, python: versions, that of Python without its last number.
        torch: version of PyTorch; None where there is none.
        has_folder: whether it has the working folder.
        script: SHA-256 of the script; None where it has none there.
        interfaces: addresses with their prefixes that others may reach.
        cores: their number.
    """

    taihu: str
    python: str
    torch: str | None
    has_folder: bool
    script: str | None
    interfaces: tuple[str, ...]
    cores: int


def check_alike(
    hosts: Sequence[tuple[str, HostFacts]], taihu: str, folder: str, script: tuple[str, str | None], python: str
) -> None:
    """Check that all hosts have all that the first process needs, in the same versions.

    Args:
        hosts: names and facts.
        taihu: the launcher's version.
        folder: the working folder.
        script: its path, and its SHA-256 here.
        python: the Python that was started.

    Raises:
        ConfigError: names the host, the thing, and the remedy.
    """
    first_name, first = hosts[0]
    path, digest = script
    for name, facts in hosts:
        if facts.taihu != taihu:
            raise ConfigError(f"{name}: has taihu {facts.taihu}, expected {taihu} as here; install the same version")
        if facts.torch is None:
            raise ConfigError(f"{name}: {python} there has no PyTorch; install it, or taihu with the extra 'torch'")
        for what, has, expected in (
            ("Python", facts.python, first.python),
            ("PyTorch", facts.torch, first.torch),
        ):
            if has != expected:
                remedy = "install the same version, or give --python"
                raise ConfigError(f"{name}: has {what} {has}, expected {expected} as on {first_name}; {remedy}")
        if not facts.has_folder:
            raise ConfigError(f"{name}: has no folder {folder}; make it there, share it, or give --chdir")
        if facts.script is None:
            raise ConfigError(f"{name}: has no script {path}; copy it to the same place, or share the folder")
        if facts.script != digest:
            raise ConfigError(f"{name}: its {path} is another one than here; copy this one there")
