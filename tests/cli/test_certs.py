"""`taihu certs`: what is good stays, what is not is made anew, and nobody else reads a key."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from support.certificates import alternative_names

from taihu.core.security.certificates import identity_in

Command = Callable[..., tuple[int, str, str]]
Make = Callable[..., str]
MEMBERS = ("observer-0", "operator-0", "server-0", "worker-0", "worker-1")


@pytest.fixture
def make(run_certs: Command) -> Make:
    def make_in(folder: Path, *options: str) -> str:
        code, out, error = run_certs("--workers", 2, "--out", folder, *(options or ("--servers", 1)))
        assert code == 0, error
        return out

    return make_in


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_job_gets_an_authority_and_a_certificate_for_each_process(make: Make, tmp_path: Path) -> None:
    shown = make(tmp_path / "certs", "--servers", "1", "--hosts", "node1,10.0.0.1", "--also", "observer/grafana")
    folder = tmp_path / "certs"
    members = (*MEMBERS, "observer-grafana")
    assert {path.name for path in folder.iterdir()} == {
        *("ca.pem", "ca-key.pem"),
        *(f"{member}{end}" for member in members for end in (".pem", "-key.pem")),
    }
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.glob("*-key.pem")} == {0o600}
    for member in members:
        assert identity_in(folder / f"{member}.pem").member == member
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            folder / f"{member}.pem", folder / f"{member}-key.pem"
        )
    assert alternative_names(folder / "server-0.pem") == [
        ("URI", "spiffe://taihu/taihu/taihu/server/0"),
        ("DNS", "server-0.taihu.taihu"),
        ("DNS", "coordinator.taihu.taihu"),
        ("DNS", "node1"),
        ("IP Address", "10.0.0.1"),
    ]
    assert ("DNS", "coordinator.taihu.taihu") not in alternative_names(folder / "worker-0.pem")
    assert f'certificate = "{folder}/{{member}}.pem"' in shown


def test_in_a_ring_worker_0_coordinates(make: Make, tmp_path: Path) -> None:
    make(tmp_path, "--set", "exchange.kind=ring")
    assert not (tmp_path / "server-0.pem").exists()
    assert ("DNS", "coordinator.taihu.taihu") in alternative_names(tmp_path / "worker-0.pem")


def test_what_is_good_stays(make: Make, tmp_path: Path) -> None:
    make(tmp_path)
    first = contents(tmp_path)
    make(tmp_path)
    assert contents(tmp_path) == first
    # Another name, a key that is gone: these alone are made anew.
    (tmp_path / "worker-1-key.pem").unlink()
    make(tmp_path)
    changed = {name for name, content in contents(tmp_path).items() if content != first[name]}
    assert changed == {"worker-1.pem", "worker-1-key.pem"}


def test_what_is_renewed_has_the_same_authority(make: Make, tmp_path: Path) -> None:
    make(tmp_path)
    first = contents(tmp_path)
    make(tmp_path, "--servers", "1", "--renew")
    same = {name for name, content in contents(tmp_path).items() if content == first[name]}
    assert same == {"ca.pem", "ca-key.pem"}


def test_the_certificates_of_another_authority_are_replaced(make: Make, tmp_path: Path) -> None:
    make(tmp_path / "one")
    make(tmp_path / "two")
    for name in ("ca.pem", "ca-key.pem"):
        (tmp_path / "one" / name).replace(tmp_path / "two" / name)
    before = contents(tmp_path / "two")
    make(tmp_path / "two")
    assert all(content != before[name] for name, content in contents(tmp_path / "two").items() if "ca" not in name)


def test_the_authority_may_be_kept_apart(make: Make, run_certs: Command, tmp_path: Path) -> None:
    own, folder = tmp_path / "own", tmp_path / "certs"
    make(folder)
    before = contents(folder)
    make(folder, "--servers", "1", "--authority", str(own))
    # It has moved, and what it had signed is good.
    kept = {name: content for name, content in before.items() if name != "ca-key.pem"}
    assert contents(folder) == kept
    assert contents(own) == {name: before[name] for name in ("ca.pem", "ca-key.pem")}
    assert (own / "ca-key.pem").stat().st_mode & 0o777 == 0o600
    make(folder, "--servers", "1", "--authority", str(own))
    assert contents(folder) == kept
    make(tmp_path / "others")
    code, _, error = run_certs("--out", tmp_path / "others", "--authority", own)
    assert code == 2
    assert f"remove {tmp_path / 'others' / 'ca-key.pem'}" in error


@pytest.mark.parametrize("place", ["observer", "root/1", "worker/one", "worker/-1"])
def test_what_is_no_identity_is_refused(run_certs: Command, tmp_path: Path, place: str) -> None:
    code, _, error = run_certs("--out", tmp_path / "certs", "--also", place)
    assert code == 2
    assert "expected spiffe://" in error
    assert not (tmp_path / "certs").exists()


def test_a_file_in_the_place_of_the_folder_is_named(run_certs: Command, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    code, _, error = run_certs("--workers", 2, "--out", tmp_path / "taken")
    assert (code, error) == (
        2,
        f"error: cannot write to {tmp_path}/taken: {tmp_path}/taken is not a folder; give another one\n",
    )
    assert (tmp_path / "taken").read_text() == "mine"
