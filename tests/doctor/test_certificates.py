"""Certificates that the tests make: dates, names, keys and authorities."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from support.certificates import Made, make_certificate

from taihu.doctor.certificates import CertificateFiles, certificate_facts, check_certificates

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NAME = "worker-0.taihu.taihu"


@dataclass(frozen=True)
class Files:
    ca: Made
    own: Made
    other: Made

    def files(self) -> CertificateFiles:
        return CertificateFiles(self.ca.certificate, self.own.certificate, self.own.key)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("certificates")
    ca = make_certificate(folder, "ca", NOW - 30 * DAY, NOW + 300 * DAY)
    own = make_certificate(folder, "own", NOW - DAY, NOW + 30 * DAY, names=(NAME,), issuer=ca)
    return Files(ca, own, make_certificate(folder, "other", NOW - 30 * DAY, NOW + 300 * DAY))


def found(files: CertificateFiles, now: datetime = NOW, name: str | None = None) -> list[str]:
    return [str(finding) for finding in check_certificates(certificate_facts(files), now, name)]


def test_good_ones(made: Files) -> None:
    assert found(made.files(), name=NAME) == []
    assert found(CertificateFiles()) == []
    assert found(CertificateFiles(ca=made.ca.certificate)) == []


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (NOW + 31 * DAY, "fails: here: .*own.pem: expired"),
        (NOW + 24 * DAY, "note: here: .*own.pem: expires"),
        (NOW - 2 * DAY, "fails: here: .*own.pem: good only from"),
    ],
)
def test_dates(made: Files, now: datetime, words: str) -> None:
    (finding,) = found(made.files(), now)
    assert re.match(words, finding)


def test_foreign_keys_authorities_and_names(made: Files, tmp_path: Path) -> None:
    own = made.own.certificate
    (key,) = found(CertificateFiles(made.ca.certificate, own, made.other.key))
    assert "the key beside it" in key
    (authority,) = found(CertificateFiles(made.other.certificate, own, made.own.key))
    assert "has not issued it" in authority
    (name,) = found(made.files(), name="worker-1.taihu.taihu")
    assert NAME in name
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    (damaged,) = found(CertificateFiles(certificate=text))
    assert "no certificate in PEM form" in damaged
    (missing,) = found(CertificateFiles(certificate=tmp_path / "none.pem"))
    assert "No such file" in missing


def test_the_facts_are_those_of_the_file(made: Files) -> None:
    _, own = certificate_facts(made.files())
    read = x509.load_pem_x509_certificate(made.own.certificate.read_bytes())
    assert (own.start, own.end, own.names) == (read.not_valid_before_utc, read.not_valid_after_utc, (NAME,))
