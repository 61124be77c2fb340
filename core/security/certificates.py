"""Certificates: read, and made by an authority for development."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from taihu.core.base.errors import ConfigError
from taihu.core.base.whole_file import replaced
from taihu.core.security.identity import Identity, identity_among
from taihu.core.security.token import read_secret
from taihu.core.system.clocks import utc_now

_SLACK: Final = timedelta(minutes=5)
"""Clocks of hosts differ: a certificate is good from a little before it was made."""
_OLD: Final = 1 / 3
"""The share of its time after which a certificate is made anew."""


@dataclass(frozen=True)
class Validity:
    """The time in which a certificate is good, in UTC."""

    start: datetime
    end: datetime

    @classmethod
    def of_days(cls, days: float) -> Self:
        """Days that begin now, or a little before."""
        now = utc_now()
        return cls(now - _SLACK, now + timedelta(days=days))


@dataclass(frozen=True)
class Issued:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs certificates; `issued` is its own."""

    def __init__(self, issued: Issued, source: str = "the authority") -> None:
        try:
            self._certificate = x509.load_pem_x509_certificate(issued.certificate)
            key = serialization.load_pem_private_key(issued.key, None)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{source}: no certificate and key in PEM form without a password ({error})") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{source}: expected a key on an elliptic curve, as `taihu certs` makes it")
        self._key = key
        self.issued = issued

    @classmethod
    def make(cls, name: str, validity: Validity) -> Self:
        """A new one of its own."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        public = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = _begun(subject, subject, key, validity)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(usage, critical=True).add_extension(public, critical=False)
        return cls(Issued(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key)))

    def issue(self, identity: Identity, names: Iterable[str], validity: Validity) -> Issued:
        """A certificate of `identity`, with `names` of hosts or addresses beside it, and a new key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.member)])
        usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        others = [x509.UniformResourceIdentifier(identity.uri), *map(_general_name, names)]
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = _begun(subject, self._certificate.subject, key, validity)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(usage, critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName(others), critical=False)
        builder = builder.add_extension(authority, critical=False)
        return Issued(_pem(builder.sign(self._key, hashes.SHA256())), _key_pem(key))

    def has_signed(self, certificate: x509.Certificate) -> bool:
        """Whether a certificate is one of this authority's."""
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except Exception:
            return False
        return True


def identity_in(path: Path) -> Identity:
    """The identity in a certificate's file; raises ConfigError where there is none, or more than one."""
    certificate = _read(path)
    identity = identity_among(_alternatives(certificate, x509.UniformResourceIdentifier))
    if identity is None:
        raise ConfigError(
            f"security.certificate {path}: expected one URI spiffe://DOMAIN/taihu/JOB/ROLE/NAME among its "
            "alternative names; `taihu certs` makes such certificates"
        )
    return identity


def check_time(path: Path) -> None:
    """Raise ConfigError where a certificate is not good yet, or not any more."""
    certificate, now = _read(path), utc_now()
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise ConfigError(
            f"security.certificate {path}: good from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} to "
            f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, not now; renew it with `taihu certs`"
        )


def is_good(path: Path, authority: Authority, identity: Identity, names: Iterable[str]) -> bool:
    """Whether a file's certificate is what `authority` would issue, and most of its time is left."""
    try:
        certificate = _read(path)
    except ConfigError:
        return False
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    known = _alternatives(certificate, x509.DNSName) + list(map(str, _alternatives(certificate, x509.IPAddress)))
    return (
        authority.has_signed(certificate)
        and utc_now() < end - _OLD * (end - start)
        and _alternatives(certificate, x509.UniformResourceIdentifier) == [identity.uri]
        and sorted(known) == sorted(names)
    )


def write_pair(issued: Issued, certificate: Path, key: Path) -> None:
    """Write both files, each whole; the key so that nobody else can read it, ever."""
    _write(key, issued.key, 0o600)
    write_certificate(issued, certificate)


def write_certificate(issued: Issued, certificate: Path) -> None:
    """Write that file alone, whole."""
    _write(certificate, issued.certificate, 0o644)


def _write(path: Path, content: bytes, mode: int) -> None:
    with replaced(path) as part:
        part.unlink(missing_ok=True)
        part.touch(mode, exist_ok=False)
        part.write_bytes(content)


def load_authority(certificate: Path, key: Path) -> Authority:
    """The authority in two files."""
    try:
        content = certificate.read_bytes()
    except OSError as error:
        raise ConfigError(f"authority {certificate}: {error.strerror}") from None
    return Authority(Issued(content, read_secret(key, "the authority's key")), f"authority {certificate}")


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, validity: Validity
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(validity.start).not_valid_after(validity.end)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _alternatives(certificate: x509.Certificate, kind: type[Any]) -> list[Any]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return list(found.get_values_for_type(kind))


def _read(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"certificate {path}: {error.strerror}; check the path, or run `taihu certs`") from None
    except ValueError:
        raise ConfigError(f"certificate {path}: expected a certificate in PEM form") from None


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
