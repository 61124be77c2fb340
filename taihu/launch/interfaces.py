"""The addresses of this machine's network interfaces, on Linux."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final

__all__ = ["own_interfaces"]

# The numbers of <linux/sockios.h>.
_ADDRESS, _NETMASK = 0x8915, 0x891B
_GLOBAL_SCOPE: Final = "00"


def own_interfaces(if_inet6: Path = Path("/proc/net/if_inet6")) -> list[str]:
    """Address and prefix of every interface that other machines may reach, such as 10.0.0.1/24; IPv4 first."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        found = [_ipv4(probe, name) for _, name in socket.if_nameindex()]
    found += [_ipv6(line) for line in if_inet6.read_text().splitlines()] if if_inet6.exists() else []
    return [text for text in found if text is not None and not ipaddress.ip_interface(text).is_loopback]


def _ipv4(probe: socket.socket, name: str) -> str | None:
    request = struct.pack("256s", name.encode()[:15])
    try:
        address, mask = (fcntl.ioctl(probe, number, request)[20:24] for number in (_ADDRESS, _NETMASK))
    except OSError:
        return None  # an interface without an IPv4 address
    return f"{socket.inet_ntoa(address)}/{int.from_bytes(mask).bit_count()}"


def _ipv6(line: str) -> str | None:
    digits, _, prefix, scope, *_ = line.split()
    address = ipaddress.IPv6Address(bytes.fromhex(digits))
    return f"{address}/{int(prefix, 16)}" if scope == _GLOBAL_SCOPE else None
