"""Certificates in files: read when they are needed, and again when they have been renewed."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc
import structlog

from taihu.core.base.errors import ConfigError
from taihu.core.security.token import read_secret
from taihu.core.system.threads import Lock


@dataclass(frozen=True)
class CertificateFiles:
    """PEM files: the authority's certificate, and this process's own, with its key; both or neither."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """The files of a new channel, as the files are now; raises ConfigError where they are of no use."""
        self.check()
        ca, key, certificate = self._read()
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def server_configuration(self) -> grpc.ServerCertificateConfiguration:
        """The files of a server, as the files are now; raises ConfigError where they are of no use."""
        self.check()
        ca, key, certificate = self._read()
        if key is None or certificate is None:
            raise ConfigError("who listens under TLS needs a certificate: set security.certificate and security.key")
        return grpc.ssl_server_certificate_configuration([(key, certificate)], ca)

    def check(self) -> None:
        """Raise ConfigError where a file cannot be read, holds something else, or certificate and key are no pair."""
        self.context(ssl.PROTOCOL_TLS_SERVER)

    def context(self, side: int) -> ssl.SSLContext:
        """The files of one side of a socket under TLS 1.3, as they are now.

        Raises:
            ConfigError: a file cannot be read, holds something else, or certificate and key are no pair.
        """
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_verify_locations(cafile=self.ca)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(f"security.ca {self.ca}: {_reason(error)}; expected certificates in PEM form") from None
        if self.certificate is None or self.key is None:
            return context
        read_secret(self.key, "security.key")
        try:
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
        except OSError as error:
            raise ConfigError(
                f"security.certificate {self.certificate} and key {self.key}: {_reason(error)}; expected a "
                "certificate in PEM form and its key, without a password"
            ) from None
        return context

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Changes when a file is renewed; raises OSError where one is not there."""
        there = (path.stat() for path in (self.ca, self.certificate, self.key) if path is not None)
        return tuple((status.st_mtime_ns, status.st_ino, status.st_size) for status in there)

    def _read(self) -> tuple[bytes, bytes | None, bytes | None]:
        return (
            _read(self.ca, "security.ca"),
            None if self.key is None else read_secret(self.key, "security.key"),
            None if self.certificate is None else _read(self.certificate, "security.certificate"),
        )


class RenewedCertificates:
    """The certificates that a server shows at each handshake: those of the files, once these are whole.

    Args:
        files: are read at once.
        on_handshake: is told of each.

    Raises:
        ConfigError: the files are of no use.
    """

    def __init__(self, files: CertificateFiles, on_handshake: Callable[[], None]) -> None:
        self._files = files
        self._on_handshake = on_handshake
        self._lock = Lock()
        self._stamp = _stamp_of(files)
        self._first = files.server_configuration()

    def credentials(self, *, ask_clients: bool) -> grpc.ServerCredentials:
        """For a port; who connects has to show a certificate where it is to `ask_clients`."""
        # The library takes None for what it has; its types do not say so.
        fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", self._renewed)
        return grpc.dynamic_ssl_server_credentials(self._first, fetch, ask_clients)

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """The contents of the files, if that is another thing than at the last handshake."""
        self._on_handshake()
        with self._lock:
            stamp = _stamp_of(self._files)
            if stamp == self._stamp:
                return None
            self._stamp = stamp
            try:
                configuration = self._files.server_configuration()
            except ConfigError as error:
                structlog.get_logger().warning("the former certificate stays in use", reason=str(error))
                return None
        structlog.get_logger().info("certificate renewed", certificate=str(self._files.certificate))
        return configuration


def _stamp_of(files: CertificateFiles) -> tuple[tuple[int, int, int], ...]:
    try:
        return files.stamp()
    except OSError:
        return ()


def _read(path: Path, key: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{key} {path}: {error.strerror}; check the path, or run `taihu certs`") from None


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"not usable ({error.reason or error})"
    return error.strerror or str(error)
