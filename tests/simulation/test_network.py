"""Messages between hosts, by hand-made arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taihu.simulation.events import EventQueue
from taihu.simulation.machines import Network
from taihu.simulation.network import Fabric, Host

# A message of 100 bytes takes a port 10 s.
NET = Network("net", 1.0, 10.0)
SIZE = 100


class Arrivals:
    """A fabric, and the instants at which messages came by name."""

    def __init__(self, network: Network = NET, seed: int = 0) -> None:
        self.queue = EventQueue()
        self.fabric = Fabric(self.queue, network, seed)
        self.seen: dict[str, float] = {}

    def send(self, name: str, source: Host, target: Host, size: float = SIZE, *, urgent: bool = False) -> None:
        """Send one now."""
        self.fabric.to_all(source, target).send(size, self._take, name, urgent=urgent)

    def _take(self, name: str) -> None:
        self.seen[name] = self.queue.now

    def run(self) -> dict[str, float]:
        """All arrivals."""
        self.queue.run()
        return self.seen


def hosts(arrivals: Arrivals, *counts: int) -> list[Host]:
    return [arrivals.fabric.host(count) for count in counts]


def test_a_message_takes_its_bytes_and_a_start_up() -> None:
    arrivals = Arrivals()
    a, b = hosts(arrivals, 1, 1)
    arrivals.send("one", a, b)
    assert arrivals.run() == {"one": 11.0}
    assert (a.sent_bytes, b.received_bytes, a.received_bytes) == (SIZE, SIZE, 0)


def test_messages_wait_for_the_port_of_who_sends() -> None:
    arrivals = Arrivals()
    a, b, c = hosts(arrivals, 1, 1, 1)
    arrivals.send("to b", a, b)
    arrivals.send("to c", a, c)
    assert arrivals.run() == {"to b": 11.0, "to c": 21.0}


def test_senders_share_the_port_of_who_receives() -> None:
    arrivals = Arrivals()
    a, b, c, d = hosts(arrivals, 1, 1, 1, 1)
    for name, source in (("a", a), ("b", b), ("c", c)):
        arrivals.send(name, source, d)
    assert arrivals.run() == {"a": 11.0, "b": 21.0, "c": 31.0}


def test_hosts_that_are_alike_end_with_the_last_of_them() -> None:
    arrivals = Arrivals()
    workers, servers = hosts(arrivals, 3, 2)
    arrivals.send("up", workers, servers)
    # Each sends 2 copies, each takes in 3.
    assert arrivals.run() == {"up": 31.0}
    assert (workers.sent_bytes, servers.received_bytes) == (2 * SIZE, 3 * SIZE)


def test_a_slow_sender_does_not_hold_up_others_at_a_fast_port() -> None:
    """Ten messages that begin at once share the port as their bytes come."""
    arrivals = Arrivals()
    receiver = arrivals.fabric.host(1)
    for number in range(10):
        slow = arrivals.fabric.host(1)
        slow.out.book(0.0, 0.0)
        arrivals.fabric.to_all(slow, receiver).send(SIZE / 10, arrivals._take, str(number))
    assert arrivals.run() == {str(number): 2.0 + number for number in range(10)}


def test_both_ways_at_once_or_one_after_the_other() -> None:
    for full_duplex, back in ((True, 11.0), (False, 22.0)):
        arrivals = Arrivals(replace(NET, full_duplex=full_duplex))
        a, b = hosts(arrivals, 1, 1)
        arrivals.send("out", a, b)
        arrivals.send("back", b, a)
        assert arrivals.run() == {"out": 11.0, "back": back}


def test_urgent_messages_overtake() -> None:
    arrivals = Arrivals()
    a, b = hosts(arrivals, 1, 1)
    arrivals.send("long", a, b)
    arrivals.send("short", a, b, 1, urgent=True)
    assert arrivals.run() == {"short": pytest.approx(1.1), "long": 11.0}


def test_what_leads_out_of_a_supernode_is_shared() -> None:
    network = replace(NET, supernode=2, oversubscription=4.0, supernode_alpha_seconds=0.5)
    arrivals = Arrivals(network)
    near, far = arrivals.fabric.host(1, 0), arrivals.fabric.host(1, 1)
    second = arrivals.fabric.host(1, 0)
    arrivals.send("within", second, near)
    arrivals.send("across", near, far)
    # Two ports of 10 bytes a second, over 4: 5 bytes a second lead out.
    assert arrivals.run() == {"within": 11.0, "across": 21.5}


def test_a_message_to_the_own_host_crosses_nothing() -> None:
    arrivals = Arrivals()
    alike = arrivals.fabric.host(3)
    alone = arrivals.fabric.host(1)
    arrivals.send("others", alike, alike)
    arrivals.send("self", alone, alone)
    assert arrivals.run() == {"self": 0.0, "others": 21.0}
    assert (alike.sent_bytes, alone.sent_bytes) == (2 * SIZE, 0)


def test_jitter_and_losses_follow_the_seed_and_keep_the_order_of_a_connection() -> None:
    network = replace(NET, jitter=1.0, loss_ratio=0.3, retransmit_seconds=20.0)

    def arrivals_of(seed: int) -> list[float]:
        arrivals = Arrivals(network, seed)
        a, b = hosts(arrivals, 1, 1)
        path = arrivals.fabric.to_all(a, b)
        for number in range(20):
            path.send(SIZE, arrivals._take, str(number))
        seen = arrivals.run()
        return [seen[str(number)] for number in range(20)]

    first = arrivals_of(1)
    assert first == arrivals_of(1) == sorted(first)
    assert first != arrivals_of(2)
    assert first[-1] > 20 * 10.0
