"""Certificates for tests: an authority, and members of a job with files in a folder."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from taihu.core.security.certificates import Authority, Validity, write_pair
from taihu.core.security.files import CertificateFiles
from taihu.core.security.identity import COORDINATOR, Identity, dns_name
from taihu.core.security.security import Security
from taihu.core.security.token import Token

__all__ = ["DAY", "MEMBERS", "TestAuthority", "alternative_names"]

MEMBERS = ("server/0", "worker/0", "worker/1", "observer/0", "operator/0")
_NOW = datetime.now(UTC)
DAY = Validity(_NOW - timedelta(hours=1), _NOW + timedelta(days=1))


class TestAuthority:
    """An authority, good for `validity`, whose files, and those of whom it signs, lie in `folder`."""

    __test__ = False

    def __init__(self, folder: Path, validity: Validity = DAY) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self._authority = Authority.make("test", validity)
        write_pair(self._authority.issued, folder / "ca.pem", folder / "ca-key.pem")

    def sign(self, place: str, job: str = "taihu", validity: Validity = DAY) -> None:
        """Make the files of `place`, as `worker/1`."""
        role, name = place.split("/")
        identity = Identity(job, role, name)  # type: ignore[arg-type]
        names = [dns_name(each, job) for each in (identity.member, COORDINATOR)[: 2 if role == "server" else 1]]
        files = self.files(place)
        assert files.certificate is not None
        assert files.key is not None
        write_pair(self._authority.issue(identity, names, validity), files.certificate, files.key)

    def files(self, place: str, ca: Path | None = None) -> CertificateFiles:
        """The files of `place`, and those that it believes in."""
        member = place.replace("/", "-")
        return CertificateFiles(
            ca or self.folder / "ca.pem", self.folder / f"{member}.pem", self.folder / f"{member}-key.pem"
        )

    def settings(self) -> Mapping[str, object]:
        """The table `[security]` of all members."""
        own = {"certificate": "{member}.pem", "key": "{member}-key.pem", "ca": "ca.pem"}
        return {key: str(self.folder / name) for key, name in own.items()}

    def security(
        self, place: str, token: Token | None = None, *, job: str = "taihu", ca: Path | None = None
    ) -> Security:
        """The means by which `place` shows who it is."""
        return Security(job, self.files(place, ca), token=token)


def alternative_names(path: Path) -> list[tuple[str, str]]:
    """The alternative names that OpenSSL reads from a certificate."""
    decoded: dict[str, list[tuple[str, str]]] = ssl._ssl._test_decode_cert(str(path))  # type: ignore[attr-defined]
    return [tuple(name) for name in decoded["subjectAltName"]]  # type: ignore[misc]
