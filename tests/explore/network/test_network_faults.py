"""Faults of the network in memory, and those that learn of them."""

from __future__ import annotations

import gc
import random
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import pytest
from support.worlds import SERVICE, World, simulated_world

from taihu.explore.carriers import CARRIERS
from taihu.explore.network import Network
from taihu.explore.network.client_call import ClientCall
from taihu.explore.network.connections import Connection
from taihu.explore.orders import RandomOrder
from taihu.explore.scheduler import BEGUN_S, RUNNING, Scheduler
from taihu.explore.tasks import Ended, Process

Code = grpc.StatusCode

ONE, BOTH = f"/{SERVICE}/One", f"/{SERVICE}/Both"
PORT = 7000
KEEPALIVE = (("grpc.keepalive_time_ms", 2000), ("grpc.keepalive_timeout_ms", 1000))
SILENCE_S = 3.0
LATE_S = 0.1


class Town:
    """A server and a client, each a process, and what they note."""

    def __init__(self, scheduler: Scheduler, network: Network) -> None:
        self.scheduler = scheduler
        self.network = network
        self.world: World = simulated_world()
        self.server, self.client = Process("server 0"), Process("worker 0")
        self.told: list[Any] = []
        self.begun = self.world.threads.Event()
        self.ended = self.world.threads.Event()
        self.may = self.world.threads.Event()

    @property
    def now_s(self) -> float:
        return self.scheduler.now - BEGUN_S

    def run(self, process: Process, act: Callable[[], object]) -> Any:
        """Have a process do something, and wait for it."""
        done = self.world.threads.Event()
        results: list[Any] = []

        def do() -> None:
            results.append(act())
            done.set()

        self.scheduler.spawn(do, "act", process)
        assert done.wait(3000.0)
        return results[0]

    def begin(self, process: Process, act: Callable[[], object]) -> None:
        """Have a process do something meanwhile."""
        self.scheduler.spawn(act, "act", process)

    def serve(self, process: Process | None = None) -> Any:
        """A server at `PORT`: `One` waits until it may answer, `Both` echoes."""

        def one(request: bytes, context: Any) -> bytes:
            context.add_callback(self.ended.set)
            self.begun.set()
            if request == b"wait":
                self.may.wait()
            return request

        def both(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            context.add_callback(self.ended.set)
            try:
                for each in requests:
                    self.told.append(each)
                    yield each
            except grpc.RpcError:
                self.told.append("lost")

        def start() -> Any:
            handlers: dict[str, Any] = {
                "One": grpc.unary_unary_rpc_method_handler(one),
                "Both": grpc.stream_stream_rpc_method_handler(both),
            }
            server = self.world.grpc.server(self.world.pools.ThreadPoolExecutor(4), options=KEEPALIVE)
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
            server.add_insecure_port(f"127.0.0.1:{PORT}")
            server.start()
            return server

        return self.run(process or self.server, start)

    def channel(self, *, keepalive: bool = True) -> Any:
        return self.run(self.client, lambda: self.world.channel(PORT, KEEPALIVE if keepalive else ()))

    def call(self, channel: Any, request: bytes = b"a", **options: Any) -> Any:
        """The answer, or the code that the call ended with."""

        def ask() -> Any:
            try:
                return channel.unary_unary(ONE)(request, **options)
            except grpc.RpcError as error:
                return error.code()

        return self.run(self.client, ask)

    def under_way(self, channel: Any) -> Any:
        """A call that the server has begun to answer, and does not."""
        future = self.run(self.client, lambda: channel.unary_unary(ONE).future(b"wait"))
        assert self.begun.wait(100.0)
        return future


def everything(_: Process, __: Process, ___: Connection) -> bool:
    return True


def in_town(test: Callable[[Town], object], seed: int = 1, carrier: str = "greenlets") -> Scheduler:
    scheduler = Scheduler(seed, CARRIERS[carrier](), RandomOrder(random.Random(seed), 0.5))
    network = Network(scheduler, late_s=LATE_S)
    scheduler.provide(network)
    try:
        scheduler.run(lambda: test(Town(scheduler, network)), Process("test"))
    finally:
        scheduler.close()
    assert [str(each.error) for each in scheduler.failures] == []
    return scheduler


seeds = pytest.mark.parametrize("seed", range(8))


@seeds
def test_both_sides_are_told_of_a_cut(seed: int) -> None:
    def test(town: Town) -> None:
        town.serve()
        channel = town.channel()
        future = town.under_way(channel)
        before_s = town.now_s
        town.network.cut(lambda a, b, each: (a, b, each.kind) == (town.client, town.server, "grpc"))
        assert (future.code(), future.details()) == (Code.UNAVAILABLE, "Stream removed (Connection reset by peer)")
        assert town.ended.wait(1.0)
        assert town.now_s - before_s < 0.1
        assert town.call(channel) == b"a"

    in_town(test, seed)


@seeds
def test_a_cut_of_others_changes_nothing(seed: int) -> None:
    def test(town: Town) -> None:
        town.serve()
        future = town.under_way(town.channel())
        town.network.cut(lambda a, b, _: "worker 1" in (a.member, b.member))
        town.may.set()
        assert future.result() == b"wait"

    in_town(test, seed)


@seeds
def test_the_other_side_of_a_half_open_connection_finds_out(seed: int) -> None:
    def test(town: Town) -> None:
        town.serve()
        future = town.under_way(town.channel())
        before_s = town.now_s
        town.network.half_open(everything)
        town.world.clocks.sleep(0.05)
        assert sorted([future.done(), town.ended.is_set()]) == [False, True]
        assert future.code() is Code.UNAVAILABLE
        assert town.ended.wait(100.0)
        assert 0.5 * SILENCE_S < town.now_s - before_s <= SILENCE_S + 0.1

    in_town(test, seed)


def test_who_sends_on_a_half_open_connection_learns_of_it_at_once() -> None:
    def test(town: Town) -> None:
        listening = town.run(town.server, lambda: town.world.sockets.create_server(("127.0.0.1", PORT)))
        near = town.run(town.client, lambda: town.world.sockets.create_connection(("127.0.0.1", PORT)))
        far = town.run(town.server, lambda: listening.accept()[0])
        town.network.half_open(everything)
        lost: list[int] = []
        for process, each in ((town.client, near), (town.server, far)):

            def send(each: Any = each) -> None:
                for number in range(50):
                    try:
                        each.sendall(b"a")
                    except OSError:
                        lost.append(number)
                        return
                    town.world.clocks.sleep(0.01)

            town.run(process, send)
        told, found_out = sorted(lost)
        assert told == 0
        assert 0 < found_out < 40

    for seed in range(8):
        in_town(test, seed)


@seeds
def test_a_short_stall_only_takes_time(seed: int) -> None:
    def test(town: Town) -> None:
        town.serve()
        channel = town.channel()
        assert town.call(channel) == b"a"
        before_s = town.now_s
        town.network.stall(everything, 1.0)
        assert town.call(channel) == b"a"
        assert 1.0 < town.now_s - before_s < 4.0

    in_town(test, seed)


@seeds
def test_a_long_stall_is_found_by_keepalive(seed: int) -> None:
    def test(town: Town) -> None:
        town.serve()
        channel = town.channel()
        future = town.under_way(channel)
        before_s = town.now_s
        town.network.stall(everything, 100.0)
        assert (future.code(), future.details()) == (Code.UNAVAILABLE, "Stream removed (Connection timed out)")
        assert town.ended.wait(SILENCE_S)
        assert 0.5 * SILENCE_S < town.now_s - before_s <= SILENCE_S + 0.1
        # A connection of its own is none of those that are stalled.
        assert town.call(channel, wait_for_ready=True) == b"a"

    in_town(test, seed)


def test_without_keepalive_a_deadline_is_all_there_is() -> None:
    def test(town: Town) -> None:
        town.serve()
        channel = town.channel(keepalive=False)
        assert town.call(channel) == b"a"
        town.network.partition(["server 0"], ["worker 0"], "both", None)
        assert town.call(channel, timeout=50.0) is Code.DEADLINE_EXCEEDED
        assert 50.0 <= town.now_s < 51.0

    in_town(test)


@pytest.mark.parametrize("direction", ["both", "a to b", "b to a"])
def test_a_partition_that_heals(direction: Any) -> None:
    def test(town: Town) -> None:
        town.serve()
        channel = town.channel()
        assert town.call(channel) == b"a"
        before_s = town.now_s
        town.network.partition(["server 0"], ["worker 0", "worker 1"], direction, 1.0)
        assert town.call(channel) == b"a"
        assert 1.0 < town.now_s - before_s < 4.0
        before_s = town.now_s
        assert town.call(town.channel()) == b"a"
        assert town.now_s - before_s < 1.0

    for seed in range(8):
        in_town(test, seed)


@pytest.mark.parametrize("direction", ["both", "a to b", "b to a"])
def test_a_partition_that_does_not_heal(direction: Any) -> None:
    def test(town: Town) -> None:
        town.serve()
        channel = town.channel()
        future = town.under_way(channel)
        town.network.partition(["server 0"], ["worker 0"], direction, None)
        assert future.code() is Code.UNAVAILABLE
        assert town.ended.wait(SILENCE_S)
        # Nobody refuses: who tries to connect waits, for as long as one try takes.
        before_s = town.now_s
        assert town.call(channel) is Code.UNAVAILABLE
        assert 5.0 <= town.now_s - before_s < 5.5
        assert town.call(channel, timeout=2.0, wait_for_ready=True) is Code.DEADLINE_EXCEEDED

        def connect() -> None:
            with pytest.raises(TimeoutError):
                town.world.sockets.create_connection(("127.0.0.1", PORT), timeout=1.0)

        town.run(town.client, connect)

    for seed in range(4):
        in_town(test, seed)


def test_others_are_on_no_side_of_a_partition() -> None:
    def test(town: Town) -> None:
        town.serve()
        town.network.partition(["server 0"], ["worker 1"], "both", None)
        assert town.call(town.channel()) == b"a"

    in_town(test)


@seeds
def test_slow_connections(seed: int) -> None:
    def test(town: Town) -> None:
        town.serve()
        channel = town.channel()
        assert town.call(channel) == b"a"
        town.network.slow(everything, 1_000.0, 3000.0)
        before_s = town.now_s
        assert town.call(channel, timeout=1e6) == b"a"
        assert town.now_s - before_s > 0.2
        # One that comes later is as slow.
        before_s = town.now_s
        assert town.call(town.channel(), wait_for_ready=True) == b"a"
        assert town.now_s - before_s > 0.2
        town.world.clocks.sleep(3010.0 - town.now_s)
        before_s = town.now_s
        assert town.call(channel) == b"a"
        assert town.now_s - before_s < 1.0

    in_town(test, seed)


@seeds
def test_what_is_under_way_when_a_connection_is_fast_again_comes_soon(seed: int) -> None:
    """Also what waits behind it, in order: a fault of 2 s holds nobody up for a minute."""

    def test(town: Town) -> None:
        town.serve()
        channel = town.channel()
        assert town.call(channel) == b"a"
        town.network.slow(everything, 1e6, 2.0)
        calls = [town.run(town.client, lambda: channel.unary_unary(ONE).future(b"a")) for _ in range(3)]
        town.world.clocks.sleep(2.0 + 10 * LATE_S)
        assert [call.done() for call in calls] == [True] * 3

    in_town(test, seed)


@seeds
def test_a_crash_is_told_by_the_host_and_frees_ports(seed: int) -> None:
    def test(town: Town) -> None:
        town.serve()
        channel = town.channel()
        future = town.under_way(channel)
        town.scheduler.kill(town.server)
        town.network.crash(town.server)
        before_s = town.now_s
        assert future.code() is Code.UNAVAILABLE
        assert town.now_s - before_s < LATE_S + 0.1
        assert town.call(channel) is Code.UNAVAILABLE
        town.serve(Process("server 0", 1))
        assert town.call(channel, wait_for_ready=True) == b"a"

    in_town(test, seed)


def test_nobody_listens_for_a_process_that_was_killed() -> None:
    def test(town: Town) -> None:
        town.serve()
        town.scheduler.kill(town.server)
        assert town.call(town.channel()) is Code.UNAVAILABLE
        town.serve(Process("server 0", 1))

    in_town(test)


@seeds
def test_a_server_learns_that_its_client_crashed(seed: int) -> None:
    def test(town: Town) -> None:
        town.serve()
        town.under_way(town.channel())
        town.scheduler.kill(town.client)
        town.network.crash(town.client)
        assert town.ended.wait(LATE_S + 0.1)
        town.world.until(lambda: not town.network.connections)

    in_town(test, seed)


@seeds
def test_nobody_tells_that_a_host_has_died(seed: int) -> None:
    def test(town: Town) -> None:
        town.serve()
        channel = town.channel()
        future = town.under_way(channel)
        town.scheduler.kill(town.server)
        town.network.crash(town.server, with_host=True)
        before_s = town.now_s
        assert future.code() is Code.UNAVAILABLE
        assert 0.5 * SILENCE_S < town.now_s - before_s <= SILENCE_S + 0.1
        assert town.call(channel, timeout=2.0, wait_for_ready=True) is Code.DEADLINE_EXCEEDED
        town.serve(Process("server 0", 1))
        assert town.call(channel, wait_for_ready=True) == b"a"

    in_town(test, seed)


@seeds
def test_a_process_that_hangs_answers_no_keepalive(seed: int) -> None:
    def test(town: Town) -> None:
        town.serve()
        channel = town.channel()
        assert town.call(channel) == b"a"
        town.scheduler.stop(town.server)
        town.network.stopped(town.server)
        before_s = town.now_s
        assert town.call(channel) is Code.UNAVAILABLE
        assert 0.5 * SILENCE_S < town.now_s - before_s <= SILENCE_S + 0.1
        town.scheduler.resume(town.server)
        assert town.call(channel, wait_for_ready=True) == b"a"

    in_town(test, seed)


@seeds
def test_a_short_hang_only_takes_time(seed: int) -> None:
    def test(town: Town) -> None:
        town.serve()
        channel = town.channel()
        assert town.call(channel) == b"a"
        town.scheduler.stop(town.server)
        town.network.stopped(town.server)
        town.scheduler.call_at(0.5, lambda: town.scheduler.resume(town.server))
        assert town.call(channel) == b"a"
        assert town.now_s > 0.5

    in_town(test, seed)


def test_messages_in_flight_are_lost_and_never_reordered() -> None:
    """A server takes the beginning of a stream that is cut."""
    lengths = set()

    def test(town: Town) -> None:
        town.serve()
        channel = town.channel()
        sent = [b"%d" % n for n in range(30)]

        def stream() -> None:
            with pytest.raises(grpc.RpcError):
                list(channel.stream_stream(BOTH)(iter(sent)))

        town.begin(town.client, stream)
        assert town.world.clocks.sleep(town.network.chance.uniform(0.002, 0.02)) is None
        town.network.cut(everything)
        town.world.until(town.ended.is_set)
        town.world.clocks.sleep(0.1)
        got = [each for each in town.told if each != "lost"]
        assert got == sent[: len(got)]
        lengths.add(len(got))

    for seed in range(20):
        try:
            in_town(test, seed)
        except AssertionError as error:  # the stream was over, or had not begun
            if "not come about" not in str(error) and "DID NOT RAISE" not in str(error):
                raise
    assert len(lengths) > 3


def _note(seen: list[bytes], connection: Any) -> None:
    seen.append(connection.recv(1))


def test_connections_overtake_each_other() -> None:
    orders = set()

    def test(town: Town) -> None:
        seen: list[bytes] = []
        listening = town.run(town.server, lambda: town.world.sockets.create_server(("127.0.0.1", PORT)))
        near = [
            town.run(town.client, lambda: town.world.sockets.create_connection(("127.0.0.1", PORT))) for _ in range(2)
        ]
        far = [town.run(town.server, lambda: listening.accept()[0]) for _ in near]
        for each in far:
            town.begin(town.server, partial(_note, seen, each))
        town.run(town.client, lambda: [each.sendall(b"%d" % n) for n, each in enumerate(near)])
        town.world.until(lambda: len(seen) == 2)
        orders.add(tuple(seen))

    for seed in range(20):
        in_town(test, seed)
    assert orders == {(b"0", b"1"), (b"1", b"0")}


def _stormy(town: Town) -> None:
    """A story with a bit of everything."""
    town.serve()
    channel = town.channel()
    sending = town.run(town.client, lambda: channel.stream_stream(BOTH)(iter([b"x" * 100] * 30)))
    town.begin(town.client, lambda: [None for _ in _quietly(sending)])
    town.call(channel, timeout=1.0)
    town.network.stall(everything, 0.3)
    town.call(channel, timeout=1.0)
    town.network.half_open(everything)
    town.call(channel, timeout=2.0)
    town.scheduler.kill(town.server)
    town.network.crash(town.server)
    town.serve(Process("server 0", 1))
    town.network.partition(["server 0"], ["worker 0"], "a to b", 3.0)
    town.call(channel, timeout=20.0, wait_for_ready=True)


def _quietly(call: Any) -> Iterator[bytes]:
    try:
        yield from call
    except grpc.RpcError:
        return


@seeds
def test_a_seed_has_one_story(seed: int) -> None:
    stories = {in_town(_stormy, seed, carrier).digest for carrier in ("greenlets", "threads", "greenlets")}
    assert len(stories) == 1


def test_seeds_have_different_stories() -> None:
    assert len({in_town(_stormy, seed).digest for seed in range(10)}) == 10


def test_nothing_of_a_run_outlives_it() -> None:
    counts = []
    for begin in (0, 10):
        for seed in range(begin, 5 * begin + 10):
            in_town(_stormy, seed)
        gc.collect()
        counts.append(len(gc.get_objects()))
    assert not [each for each in gc.get_objects() if issubclass(type(each), (ClientCall, Connection))]
    # Fewer than one of each of the later runs.
    assert counts[1] - counts[0] < 50


def test_a_run_that_was_stopped_in_the_middle_leaves_nothing() -> None:
    def test(town: Town) -> None:
        town.serve()
        town.under_way(town.channel())
        listening = town.run(town.server, lambda: town.world.sockets.create_server(("127.0.0.1", PORT + 1)))
        town.begin(town.server, listening.accept)
        near = town.run(town.client, lambda: town.world.sockets.create_connection(("127.0.0.1", PORT + 1)))
        town.begin(town.client, lambda: near.recv(1, socket.MSG_WAITALL))

    for carrier in CARRIERS:
        scheduler = in_town(test, carrier=carrier)
        assert not [each for each in scheduler.tasks if not each.has_ended]
        del scheduler
    gc.collect()
    assert not [each for each in gc.get_objects() if issubclass(type(each), (ClientCall, Connection))]
    with pytest.raises(Ended):
        RUNNING()


def test_a_loss_may_seem_to_be_the_end_of_a_stream() -> None:
    """gRPC tells of the end first, or of the loss: whoever takes one for the other is found out."""
    seen = set()

    def test(town: Town) -> None:
        going = town.world.threads.Event()

        def requests() -> Iterator[bytes]:
            yield b"a"
            going.wait()

        town.serve()
        channel = town.channel()
        call = town.run(town.client, lambda: channel.stream_stream(BOTH)(requests()))
        town.run(town.client, lambda: next(call))
        town.world.clocks.sleep(LATE_S)
        town.network.cut(everything)
        assert town.ended.wait(1.0)
        town.world.clocks.sleep(0.1)
        seen.add(tuple(town.told))

    for seed in range(20):
        in_town(test, seed)
    assert seen == {(b"a",), (b"a", "lost")}
