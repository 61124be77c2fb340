"""Certificates that the tests make: dates, names, keys and authorities."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from support.certificates import TestAuthority

from taihu.doctor.certificates import NamedFiles, certificate_facts, check_certificates, named_files
from taihu.job import Job
from taihu.security.certificates import Validity

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NAME = "worker-0.taihu.taihu"


@dataclass(frozen=True)
class Made:
    ours: TestAuthority
    others: TestAuthority

    def files(self, name: str | None = None) -> NamedFiles:
        files = self.ours.files("worker/0")
        return NamedFiles(files.ca, files.certificate, files.key, name)


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
    assert named_files(job, NamedFiles()) == (made.files(NAME),), "worker 0's alone lie here"
    given = NamedFiles(certificate=tmp_path / "own.pem", key=tmp_path / "own.key")
    assert named_files(job, given) == (replace(given, ca=made.files().ca),)
    assert named_files(Job(), given) == (given,)
    elsewhere = {**made.ours.settings(), "certificate": str(tmp_path / "{member}.pem")}
    (files,) = named_files(Job.model_validate({"security": elsewhere}), NamedFiles())
    (finding,) = found(files)
    assert re.match(r"fails: here: .*{member}\.pem: No such file", finding)
