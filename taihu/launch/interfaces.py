"""The addresses of this machine's network interfaces, on Linux."""

from __future__ import annotations

import fcntl
import ipaddress
import struct
from pathlib import Path
from typing import Final

from taihu.core.system.sockets import AF_INET, SOCK_DGRAM, Socket, if_nameindex, inet_ntoa

# The numbers of <linux/sockios.h>.
_ADDRESS, _NETMASK = 0x8915, 0x891B
_GLOBAL_SCOPE: Final = "00"


def own_interfaces(if_inet6: Path = Path("/proc/net/if_inet6")) -> list[str]:
    """Address and prefix of every interface that other machines may reach, such as 10.0.0.1/24; IPv4 first."""
    found = [text for _, text in named_interfaces(if_inet6)]
    return [text for text in found if not ipaddress.ip_interface(text).is_loopback]


def named_interfaces(if_inet6: Path = Path("/proc/net/if_inet6")) -> list[tuple[str, str]]:
    """Name, and address and prefix, of every interface of global scope and of loopback; IPv4 first."""
    with Socket(AF_INET, SOCK_DGRAM) as probe:
        found = [(name, _ipv4(probe, name)) for _, name in if_nameindex()]
    lines = if_inet6.read_text().splitlines() if if_inet6.exists() else []
    found += [(line.split()[5], _ipv6(line)) for line in lines]
    return [(name, text) for name, text in found if text is not None]


def _ipv4(probe: Socket, name: str) -> str | None:
    request = struct.pack("256s", name.encode()[:15])
    try:
        address, mask = (fcntl.ioctl(probe, number, request)[20:24] for number in (_ADDRESS, _NETMASK))
    except OSError:
        return None  # an interface without an IPv4 address
    return f"{inet_ntoa(address)}/{int.from_bytes(mask).bit_count()}"


def _ipv6(line: str) -> str | None:
    digits, _, prefix, scope, *_ = line.split()
    address = ipaddress.IPv6Address(bytes.fromhex(digits))
    return f"{address}/{int(prefix, 16)}" if scope == _GLOBAL_SCOPE else None
