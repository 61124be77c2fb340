"""The means by which a process shows who it is, and what it demands of callers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from taihu.core.base.errors import ConfigError
from taihu.core.security.access import Access
from taihu.core.security.files import CertificateFiles
from taihu.core.security.identity import COORDINATOR, dns_name
from taihu.core.security.sealing import Sealing
from taihu.core.security.token import Token
from taihu.core.system.threads import Lock


class Refusals:
    """Calls that were refused, by method and reason, and handshakes: begun, or come to nothing. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._handshakes = self._refused_handshakes = 0

    def add(self, method: str, reason: str) -> None:
        """A call of `method`, or `other` for one that does not exist, was refused for one of few reasons."""
        with self._lock:
            self._calls[method, reason] += 1

    def handshake(self) -> None:
        """Somebody has connected, and TLS begins."""
        with self._lock:
            self._handshakes += 1

    def handshake_refused(self) -> None:
        """A handshake has led to no call."""
        with self._lock:
            self._refused_handshakes += 1

    @property
    def calls(self) -> dict[tuple[str, str], int]:
        """The number of refused calls by method and reason."""
        with self._lock:
            return dict(self._calls)

    @property
    def handshakes(self) -> int:
        """The number of handshakes that were begun, whatever became of them."""
        with self._lock:
            return self._handshakes

    @property
    def refused_handshakes(self) -> int:
        """The number of handshakes that led to no call."""
        with self._lock:
            return self._refused_handshakes


@dataclass(frozen=True)
class Security:
    """The certificates and the token of a process of `job`; without either it talks to anybody.

    Attributes:
        job: the run's name, which certificates have to have.
        files: of the certificates; None for plain text.
        asks_clients: callers show certificates, if there are any.
        token: what callers say, and are told.
        required: nobody is talked to without the one or the other.
        refusals: of this process.
    """

    job: str = ""
    files: CertificateFiles | None = None
    asks_clients: bool = True
    token: Token | None = None
    required: bool = False
    refusals: Refusals = field(default_factory=Refusals, compare=False)

    @property
    def encrypts(self) -> bool:
        """Whether connections are under TLS."""
        return self.files is not None

    @property
    def authenticates(self) -> bool:
        """Whether callers have to show who they are."""
        return self.token is not None or (self.encrypts and self.asks_clients)

    @property
    def access(self) -> Access:
        """The access of others to this process."""
        return Access(self.job, self.encrypts and self.asks_clients, self.token)

    def sealing(self, peer: str = "") -> Sealing | None:
        """The way of connections beside gRPC into TLS, to `peer` where this process opens them; None without TLS."""
        return None if self.files is None else Sealing(self.files, self.asks_clients, self.name_of(peer))

    def with_token(self, token: Token | None) -> Security:
        """The same with another token; as it is where there is none."""
        return self if token is None else replace(self, token=token)

    def name_of(self, peer: str) -> str:
        """The name that the certificate of `peer` has to have: of a member, or the coordinator."""
        return dns_name(peer or COORDINATOR, self.job)

    def check_reach(self, address: str, *, is_local: bool) -> None:
        """Raise ConfigError where what is secret would travel in plain text, or nobody is to be talked to like this.

        Args:
            address: to listen on or to connect to, for the message.
            is_local: nobody but this machine's processes can mean it.
        """
        if self.required and not self.authenticates:
            raise ConfigError(
                f"security.required: nobody at {address} would show who it is; set security.ca, certificate and key "
                "(`taihu certs` makes them), or TAIHU_TOKEN on one machine"
            )
        if self.token is not None and not self.encrypts and not is_local:
            raise ConfigError(
                f"the run's token would travel to or from {address} in plain text; use 127.0.0.1, as by --bind "
                "127.0.0.1:0, or set security.ca, certificate and key"
            )
        if self.encrypts and not self.authenticates:
            raise ConfigError("security.clients 'token' without a token: set TAIHU_TOKEN or security.token_file")
