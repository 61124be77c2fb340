"""An examination: facts of this machine, of others and of what is between them, and the findings that follow."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from taihu.core.base.errors import TaihuError
from taihu.core.job import Job
from taihu.core.planner.memory import MemoryJob
from taihu.core.wire.base.address import is_loopback, join_address, split_address
from taihu.core.wire.base.clock import WallClock
from taihu.doctor.certificates import CertificateFacts, NamedFiles, certificate_facts, check_certificates
from taihu.doctor.collecting import free_disk_bytes, machine_facts, resolved
from taihu.doctor.facts import ClockFacts, LinkFacts, MachineFacts, Port, PortFacts
from taihu.doctor.findings import Finding, fails, worst_first
from taihu.doctor.job_files import check_files
from taihu.doctor.machines import (
    check_coordinator,
    check_disk,
    check_limits,
    check_memory,
    check_names,
    check_peer,
    check_shared_memory,
)
from taihu.doctor.members import check_alike
from taihu.doctor.needs import Needs, needs_of
from taihu.doctor.network import check_clock, check_links, check_port
from taihu.doctor.remote import RemoteDoctor, look_at_port

HERE: Final = "here"
"""The name of this machine in findings."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Subject:
    """The subject of an examination.

    Attributes:
        job: whether it would run.
        memory: what its memory depends on; None where that is not known.
        peers: addresses of other machines, where doctors listen.
        promised_bits: rate of the links in bits per second, where somebody knows it.
        certificates: files of the processes of this machine.
    """

    job: Job
    memory: MemoryJob | None = None
    peers: tuple[str, ...] = ()
    promised_bits: float | None = None
    certificates: tuple[NamedFiles, ...] = ()

    @property
    def alone(self) -> bool:
        """Whether all processes would run on this machine."""
        address = self.job.cluster.coordinator
        return not self.peers and (address is None or (not address.startswith("dns:") and is_loopback(address)))


@dataclass
class Examination:
    """Facts and findings; machines by their names."""

    machines: dict[str, MachineFacts] = field(default_factory=dict)
    ports: list[PortFacts] = field(default_factory=list)
    clocks: list[ClockFacts] = field(default_factory=list)
    links: list[LinkFacts] = field(default_factory=list)
    certificates: tuple[CertificateFacts, ...] = ()
    findings: list[Finding] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The results; times in seconds, rates in bytes per second."""
        return {
            "findings": [finding.to_json() for finding in self.findings],
            "machines": {where: _machine_json(facts) for where, facts in self.machines.items()},
            "ports": [
                {"address": each.address, "seen_from": each.seen_from, "state": each.port.value}
                for each in self.ports
            ],
            "clocks": [
                {"machine": each.where, "ahead_seconds": each.ahead_s, "error_seconds": each.error_s}
                for each in self.clocks
            ],
            "links": [_link_json(link) for link in self.links],
            "certificates": [
                {
                    "path": str(each.path),
                    "from": each.start.isoformat() if each.start else None,
                    "until": each.end.isoformat() if each.end else None,
                    "names": list(each.names),
                }
                for each in self.certificates
            ],
        }


def examine(subject: Subject, tell: Tell = lambda _: None, wall: WallClock | None = None) -> Examination:
    """Collect all facts, which takes a second and five for each pair of machines, and draw the findings from them.

    `tell` is told what is being looked at; `wall` is this machine's time of day.
    """
    found, wall = Examination(), wall or WallClock()
    broken = _collect(subject, found, tell, wall)
    tell("data and folders")
    needs = needs_of(subject.job, subject.memory)
    found.findings = worst_first(
        (
            *broken,
            *_of_machines(subject, found, needs),
            *_of_job(subject, found, needs, wall.utc()),
            *_of_network(subject, found),
        )
    )
    return found


def _collect(subject: Subject, found: Examination, tell: Tell, wall: WallClock) -> list[Finding]:
    """Fill `found`; returns what broke off on the way."""
    tell("this machine")
    names = _names(subject)
    peers = [split_address(peer)[0] for peer in subject.peers]
    found.machines[HERE] = machine_facts([*names, *peers])
    found.certificates = certificate_facts(subject.certificates)
    broken = []
    for peer in subject.peers:
        tell(f"{peer}: port, facts and clock")
        found.ports.append(look_at_port(peer, HERE))
        if found.ports[-1].port is Port.OPEN:
            broken += _tried(f"the doctor at {peer}", partial(_ask, peer, names, found, wall))
    broken += _collect_links(subject, found, tell)
    address = subject.job.cluster.coordinator
    if address is not None and not address.startswith("dns:") and address not in subject.peers:
        tell(f"coordinator {address}")
        port = look_at_port(address, HERE)
        # Where this machine is to listen, nobody else should.
        if port.port is not Port.REFUSED or not _is_own(address, found.machines[HERE]):
            found.ports.append(port)
    return broken


def _ask(peer: str, names: Sequence[str], found: Examination, wall: WallClock) -> None:
    with RemoteDoctor(peer) as doctor:
        found.machines[peer], _ = doctor.facts(names)
        found.clocks.append(replace(doctor.clock(wall), where=peer))


def _collect_links(subject: Subject, found: Examination, tell: Tell) -> list[Finding]:
    """Measure the link to every doctor, and those between two of them, one at a time."""
    broken = []
    doctors = [peer for peer in subject.peers if peer in found.machines]
    for far in doctors:
        tell(f"link {HERE} - {far}")
        broken += _tried(f"{HERE} - {far}", partial(_measure, far, found))
    for near, far in combinations(doctors, 2):
        address = _by_number(far)
        if address is not None and _by_number(near) is not None:
            tell(f"link {near} - {far}")
            broken += _tried(f"{near} - {far}", partial(_measure_between, near, far, address, found))
    return broken


def _measure(far: str, found: Examination) -> None:
    with RemoteDoctor(far) as doctor:
        found.links.append(doctor.measure(HERE, far))


def _measure_between(near: str, far: str, address: str, found: Examination) -> None:
    with RemoteDoctor(near) as doctor:
        found.links.append(replace(doctor.measure_to(address), near=near, far=far))


def _by_number(address: str) -> str | None:
    """`address` with a number in place of a name, as other machines may be told it; None for one of this machine."""
    host, port = split_address(address)
    number = next(iter(resolved(host)), None)
    if number is None or ipaddress.ip_address(number).is_loopback:
        return None
    return join_address(number, port)


def _is_own(address: str, facts: MachineFacts) -> bool:
    """Whether an address is one of this machine's."""
    own = {ipaddress.ip_interface(each).ip for each in facts.addresses}
    numbers = map(ipaddress.ip_address, resolved(split_address(address)[0]))
    return any(number.is_loopback or number in own for number in numbers)


def _tried(where: str, act: Callable[[], object]) -> list[Finding]:
    try:
        act()
    except TaihuError as error:
        return [fails("link", where, str(error), "start the doctor there again, and see that nothing cuts it off")]
    return []


def _names(subject: Subject) -> list[str]:
    """Names of hosts that every machine has to know."""
    address = subject.job.cluster.coordinator
    if address is None or address.startswith("dns:"):
        return []
    host = split_address(address)[0]
    return [host] if host else []


def _of_machines(subject: Subject, found: Examination, needs: Needs) -> Iterator[Finding]:
    address = subject.job.cluster.coordinator
    shares = needs if subject.alone else replace(needs, shared_bytes=0)
    for where, facts in found.machines.items():
        yield from check_limits(where, facts, needs)
        yield from check_memory(where, facts, needs, alone=subject.alone)
        yield from check_shared_memory(where, facts, shares)
        if not subject.alone:
            yield from check_names(where, facts)
        for peer in subject.peers if where == HERE else ():
            yield from check_peer(peer, where, facts)
        if address is not None and not address.startswith("dns:"):
            yield from check_coordinator(address, where, facts, alone=not subject.peers)


def _of_job(subject: Subject, found: Examination, needs: Needs, now: datetime) -> Iterator[Finding]:
    yield from check_files(subject.job, HERE)
    folder = subject.job.checkpoint.dir
    if isinstance(folder, Path) and folder != Path("none"):
        yield from check_disk(HERE, str(folder), free_disk_bytes(folder), needs)
    yield from check_certificates(found.certificates, now.astimezone(UTC), HERE)


def _of_network(subject: Subject, found: Examination) -> Iterator[Finding]:
    for port in found.ports:
        yield from check_port(port, awaited=port.address in subject.peers)
    for clock in found.clocks:
        yield from check_clock(clock)
    yield from check_links(found.links, subject.promised_bits)
    yield from check_alike(found.machines)


def _machine_json(facts: MachineFacts) -> dict[str, Any]:
    return {
        "host": facts.host,
        "versions": facts.versions,
        "features": sorted(facts.features),
        "addresses": list(facts.addresses),
        "names": {name: list(addresses) for name, addresses in facts.names.items()},
        "open_files": facts.open_files or None,
        "bytes_locked": facts.locked_bytes or None,
        "bytes_address_space": facts.address_space_bytes or None,
        "bytes_free_memory": facts.free_memory_bytes,
        "bytes_free_shared": facts.free_shared_bytes,
    }


def _link_json(link: LinkFacts) -> dict[str, Any]:
    ends = {"near": link.near_interface, "far": link.far_interface}
    return {
        "near": link.near,
        "far": link.far,
        "alpha_seconds": link.alpha_s,
        "bytes_per_second_up": link.up,
        "bytes_per_second_down": link.down,
        "bytes_per_second_direct": link.direct or None,
        "failure": link.failure or None,
        **{
            f"{end}_interface": {"name": each.name, "address": each.address, "mtu": each.mtu}
            for end, each in ends.items()
        },
    }
