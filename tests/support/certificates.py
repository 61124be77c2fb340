"""Certificates and keys in files, made for a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Made", "make_certificate"]


@dataclass(frozen=True)
class Made:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


def make_certificate(
    folder: Path, name: str, start: datetime, end: datetime, *, names: Sequence[str] = (), issuer: Made | None = None
) -> Made:
    """A certificate and its key in `folder`: an authority's own, or one for `names` that `issuer` signs."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer, signed_by = key, subject
    if issuer is not None:
        signed_by = x509.load_pem_x509_certificate(issuer.certificate.read_bytes()).subject
        loaded = serialization.load_pem_private_key(issuer.key.read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        signer = loaded
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(signed_by).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(start).not_valid_after(end)
    builder = builder.add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(map(x509.DNSName, names))), critical=False)
    made = Made(folder / f"{name}.pem", folder / f"{name}.key")
    made.certificate.write_bytes(builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    made.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    return made
