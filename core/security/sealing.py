"""TLS on connections of sockets, by the certificates that gRPC shows (docs/adr/0090)."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from taihu.core.security.files import CertificateFiles
from taihu.core.system.sockets import Socket

SealedSocket = ssl.SSLSocket
"""A socket under TLS, for one thread at a time."""


@dataclass(frozen=True)
class Sealing:
    """The way into TLS with other processes of a job.

    Files are read at each handshake, so that renewed ones count at once.

    Attributes:
        files: of this process's certificates.
        asks_clients: whoever connects shows a certificate of the same authority.
        name: that the certificate of whoever is asked has to have.
    """

    files: CertificateFiles
    asks_clients: bool
    name: str

    def answer(self, connection: Socket) -> SealedSocket:
        """The connection, whose other side has opened it, before its `do_handshake`; `connection` is given up.

        The handshake raises OSError where the other side shows no certificate that is good, or is silent.

        Raises:
            OSError: the connection is broken.
            ConfigError: a file is of no use.
        """
        context = self.files.context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED if self.asks_clients else ssl.CERT_NONE
        # A side that only writes reads no tickets: those that nobody has read would have the end of the connection
        # cut what is still on its way.
        context.num_tickets = 0
        return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def ask(self, connection: Socket) -> SealedSocket:
        """The connection under TLS, which this process has opened; `connection` is given up.

        Raises:
            OSError: the other side is another one, or does not accept this one.
            ConfigError: a file is of no use.
        """
        context = self.files.context(ssl.PROTOCOL_TLS_CLIENT)
        return context.wrap_socket(connection, server_hostname=self.name)
