"""Findings about one machine: its limits, memory and names. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from taihu.core.base.words import listed
from taihu.core.wire.base.address import is_every_host, split_address
from taihu.doctor.facts import MachineFacts
from taihu.doctor.findings import Finding, fails, notes, slows
from taihu.doctor.needs import Needs
from taihu.local.display.display import human_bytes


def check_limits(where: str, facts: MachineFacts, needs: Needs) -> Iterator[Finding]:
    """Descriptors and the address space of each process against what the job needs."""
    if 0 < facts.open_files < needs.open_files:
        yield fails(
            "files",
            where,
            f"a process may open {facts.open_files} files, the job's need up to {needs.open_files}",
            f"raise the limit: ulimit -n {max(4096, needs.open_files)}, or LimitNOFILE of the service",
        )
    most = max(needs.worker_bytes, needs.server_bytes)
    if 0 < facts.address_space_bytes < most:
        yield fails(
            "memory",
            where,
            f"a process may map {human_bytes(facts.address_space_bytes)}, the largest of the job takes "
            f"{human_bytes(most)}",
            "raise the limit: ulimit -v unlimited",
        )


def check_memory(where: str, facts: MachineFacts, needs: Needs, *, alone: bool) -> Iterator[Finding]:
    """Free memory against that which the job takes: all of its processes where this machine is `alone`, else one."""
    free = facts.free_memory_bytes
    remedy = "`taihu plan memory JOB.toml` names settings with which it fits; or take a larger machine"
    if not free or not needs.worker_bytes:
        return
    if alone:
        if free < needs.machine_bytes:
            text = f"all processes together take {human_bytes(needs.machine_bytes)}, {human_bytes(free)} are free"
            yield fails("memory", where, text, remedy)
        return
    least = min(needs.worker_bytes, needs.server_bytes or needs.worker_bytes)
    if free < least:
        text = f"not even one process of the job fits: it takes {human_bytes(least)}, {human_bytes(free)} are free"
        yield fails("memory", where, text, remedy)
    elif free < needs.worker_bytes:
        text = f"a worker takes {human_bytes(needs.worker_bytes)}, {human_bytes(free)} are free: a server would fit"
        yield notes("memory", where, text, "start no worker there, or set what `taihu plan memory` names")
    elif free < needs.server_bytes:
        text = f"a server takes {human_bytes(needs.server_bytes)}, {human_bytes(free)} are free: a worker would fit"
        yield notes("memory", where, text, "start no server there, or set what `taihu plan memory` names")


def check_shared_memory(where: str, facts: MachineFacts, needs: Needs) -> Iterator[Finding]:
    """The room of /dev/shm against what processes of one machine share."""
    if facts.free_shared_bytes >= needs.shared_bytes:
        return
    room = human_bytes(facts.free_shared_bytes)
    text = f"processes would share {human_bytes(needs.shared_bytes)} in /dev/shm, which has room for {room}"
    remedy = "mount -o remount,size=50% /dev/shm, or --shm-size of the container"
    if needs.must_share:
        yield fails("shared-memory", where, text, f"{remedy}; or set exchange.transport = 'auto'")
    else:
        yield slows("shared-memory", where, f"{text}: values would go over TCP", remedy)


def check_disk(where: str, folder: str, free_bytes: int, needs: Needs) -> Iterator[Finding]:
    """The room of the folder of checkpoints against those that are there at once."""
    if free_bytes < needs.checkpoint_bytes:
        yield fails(
            "disk",
            where,
            f"checkpoints take {human_bytes(needs.checkpoint_bytes)}, {folder} has {human_bytes(free_bytes)} free",
            "name another folder by checkpoint.dir, or keep fewer by checkpoint.keep",
        )


def check_names(where: str, facts: MachineFacts) -> Iterator[Finding]:
    """Addresses of a machine that takes part with others, and what its own name is there."""
    if not facts.addresses:
        yield fails(
            "addresses",
            where,
            "no interface has an address that other machines could reach",
            "give one an address (ip addr add), or run everything on one machine",
        )
    own = facts.names.get(facts.host, ())
    if own and all(map(_is_loopback, own)):
        yield notes(
            "names",
            where,
            f"its own name {facts.host} is {listed(own)} there, loopback, which others would take for themselves",
            f"in /etc/hosts, give {facts.host} the address that others reach instead of {own[0]}",
        )


def check_coordinator(address: str, where: str, facts: MachineFacts, *, alone: bool) -> Iterator[Finding]:
    """The meaning of the coordinator's address on one machine, and whether others can mean the same."""
    if alone:
        return
    host, _ = split_address(address)
    subject = f"coordinator {address}"
    remedy = "set cluster.coordinator to an address of its host that the others reach"
    if is_every_host(host) or _is_loopback(host):
        yield fails("names", where, f"{subject}: other machines cannot reach {host or 'no host'}", remedy)
        return
    known = facts.names.get(host)
    if known is not None and not known:
        text = f"{subject}: nobody knows the name {host} there"
        yield fails("names", where, text, "add it to DNS or to /etc/hosts there, or set an address")
    else:
        yield from _check_name(subject, host, where, known or ())


def check_peer(address: str, where: str, facts: MachineFacts) -> Iterator[Finding]:
    """The meaning of another machine's name on this one; who gives a number means it."""
    host, _ = split_address(address)
    yield from _check_name(f"peer {address}", host, where, facts.names.get(host, ()))


def _check_name(subject: str, host: str, where: str, known: tuple[str, ...]) -> Iterator[Finding]:
    if any(map(_is_loopback, known)) and not _is_loopback(host):
        text = f"{subject}: the name {host} is {listed(known)} there, loopback, which others would be told"
        yield fails("names", where, text, f"correct the line of {host} in /etc/hosts there, or set an address")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
