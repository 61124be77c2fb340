"""Certificates that the tests make: dates, names, keys and authorities."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from support.certificates import MEMBERS, TestAuthority

from taihu.core.job import Job
from taihu.core.security.certificates import Validity
from taihu.doctor.certificates import NamedFiles, certificate_facts, check_certificates, named_files

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NAME = "worker-0.taihu.taihu"


@dataclass(frozen=True)
class Made:
    ours: TestAuthority
    others: TestAuthority

    def files(self, name: str | None = None) -> NamedFiles:
        files = self.ours.files("worker/0")
        return NamedFiles(files.ca, files.certificate, files.key, () if name is None else (name,))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("certificates")
    ours, others = (
        TestAuthority(folder / name, Validity(NOW - 30 * DAY, NOW + 300 * DAY)) for name in ("ours", "others")
    )
    for authority in (ours, others):
        authority.sign("worker/0", validity=Validity(NOW - DAY, NOW + 30 * DAY))
    return Made(ours, others)


def found(files: NamedFiles, now: datetime = NOW) -> list[str]:
    return [str(finding) for finding in check_certificates(certificate_facts([files]), now)]


def test_good_ones(made: Made) -> None:
    assert found(made.files(NAME)) == []
    assert found(NamedFiles()) == []
    assert found(NamedFiles(ca=made.ours.files("worker/0").ca)) == []


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (NOW + 31 * DAY, "fails: here: .*worker-0.pem: expired"),
        (NOW + 24 * DAY, "note: here: .*worker-0.pem: expires"),
        (NOW - 2 * DAY, "fails: here: .*worker-0.pem: good only from"),
    ],
)
def test_dates(made: Made, now: datetime, words: str) -> None:
    (finding,) = found(made.files(), now)
    assert re.match(words, finding)


def test_foreign_keys_authorities_and_names(made: Made, tmp_path: Path) -> None:
    own, other = made.files(), made.others.files("worker/0")
    (key,) = found(replace(own, key=other.key))
    assert "the key beside it" in key
    (authority,) = found(replace(own, ca=other.ca))
    assert "has not issued it" in authority
    (name,) = found(made.files("worker-1.taihu.taihu"))
    assert NAME in name
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    (damaged,) = found(NamedFiles(certificate=text))
    assert "no certificate in PEM form" in damaged
    (missing,) = found(NamedFiles(certificate=tmp_path / "none.pem"))
    assert "No such file" in missing


def test_the_facts_are_those_of_the_file(made: Made) -> None:
    _, own = certificate_facts([made.files()])
    assert own.path == made.files().certificate
    read = x509.load_pem_x509_certificate(own.path.read_bytes())
    assert (own.start, own.end) == (read.not_valid_before_utc, read.not_valid_after_utc)
    assert own.names == ("spiffe://taihu/taihu/taihu/worker/0", NAME)


def test_the_files_are_those_of_the_job_where_no_others_are_given(made: Made, tmp_path: Path) -> None:
    job = Job.model_validate({"cluster": {"workers": 2, "servers": 1}, "security": made.ours.settings()})
    both = (NAME, "/taihu/taihu/worker/0")
    assert named_files(job, NamedFiles()) == (replace(made.files(), wanted=both),), "worker 0's alone lie here"
    given = NamedFiles(certificate=tmp_path / "own.pem", key=tmp_path / "own.key")
    assert named_files(job, given) == (replace(given, ca=made.files().ca),)
    assert named_files(Job(), given) == (given,)
    elsewhere = {**made.ours.settings(), "certificate": str(tmp_path / "{member}.pem")}
    (files,) = named_files(Job.model_validate({"security": elsewhere}), NamedFiles())
    (finding,) = found(files)
    assert re.match(r"fails: here: .*{member}\.pem: No such file", finding)


def test_those_of_who_looks_on_are_looked_at_too(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path / "all", Validity(NOW - 30 * DAY, NOW + 300 * DAY))
    for place in MEMBERS:
        authority.sign(place, validity=Validity(NOW - DAY, NOW + 30 * DAY))
    job = Job.model_validate({"cluster": {"workers": 2, "servers": 1}, "security": authority.settings()})

    def all_found(now: datetime = NOW) -> list[str]:
        return [str(each) for each in check_certificates(certificate_facts(named_files(job, NamedFiles())), now)]

    assert all_found() == []
    expired = all_found(NOW + 31 * DAY)
    assert {
        name for name in MEMBERS if any(f"{name.replace('/', '-')}.pem: expired" in line for line in expired)
    } == {*MEMBERS}
    # An operator's in the place of an observer's, and one of another process that has the name of server 0 alone.
    for name, other in (("observer-0", "operator-0"), ("server-0", "worker-0")):
        for end in (".pem", "-key.pem"):
            (authority.folder / f"{name}{end}").write_bytes((authority.folder / f"{other}{end}").read_bytes())
    by_file = {line.split(".pem")[0].rpartition("/")[2]: line for line in all_found()}
    assert set(by_file) == {"observer-0", "server-0"}
    assert "not for /taihu/taihu/observer/0" in by_file["observer-0"]
    for name in ("server-0.taihu.taihu", "coordinator.taihu.taihu", "/taihu/taihu/server/0"):
        assert name in by_file["server-0"].partition("not for")[2]
