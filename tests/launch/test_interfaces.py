"""The machine's own addresses."""

import ipaddress
import socket
from pathlib import Path

from taihu.launch.interfaces import own_interfaces


def test_every_address_can_be_bound_and_none_is_loopback(tmp_path: Path) -> None:
    for text in own_interfaces():
        interface = ipaddress.ip_interface(text)
        assert not interface.is_loopback
        family = socket.AF_INET if interface.version == 4 else socket.AF_INET6
        with socket.socket(family) as probe:
            probe.bind((str(interface.ip), 0))


def test_ipv6_addresses_of_global_scope_are_told(tmp_path: Path) -> None:
    table = tmp_path / "if_inet6"
    table.write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fe80000000000000042aff0000000001 02 40 20 80     eth0\n"
        "20010db8000000000000000000000007 02 40 00 80     eth0\n"
    )
    assert own_interfaces(table)[-1] == "2001:db8::7/64"
    assert own_interfaces(tmp_path / "none") == own_interfaces(table)[:-1]
