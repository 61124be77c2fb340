"""Findings about ports, clocks and links between machines. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from taihu.doctor.facts import ClockFacts, Interface, LinkFacts, Port, PortFacts
from taihu.doctor.findings import Finding, fails, notes, slows

CLOCK_LIMIT_S: Final = 1.0
"""Seconds by which clocks of two machines may differ: times in logs, traces and certificates follow them."""

_SHARE_OF_LINK: Final = 0.7
_SHARE_OF_OTHERS: Final = 0.5
_WORTHWHILE: Final = 1.25
_BESIDE_GRPC: Final = "leave exchange.transport = 'auto', and let connections beside gRPC through (--direct-port)"
_SMALLEST_MTU: Final = 1280
_SLOW_START_S: Final = 0.05

_LISTEN: Final = "start `taihu doctor --listen` there, or check host and port"
_PORT_REMEDIES: Final = {
    Port.OTHER: ("something listens there that is no part of taihu", "choose another port, or end what listens"),
    Port.REFUSED: ("refused: nothing listens there, or a firewall rejects", _LISTEN),
    Port.UNREACHABLE: ("no route to the host", "check address, routes and netmask of both machines"),
    Port.UNKNOWN: ("nobody knows the host's name", "add it to DNS or to /etc/hosts, or give an address"),
}


def check_port(facts: PortFacts, *, awaited: bool = True) -> Iterator[Finding]:
    """The outcome of a connection; where nothing is `awaited` yet, a port that refuses is worth a note alone."""
    where = f"{facts.seen_from} to {facts.address}"
    if facts.port is Port.DROPPED:
        text = f"no answer within {facts.waited_s:g} s: a firewall drops what goes to this port, or the host is off"
        port = facts.address.rpartition(":")[2]
        yield fails("ports", where, text, f"let TCP through to port {port} there")
    elif facts.port is Port.REFUSED and not awaited:
        remedy = "start `taihu doctor --listen` at this address to have it measured"
        yield notes("ports", where, "nothing listens there yet, and no firewall drops it", remedy)
    elif facts.port in _PORT_REMEDIES:
        text, remedy = _PORT_REMEDIES[facts.port]
        yield fails("ports", where, text, remedy)
    elif facts.port is Port.RUNNING and awaited:
        text = "a daemon of a run answers, no doctor: its port was looked at, the link and the machine were not"
        yield notes("ports", where, text, "start `taihu doctor --listen` there on another port to have them measured")


def check_clock(facts: ClockFacts) -> Iterator[Finding]:
    """A difference of two clocks that is more than the limit, whatever the round trip hides."""
    surely = abs(facts.ahead_s) - facts.error_s
    if surely > CLOCK_LIMIT_S:
        direction = "ahead of" if facts.ahead_s > 0 else "behind"
        yield notes(
            "clock",
            facts.where,
            f"its clock is {abs(facts.ahead_s):.3g} s {direction} this machine's (known to {facts.error_s:.2g} s, "
            f"limit {CLOCK_LIMIT_S:g} s): logs, traces and the times of certificates would not agree",
            "have a time service keep it: timedatectl set-ntp true",
        )


def check_links(links: Sequence[LinkFacts], promised_bits: float | None = None) -> Iterator[Finding]:
    """Findings about links by themselves, and about ones that are far slower than the others.

    Args:
        links: one for each pair of machines.
        promised_bits: the rate in bits per second that links should have, where somebody knows it.
    """
    measured = [link for link in links if not link.failure and link.slowest > 0]
    for link in links:
        yield from _check_mtu(link)
        if link.failure:
            yield _broken_off(link)
    for link in measured:
        others = [other.slowest for other in measured if other is not link]
        yield from _check_rate(link, promised_bits)
        if others and link.slowest < _SHARE_OF_OTHERS * median(others):
            text = f"carries {rate_text(link.slowest)}, the others {rate_text(median(others))} in the middle"
            remedy = "look for a cable, port or virtual machine of lower rate: all wait for the slowest link"
            yield slows("rate", link.name, text, remedy)
        if link.alpha_s > _SLOW_START_S:
            text = f"a small message takes {1e3 * link.alpha_s:.0f} ms one way"
            yield slows(
                "rate", link.name, text, "take machines of one site, or compress and merge (compression.method)"
            )


def rate_text(bytes_per_second: float) -> str:
    """A rate in bits per second with three digits."""
    bits = 8 * bytes_per_second
    for unit in ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"):
        if bits < 1000 or unit == "Gbit/s":
            return f"{bits:.3g} {unit}"
        bits /= 1000
    raise AssertionError("unreachable")


def _check_mtu(link: LinkFacts) -> Iterator[Finding]:
    near, far = link.near_interface, link.far_interface
    if not near.mtu or not far.mtu:
        return
    if near.mtu != far.mtu:
        text = f"MTU {near.mtu} of {_place(link.near, near)} and {far.mtu} of {_place(link.far, far)} differ"
        remedy = f"give both the same: ip link set dev {near.name} mtu {min(near.mtu, far.mtu)}"
        yield slows("mtu", link.name, f"{text}: packets may be lost or cut up on the way", remedy)
    elif near.mtu < _SMALLEST_MTU:
        text = f"MTU {near.mtu} at both ends, of which headers take much"
        yield slows("mtu", link.name, text, f"raise it: ip link set dev {near.name} mtu 1500, at both ends")


def _broken_off(link: LinkFacts) -> Finding:
    if link.small_passed:
        text = f"small messages pass, large ones do not ({link.failure}): something on the way drops large packets"
        remedy = "set the MTU of both ends to what all of the way has, or let ICMP 'fragmentation needed' through"
        return fails("mtu", link.name, text, remedy)
    return fails("link", link.name, link.failure, "start the doctor there again, and see that nothing cuts it off")


def _check_rate(link: LinkFacts, promised_bits: float | None) -> Iterator[Finding]:
    claims = (link.near_interface.claimed_bits_per_second, link.far_interface.claimed_bits_per_second)
    claimed = min((bits for bits in claims if bits > 0), default=0.0)
    expected = (promised_bits or claimed) / 8
    if not expected or link.slowest >= _SHARE_OF_LINK * expected:
        return
    whose = "was promised" if promised_bits else "its interfaces claim"
    text = f"carries {rate_text(link.slowest)} by gRPC, {rate_text(expected)} {whose}"
    if link.direct > max(_SHARE_OF_LINK * expected, _WORTHWHILE * link.up):
        text = f"{text}; a connection beside gRPC carries {rate_text(link.direct)}"
        yield slows("rate", link.name, text, _BESIDE_GRPC)
    else:
        remedy = "look at cables, switches, limits of the virtual machine, and at what else uses link and processors"
        yield slows("rate", link.name, text, remedy)


def _place(machine: str, interface: Interface) -> str:
    return f"{interface.name} of {machine}"
