"""Names of hosts: unknown ones are told at once, those in containers may come."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from taihu.core.base.errors import ConfigError
from taihu.core.wire.base.address import host_of_peer
from taihu.core.wire.base.host_names import check_host, is_known, names_may_come


def failing(code: int) -> object:
    def look(host: str) -> object:
        raise socket.gaierror(code, "no")

    return look


def test_only_a_name_that_is_told_to_be_nobodys_is_unknown() -> None:
    assert is_known("127.0.0.1")
    assert is_known("::1")
    assert not is_known("a..b")
    for code, known in ((socket.EAI_NONAME, False), (socket.EAI_AGAIN, True), (socket.EAI_FAIL, True)):
        assert is_known("host", failing(code)) is known  # type: ignore[arg-type]


def test_an_unknown_name_is_named() -> None:
    check_host("[::1]:7070")
    with pytest.raises(ConfigError, match=r"address nowhere:7070: no host of the name nowhere is known"):
        check_host("nowhere:7070", failing(socket.EAI_NONAME))  # type: ignore[arg-type]


def test_names_come_where_containers_are(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    assert not names_may_come({}, (mark,))
    assert names_may_come({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, (mark,))
    mark.touch()
    assert names_may_come({}, (mark,))


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.1:5000", "10.0.0.1"),
        ("ipv6:%5B::1%5D:5000", "::1"),
        ("ipv6:[fd00::2]:5000", "fd00::2"),
        ("unix:/tmp/x", ""),
    ],
)
def test_who_called_has_a_host(peer: str, host: str) -> None:
    assert host_of_peer(peer) == host
