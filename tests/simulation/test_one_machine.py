"""Hosts that share processors, whose connections share ports, beside small steps of time and fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.simulations import PLAIN

from taihu.core.wire.frames.limits import MOST_UNSENT_BYTES
from taihu.simulation.events import EventQueue
from taihu.simulation.machines import Machines, Network
from taihu.simulation.network import Fabric, Host
from taihu.simulation.one_machine import Cores, Port, SharedPorts

WORK = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=8)
RATE = 12.0


@given(WORK, st.integers(1, 3))
def test_processors_are_shared_evenly(pieces: list[tuple[int, int]], cores: int) -> None:
    queue, ended = EventQueue(), dict[int, float]()
    shared = Cores(queue, Machines(shared_cores=cores, core_bytes_per_second=1.0))
    for number, (start, seconds) in enumerate(pieces):
        queue.at(float(start), shared.work, float(seconds), lambda number=number: ended.update({number: queue.now}))
    queue.run()
    assert ended == pytest.approx(evenly(pieces, cores))


def evenly(pieces: list[tuple[int, int]], cores: int) -> dict[int, float]:
    """The instants at which pieces end, from event to event, exactly."""
    now, ended = Fraction(0), dict[int, float]()
    rest = {number: Fraction(seconds) for number, (_, seconds) in enumerate(pieces)}
    while rest:
        active = [number for number in rest if pieces[number][0] <= now]
        starts = [start - now for start, _ in pieces if start > now]
        pace = min(Fraction(1), Fraction(cores, max(1, len(active))))
        passed = min([*starts, *(rest[number] / pace for number in active)])
        now += passed
        for number in active:
            rest[number] -= passed * pace
            if not rest[number]:
                del rest[number]
                ended[number] = float(now)
    return ended


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8))
def test_no_connection_gets_more_unless_it_takes_from_one_that_has_no_more(ways: list[tuple[int, int]]) -> None:
    """Max-min fairness: every flow goes through a full port, at which no other one has a higher rate."""
    ports = [[Port(RATE) for _ in range(4)] for _ in range(2)]
    shared = SharedPorts(EventQueue())
    for source, target in ways:
        shared.begin(1e3, (ports[0][source], ports[1][target]), lambda: None)
    flows = shared._flows
    for port in (*ports[0], *ports[1]):
        assert sum(flow.rate for flow in port.flows) <= RATE * (1 + 1e-9)
    for flow in flows:
        full = [port for port in flow.ports if sum(each.rate for each in port.flows) >= RATE * (1 - 1e-9)]
        assert any(flow.rate >= max(each.rate for each in port.flows) * (1 - 1e-9) for port in full)


class Arrivals:
    """Messages between hosts of one machine, and when they came."""

    def __init__(self, network: Network = PLAIN, **machines: float) -> None:
        self.queue = EventQueue()
        of = {"shared_cores": 2, "core_bytes_per_second": 1e30, **machines}
        self.fabric = Fabric(self.queue, network, 0, Machines(**of))  # type: ignore[arg-type]
        self.came = dict[str, float]()

    def host(self) -> Host:
        """Make one."""
        return self.fabric.host(1)

    def take(self, name: str) -> None:
        """Note when it came."""
        self.came[name] = self.queue.now


def test_connections_share_a_port_and_leave_it_to_who_is_left() -> None:
    arrivals = Arrivals(Network("plain", 1.0, RATE))
    a, b, c = (arrivals.host() for _ in range(3))
    arrivals.fabric.to_all(a, c).send(60.0, arrivals.take, "short")
    arrivals.fabric.to_all(b, c).send(120.0, arrivals.take, "long")
    arrivals.queue.run()
    assert arrivals.came == pytest.approx({"short": 1.0 + 10.0, "long": 1.0 + 15.0})
    assert (a.sent_bytes, c.received_bytes) == (60.0, 180.0)


def test_messages_of_a_connection_follow_each_other_and_take_both_ends_a_processor() -> None:
    works = {"shared_cores": 4, "core_bytes_per_second": 10.0, "core_message_seconds": 1.0}
    arrivals = Arrivals(Network("plain", 0.0, 1e30), **works)
    path = arrivals.fabric.to_all(arrivals.host(), arrivals.host())
    left = list[float]()
    for name in ("one", "two"):
        path.send(20.0, arrivals.take, name, on_left=lambda start, end: left.extend((start, end)))
    arrivals.queue.run()
    # A second of the sender, two of both for the bytes, beside which it prepares the next one; one of the receiver.
    assert arrivals.came == pytest.approx({"one": 4.0, "two": 6.0})
    assert left == pytest.approx([1.0, 3.0, 3.0, 5.0])


@pytest.mark.parametrize("machines", [Machines(), Machines(shared_cores=2, core_bytes_per_second=1e30)])
def test_what_is_urgent_overtakes_all_but_what_the_kernel_has(machines: Machines) -> None:
    queue, came = EventQueue(), list[str]()
    fabric = Fabric(queue, PLAIN, 0, machines)
    path = fabric.to_all(fabric.host(1), fabric.host(1))
    half = MOST_UNSENT_BYTES / 2
    for number in range(4):
        path.send(half, came.append, str(number))
    path.send(1.0, came.append, "at once", urgent=True)
    queue.at(half / PLAIN.bytes_per_second / 2, lambda: path.send(1.0, came.append, "urgent", urgent=True))
    queue.run()
    # What half of the first one and 0.5 MB are takes the kernel: of the third one a part, or all of it.
    assert came in (["at once", "0", "1", "urgent", "2", "3"], ["at once", "0", "1", "2", "urgent", "3"])


def test_work_of_a_thread_is_shared_and_what_was_measured_is_not() -> None:
    arrivals = Arrivals(core_compute_share=0.5)
    threads = [arrivals.host().thread() for _ in range(3)]
    for number, thread in enumerate(threads):
        thread.do(2.0, arrivals.take, f"work {number}")
        thread.do(1.0, arrivals.take, f"measured {number}", waits=True)
    arrivals.queue.run()
    assert {arrivals.came[f"work {number}"] for number in range(3)} == {3.0}
    assert {arrivals.came[f"measured {number}"] for number in range(3)} == {4.0}
    arrivals.host().compute(8.0, lambda: arrivals.take("computed"))
    for _ in range(3):
        arrivals.host().thread().do(4.0, lambda: None)
    arrivals.queue.run()
    assert arrivals.came["computed"] == 4.0 + 8.0
