"""`host:port` texts."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import CHARACTERS

from taihu.core.base.errors import ConfigError
from taihu.core.wire.base.address import advertised_host, free_port, is_loopback, join_address, split_address

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z0-9]{1,8}){0,3}", alphabet=CHARACTERS, fullmatch=True)
HOSTS = st.just("") | NAMES | st.ip_addresses().map(str)
PORTS = st.integers(0, 65535)


@settings(deadline=None)
@given(HOSTS, PORTS)
def test_splitting_gives_back_what_was_joined(host: str, port: int) -> None:
    assert split_address(join_address(host, port)) == (host, port)


@settings(deadline=None)
@given(st.ip_addresses(v=6))
def test_an_ipv6_host_stands_in_brackets(host: ipaddress.IPv6Address) -> None:
    assert join_address(str(host), 80) == f"[{host}]:80"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1", True),
        ("127.9.8.7:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("10.0.0.1:1", False),
        ("[::]:1", False),
        (":1", False),
        ("localhost.example:1", False),
    ],
)
def test_loopback_addresses_mean_something_on_one_machine_only(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":",
        "host:http",
        "host:-1",
        "host:65536",
        "host:+80",
        "host: 80",
        "host:80 ",
        "host:8_0",
        "host:80\n",
        "host:\N{SUPERSCRIPT TWO}",
        "host:\N{ARABIC-INDIC DIGIT THREE}",
        "host:" + "9" * 5000,
        "::1",
        "fe80::1:7070",
        "host:7070:7071",
        "[::1]",
        "[::1:80",
        "::1]:80",
        "two words:80",
    ],
)
def test_what_is_no_host_and_port_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="expected host:port") as caught:
        split_address(text)
    assert len(str(caught.value).splitlines()) == 1


@settings(deadline=None)
@given(st.text(CHARACTERS, max_size=30) | st.text(alphabet="[]:0189 .a\n²", max_size=12))
def test_any_text_is_split_or_refused(text: str) -> None:
    try:
        host, port = split_address(text)
    except ConfigError:
        return
    assert 0 <= port <= 65535
    assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize("bound", ["10.0.0.3", "node3", "::1"])
def test_a_host_that_was_bound_is_told_as_it_is(bound: str) -> None:
    assert advertised_host(bound, "10.0.0.1:7070") == bound


@pytest.mark.parametrize("bound", ["", "0.0.0.0", "::"])  # noqa: S104
def test_a_server_bound_everywhere_tells_the_address_towards_the_coordinator(bound: str) -> None:
    assert advertised_host(bound, None) == "127.0.0.1"
    assert advertised_host(bound, "127.0.0.1:7070") == "127.0.0.1"
    assert advertised_host(bound, "127.0.0.1:0") == "127.0.0.1"


@pytest.mark.parametrize("host", ["10.0.0..1", "a" * 64, ".", "[fe80::1%no-such-link]"])
def test_a_coordinator_that_cannot_be_resolved_is_named(host: str) -> None:
    with pytest.raises(ConfigError, match="check the name, or give --advertise") as caught:
        advertised_host("0.0.0.0", f"{host}:7070")  # noqa: S104
    assert f"{host}:7070" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_free_port_is_none_that_a_connection_could_be_given() -> None:
    """Between the choice and the listener some connection of another process took it now and then."""
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for host in ("", "127.0.0.1"):
        ports = {free_port(host) for _ in range(20)}
        # Forks of one process, which choose alike by `random`, choose others.
        assert len(ports) > 10
        assert all(1024 < port < first_given for port in ports)
    with socket.create_server(("127.0.0.1", free_port("127.0.0.1"))):
        pass


def test_where_the_system_keeps_no_ports_back_it_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("1024\t65535\n", "", None):
        ports = tmp_path / "ports"
        if text is not None:
            ports.write_text(text)
        else:
            ports.unlink()
        monkeypatch.setattr("taihu.core.wire.base.address._GIVEN_PORTS", ports)
        assert free_port("127.0.0.1") > 0
