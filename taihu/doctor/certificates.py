"""Certificates: their facts, read from files, and the findings about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from taihu.doctor.findings import Finding, fails, notes

__all__ = ["CertificateFacts", "CertificateFiles", "certificate_facts", "check_certificates"]

_SOON: Final = timedelta(days=7)
_ASK = "renew it with whoever issued it"


@dataclass(frozen=True)
class CertificateFiles:
    """The files of a process: its authority's certificate, and its own with its key where it has one."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True)
class CertificateFacts:
    """One file.

    Attributes:
        path: the file.
        failure: why it cannot be read; empty where it can, and then alone the others mean something.
        start: from when it is good, with a time zone.
        end: until when.
        names: hosts, addresses and URIs that it is for.
        fits_key: whether the key beside it is its own; None where there is no key.
        fits_authority: whether the authority beside it has issued it; None where there is no authority.
    """

    path: Path
    failure: str = ""
    start: datetime | None = None
    end: datetime | None = None
    names: tuple[str, ...] = ()
    fits_key: bool | None = None
    fits_authority: bool | None = None


def certificate_facts(files: CertificateFiles) -> tuple[CertificateFacts, ...]:
    """The facts of the files that there are, the authority's first."""
    found = []
    authority: x509.Certificate | None = None
    if files.ca is not None:
        authority, facts = _read(files.ca)
        found.append(facts)
    if files.certificate is not None:
        own, facts = _read(files.certificate)
        if own is not None:
            facts = CertificateFacts(
                facts.path,
                start=facts.start,
                end=facts.end,
                names=_names(own),
                fits_key=None if files.key is None else _fits_key(own, files.key),
                fits_authority=None if authority is None else _is_issued(own, authority),
            )
        found.append(facts)
    return tuple(found)


def check_certificates(
    found: tuple[CertificateFacts, ...], now: datetime, name: str | None = None, where: str = "here"
) -> Iterator[Finding]:
    """Findings about dates, keys, authorities, and whether the last one is for `name`, where one is demanded."""
    for facts in found:
        if facts.failure or facts.start is None or facts.end is None:
            yield fails("certificates", where, f"{facts.path}: {facts.failure}", "check the path and the file")
            continue
        yield from _check_dates(facts, facts.start, facts.end, now, where)
        if facts.fits_key is False:
            text = f"{facts.path}: the key beside it is another certificate's, or cannot be read"
            yield fails("certificates", where, text, "name the key that was made with it")
        if facts.fits_authority is False:
            text = f"{facts.path}: the authority beside it has not issued it"
            yield fails("certificates", where, text, "name the authority's certificate that has")
    last = found[-1] if found else None
    if name is not None and last is not None and not last.failure and name not in last.names:
        has = ", ".join(last.names) or "none"
        yield fails(
            "certificates", where, f"{last.path}: is for {has}, not for {name}", "have one made for this name"
        )


def _check_dates(
    facts: CertificateFacts, start: datetime, end: datetime, now: datetime, where: str
) -> Iterator[Finding]:
    if now > end:
        yield fails("certificates", where, f"{facts.path}: expired at {end:%Y-%m-%d %H:%M} UTC", _ASK)
    elif now < start:
        text = f"{facts.path}: good only from {start:%Y-%m-%d %H:%M} UTC on"
        yield fails("certificates", where, text, "check this machine's clock, or wait")
    elif now > end - _SOON:
        yield notes("certificates", where, f"{facts.path}: expires at {end:%Y-%m-%d %H:%M} UTC", _ASK)


def _read(path: Path) -> tuple[x509.Certificate | None, CertificateFacts]:
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        return None, CertificateFacts(path, str(error.strerror))
    except ValueError:
        return None, CertificateFacts(path, "no certificate in PEM form")
    return certificate, CertificateFacts(
        path, start=certificate.not_valid_before_utc, end=certificate.not_valid_after_utc
    )


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    return tuple(str(name.value) for name in found)


def _fits_key(certificate: x509.Certificate, path: Path) -> bool:
    form, kind = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    try:
        public = serialization.load_pem_private_key(path.read_bytes(), None).public_key()
    except (OSError, ValueError, TypeError):
        return False
    return public.public_bytes(form, kind) == certificate.public_key().public_bytes(form, kind)


def _is_issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
