"""The port that strangers go to, and how they get through to it."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import grpc

from benchmarks.inputs.strangers.http2 import Connection
from taihu.core.security.files import CertificateFiles

__all__ = ["Target"]

_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True)
class Target:
    """An `address` and, where it is under TLS, the `files` of somebody whom it lets in by the `name` of its own."""

    address: str
    files: CertificateFiles | None = None
    name: str = ""

    @contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        """A channel of gRPC's own, with a connection to itself and no bound of what it sends."""
        if self.files is None:
            channel = grpc.insecure_channel(self.address, options=_OPTIONS)
        else:
            options = (*_OPTIONS, ("grpc.ssl_target_name_override", self.name))
            channel = grpc.secure_channel(self.address, self.files.channel_credentials(), options=options)
        with channel:
            yield channel

    @property
    def tls(self) -> ssl.SSLContext | None:
        """Handshakes as its members make them; None in plain text."""
        return None if self.files is None else handshake(self.files)

    def connection(self, window: int = 1 << 16) -> Connection:
        """A connection whose frames are written by hand."""
        return Connection(self.address, self.tls, window)


def handshake(files: CertificateFiles | None) -> ssl.SSLContext:
    """A handshake that believes in anybody and shows the certificate of `files`, if there are any."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if files is not None and files.certificate is not None and files.key is not None:
        context.load_cert_chain(files.certificate, files.key)
    return context
