"""Facts of machines, addresses and links, as collectors find them; 0 or nothing where one is not known. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True)
class Interface:
    """A network interface by which an address is reached: with `address` on it, `mtu` in bytes.

    `claimed_bits_per_second` is what a physical one says of itself; a virtual one, whose number means nothing, has 0.
    """

    name: str = ""
    address: str = ""
    mtu: int = 0
    claimed_bits_per_second: float = 0.0


@dataclass(frozen=True)
class MachineFacts:
    """One machine.

    `versions` are those of Python and packages, `features` instruction sets, `addresses` those that others may reach,
    with prefix, and `names` what names of hosts resolve to there, its own `host` among them. Limits are 0 where there
    are none: `open_files` descriptors, `locked_bytes` and `address_space_bytes` of each process. `free_memory_bytes`
    is what processes can still take, by their control groups too; `free_shared_bytes` what /dev/shm has room for.
    """

    host: str
    versions: dict[str, str] = field(default_factory=dict)
    features: frozenset[str] = frozenset()
    addresses: tuple[str, ...] = ()
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    open_files: int = 0
    locked_bytes: int = 0
    address_space_bytes: int = 0
    free_memory_bytes: int = 0
    free_shared_bytes: int = 0


class Port(Enum):
    """The state of a port of another machine, or of one that is to be listened on here."""

    OPEN = "open"
    """A doctor answers."""
    RUNNING = "running"
    """A daemon of a run answers."""
    OTHER = "other"
    """Something listens that does not speak gRPC, or not to us."""
    REFUSED = "refused"
    DROPPED = "dropped"
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"
    """Nobody knows the host's name."""


@dataclass(frozen=True)
class PortFacts:
    """The outcome of connecting to `address`, from the machine `seen_from`, within `waited_s`."""

    address: str
    port: Port
    seen_from: str
    waited_s: float = 0.0


@dataclass(frozen=True)
class ClockFacts:
    """The lead of a machine's time of day over this one's, known to `error_s`, half of a round trip."""

    where: str
    ahead_s: float
    error_s: float


@dataclass(frozen=True)
class LinkFacts:
    """The link from one machine to another, measured from the first; rates are of values, in bytes per second.

    `alpha_s` is half of the round trip of a small frame. `up` and `down` are gRPC's rates to the other side and back,
    `direct` that of a connection beside it. Where the measurement was broken off, `failure` says why, and
    `small_passed` whether small frames had been answered.
    """

    near: str
    far: str
    alpha_s: float = 0.0
    up: float = 0.0
    down: float = 0.0
    direct: float = 0.0
    failure: str = ""
    small_passed: bool = False
    near_interface: Interface = Interface()
    far_interface: Interface = Interface()

    @property
    def name(self) -> str:
        """Both ends."""
        return f"{self.near} - {self.far}"

    @property
    def slowest(self) -> float:
        """The rate of the slower direction in bytes per second; 0 where one was not measured."""
        return min(self.up, self.down)
