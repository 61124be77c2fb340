"""The machines that a job is simulated on: links between hosts, and what hosts do beside computing. Pure data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from taihu.core.base.errors import ConfigError
from taihu.core.planner.profile import LinkCost

# Of a frame of 1514 bytes on the wire so much is TCP's payload.
_TCP_PAYLOAD_SHARE: Final = 1448 / 1514
_BITS_PER_BYTE: Final = 8
# A factor of e^5 from one message, or step, to the next; of ten messages one arrives at the first attempt.
_MOST_JITTER: Final = 5.0
_MOST_LOST: Final = 0.9


@dataclass(frozen=True)
class Network:
    """Links between hosts, each with one port.

    Attributes:
        name: for results.
        alpha_seconds: from the last byte's departure to its arrival, and all of a message that bytes do not take.
        bytes_per_second: of a port, in each direction.
        full_duplex: whether a port sends and receives at once.
        message_seconds: time in which a port is busy with a message, however short.
        supernode: hosts whose ports are joined at full speed; 0 if all are.
        oversubscription: all ports of a supernode together, over what leads out of it.
        supernode_alpha_seconds: what a message to another supernode takes beside `alpha_seconds`.
        jitter: spread of `alpha_seconds`: the standard deviation of its logarithm.
        loss_ratio: share of messages that are lost, and sent again `retransmit_seconds` later.
    """

    name: str
    alpha_seconds: float
    bytes_per_second: float
    full_duplex: bool = True
    message_seconds: float = 0.0
    supernode: int = 0
    oversubscription: float = 1.0
    supernode_alpha_seconds: float = 0.0
    jitter: float = 0.0
    loss_ratio: float = 0.0
    retransmit_seconds: float = 0.2

    def __post_init__(self) -> None:
        _check_at_least("network", self, 0.0, "alpha_seconds", "message_seconds", "supernode_alpha_seconds", "jitter")
        _check_at_least("network", self, 0.0, "supernode", "retransmit_seconds", "loss_ratio")
        _check_at_least("network", self, 1.0, "oversubscription")
        _check_above_zero("network", self, math.nextafter(math.inf, 0.0), "bytes_per_second")
        _check_at_most("network", self, _MOST_JITTER, "jitter")
        _check_at_most("network", self, _MOST_LOST, "loss_ratio")

    @property
    def is_even(self) -> bool:
        """Whether all messages of one size take equally long on free ports."""
        return not self.jitter and not self.loss_ratio


@dataclass(frozen=True)
class Machines:
    """The hosts' part beside forward and backward.

    Attributes:
        add_bytes_per_second: gradients that a host adds up, or updates parameters by; no limit if infinite.
        selected_value_seconds: that a host takes to unpack, add up or pack a value that was selected.
        jitter: spread of a worker's compute from step to step: the standard deviation of its logarithm.
        stragglers: workers, the last ones, whose compute takes `straggler_slowdown` times as long.
        hosts: how many there are; 0 where there is one for every process.
        memory_bytes: of a host, free for what its processes keep.
        shared_cores: processors that all hosts share, as namespaces of one machine do; 0 where each has its own.
        core_bytes_per_second: bytes of messages that one such processor sends, or takes in, in a second.
        core_message_seconds: that it takes at each end for a message beside its bytes.
        core_compute_share: share of compute that is work of a shared processor; during the rest none is needed.
    """

    add_bytes_per_second: float = math.inf
    selected_value_seconds: float = 0.0
    jitter: float = 0.0
    stragglers: int = 0
    straggler_slowdown: float = 2.0
    hosts: int = 0
    memory_bytes: float = math.inf
    shared_cores: int = 0
    core_bytes_per_second: float = math.inf
    core_message_seconds: float = 0.0
    core_compute_share: float = 0.0

    def __post_init__(self) -> None:
        _check_at_least("machines", self, 0.0, "jitter", "stragglers", "hosts", "shared_cores")
        _check_at_least("machines", self, 0.0, "core_message_seconds", "core_compute_share")
        _check_at_least("machines", self, 0.0, "selected_value_seconds")
        _check_at_most("machines", self, 1.0, "core_compute_share")
        if not self.memory_bytes > 0:
            raise ConfigError(f"machines.memory {self.memory_bytes:g}: expected more than nothing")
        _check_at_most("machines", self, _MOST_JITTER, "jitter")
        for rate in ("add_bytes_per_second", "core_bytes_per_second"):
            _check_above_zero("machines", self, math.inf, rate)
        _check_above_zero("machines", self, math.nextafter(math.inf, 0.0), "straggler_slowdown")
        if self.shared_cores and math.isinf(self.core_bytes_per_second):
            raise ConfigError(
                f"machines.shared_cores {self.shared_cores}: how fast is one? give core_bytes_per_second as well"
            )


def taihulight() -> tuple[Network, Machines]:
    """The Sunway TaihuLight (docs/methods.md section 6): what MPI reaches, 4 times less between supernodes.

    Additions are bounded by the memory of a chip's four core groups, 27.3 GB/s each, of which each byte added takes
    three: two are read and one is written.
    """
    network = Network("taihulight", 1e-6, 12e9, supernode=256, oversubscription=4.0, supernode_alpha_seconds=1e-6)
    return network, Machines(add_bytes_per_second=4 * 27.3e9 / 3)


def ethernet(bits_per_second: float) -> tuple[Network, Machines]:
    """Hosts at one switch, each with a full-duplex link; TCP's share of its rate, and 50 us for a message.

    Hosts add 4 GB/s, which is one core's or a little more.
    """
    payload = bits_per_second / _BITS_PER_BYTE * _TCP_PAYLOAD_SHARE
    return Network(f"ethernet:{bits_per_second / 1e9:g}gbit", 50e-6, payload), Machines(add_bytes_per_second=4e9)


def of_profile(link: LinkCost, workers: int, servers: int) -> tuple[Network, Machines]:
    """The network that a run of so many processes has measured: its start-ups and the rate of the busiest port.

    What the servers' additions took is in the rate.

    Raises:
        ConfigError: the run has measured no rate.
    """
    slowest = max(link.up_seconds_per_byte, link.down_seconds_per_byte)
    if not slowest:
        raise ConfigError("the profile has no link: its run was too short to measure one; give --network")
    if not servers:
        return Network("measured", link.alpha_seconds / max(1, 2 * (workers - 1)), 1.0 / slowest), Machines()
    shared = max(workers / servers, 1.0)
    return Network("measured", link.alpha_seconds / 2.0, shared / slowest), Machines()


def _check_at_least(section: str, values: object, least: float, *names: str) -> None:
    for name in names:
        value = getattr(values, name)
        if not least <= value < math.inf:
            raise ConfigError(f"{section}.{name} {value:g}: expected at least {least:g}")


def _check_at_most(section: str, values: object, most: float, *names: str) -> None:
    for name in names:
        value = getattr(values, name)
        if value > most:
            raise ConfigError(f"{section}.{name} {value:g}: expected at most {most:g}")


def _check_above_zero(section: str, values: object, most: float, name: str) -> None:
    value = getattr(values, name)
    if not 0.0 < value <= most:
        finite = "" if value <= 0.0 or math.isinf(most) else ", and a finite number"
        raise ConfigError(f"{section}.{name} {value:g}: expected more than 0{finite}")
