"""Recursive halving and doubling: the allreduce that the paper's ring was measured against. Pure.

In round k of the reduce-scatter a rank exchanges half of what it still has with the rank whose number differs in one
bit, the highest first, and adds; the rounds of the allgather go the same way back. No daemon does this.
"""

from __future__ import annotations

from collections.abc import Sequence

from taihu.core.base.errors import ConfigError
from taihu.simulation.events import EventQueue
from taihu.simulation.machines import Machines, Network
from taihu.simulation.network import Fabric, Host


def halving_doubling_seconds(ranks: int, size_bytes: int, network: Network, machines: Machines) -> float:
    """Seconds of the allreduce of a buffer between `ranks` ranks, which fill supernodes one after another.

    Raises:
        ConfigError: the number of ranks, or of those in a supernode, is no power of two.
    """
    in_supernode = min(network.supernode or ranks, ranks)
    for number in (ranks, in_supernode):
        if number < 1 or number & (number - 1):
            raise ConfigError(f"halving and doubling between {number} ranks: expected a power of two")
    queue = EventQueue()
    fabric = Fabric(queue, network, 0)
    joined = [fabric.host(in_supernode, index) for index in range(ranks // in_supernode)]
    bits = [1 << bit for bit in reversed(range(ranks.bit_length() - 1))]
    halves = [size_bytes / 2 ** (number + 1) for number in range(len(bits))]
    rounds = [*zip(bits, halves, (True,) * len(bits), strict=True)]
    rounds += reversed([*zip(bits, halves, (False,) * len(bits), strict=True)])
    for distance, sent_bytes, adds in rounds:
        _exchange(queue, fabric, joined, distance // in_supernode, sent_bytes)
        if adds:
            queue.now += sent_bytes / machines.add_bytes_per_second
    return queue.now


def _exchange(queue: EventQueue, fabric: Fabric, joined: Sequence[Host], distance: int, size_bytes: float) -> None:
    """Every rank sends as much to its partner, in the supernode so far away; returns when all have come."""
    for index, host in enumerate(joined):
        partner = joined[index ^ distance]
        fabric.to_neighbour(host, partner, host.count).send(size_bytes, lambda: None)
    queue.run()
