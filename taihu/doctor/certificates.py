"""Certificates: their facts, read from files, and the findings about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from taihu.core.job import Job
from taihu.core.job.security import certified
from taihu.doctor.findings import Finding, fails, notes

_SOON: Final = timedelta(days=7)
_ASK = "renew it with whoever issued it"


@dataclass(frozen=True)
class NamedFiles:
    """The files of a process, by name: its authority's certificate, and its own with its key where it has one.

    Its own has to be for each of `wanted`: a DNS name, or the end of a URI, which begins with a slash.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    wanted: tuple[str, ...] = ()


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
        wanted: names that it has to be for, see `NamedFiles`.
    """

    path: Path
    failure: str = ""
    start: datetime | None = None
    end: datetime | None = None
    names: tuple[str, ...] = ()
    fits_key: bool | None = None
    fits_authority: bool | None = None
    wanted: tuple[str, ...] = ()

    @property
    def lacks(self) -> tuple[str, ...]:
        """The names that it has to be for, and is not."""
        return tuple(name for name in self.wanted if not any(_is(name, known) for known in self.names))


def named_files(job: Job, given: NamedFiles) -> tuple[NamedFiles, ...]:
    """The files to be looked at: the `given` ones, and in the place of those that are not what `job` names.

    Where it names those of each member, they are all that lie here, and those of an observer and an operator.
    """
    own, ca = job.security, given.ca or job.security.ca
    if given.certificate is not None or given.key is not None or own.certificate is None:
        return (replace(given, ca=ca),)
    files = [
        NamedFiles(
            ca,
            _of_member(own.certificate, each.identity.member),
            _of_member(own.key, each.identity.member),
            given.wanted or (*each.names, each.identity.path),
        )
        for each in certified(job)
    ]
    here = tuple(each for each in files if each.certificate is not None and each.certificate.exists())
    if _of_member(own.certificate, "") == own.certificate or not here:
        return (NamedFiles(ca, own.certificate, own.key, given.wanted),)
    return here


def _is(name: str, known: str) -> bool:
    return known.endswith(name) if name.startswith("/") else known == name


def _of_member(path: Path | None, member: str) -> Path | None:
    return None if path is None else Path(str(path).replace("{member}", member))


def certificate_facts(files: Iterable[NamedFiles]) -> tuple[CertificateFacts, ...]:
    """The facts of the files that there are, each once, an authority's before what it has issued."""
    return tuple(dict.fromkeys(facts for each in files for facts in _facts(each)))


def _facts(files: NamedFiles) -> list[CertificateFacts]:
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
                wanted=files.wanted,
            )
        found.append(facts)
    return found


def check_certificates(found: Iterable[CertificateFacts], now: datetime, where: str = "here") -> Iterator[Finding]:
    """Findings about dates, keys, authorities, and whether they are for the names that are demanded."""
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
        if facts.lacks:
            text = f"{facts.path}: is for {', '.join(facts.names) or 'none'}, not for {', '.join(facts.lacks)}"
            yield fails("certificates", where, text, "have one made for this, as by `taihu certs`")


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
